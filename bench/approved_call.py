"""Time that an approval by an operator adds to the call that uses it.

    python -m bench.trust --after-yes [--rounds 300]

One client repeats calls of two tools of the same server, in turns on one connection. A call of the first tool waits for
an operator, who approves it through `/admin`; then the client repeats it, and this second call is timed. The second
tool runs without approval. Both calls go through HTTP to a `toolway serve` process and on to a real server process.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from bench import wire

WARM_ROUNDS: Final = 20
FAKE: Final = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
CONFIG: Final = {"mcpServers": {"bank": FAKE}, "toolway": {"approve": {"bank.echo": "operator"}}}
_TOOLWAY: Final = (sys.executable, "-m", "toolway.cli")


def measure(rounds: int) -> tuple[list[float], list[float]]:
    """Return the times in ms of the calls that used an approval, and of the calls that needed none."""
    approved: list[float] = []
    free: list[float] = []
    with tempfile.TemporaryDirectory() as folder, _gateway(Path(folder)) as (port, token):
        client = _Client(port, token)
        for number in range(WARM_ROUNDS + rounds):
            arguments = {"text": f"pay {number}"}
            id_ = client.call("bank__echo", arguments)["error"]["data"]["approvalId"]
            client.send("POST", f"/admin/approvals/{id_}", {"yes": True}, {})
            started = time.perf_counter()
            result = client.call("bank__echo", arguments)
            middle = time.perf_counter()
            other = client.call("bank__add", {"a": number, "b": 1})
            ended = time.perf_counter()
            assert "result" in result and "result" in other, (result, other)
            approved.append((middle - started) * 1000)
            free.append((ended - middle) * 1000)
    return approved[WARM_ROUNDS:], free[WARM_ROUNDS:]


def report(rounds: int) -> None:
    """Measure, and print the medians and their difference."""
    approved, free = measure(rounds)
    for name, times in (("call that uses an approval", approved), ("call that needs none", free)):
        high = statistics.quantiles(times, n=20)[-1]
        print(f"{name:28} {statistics.median(times):6.2f} ms median  {high:6.2f} ms p95")
    added = statistics.median(approved) - statistics.median(free)
    print(f"{'added after the yes':28} {added:6.2f} ms median of {rounds} calls")


class _Client:
    """MCP client of the modern era, and administrator, on one connection."""

    def __init__(self, port: int, token: str) -> None:
        self._endpoint = wire.Endpoint(port, headers={"Authorization": f"Bearer {token}"})
        self._connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        request = wire.request(self._endpoint, "modern", "tools/call", {"name": tool, "arguments": arguments})
        head, _, body = request.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        return self.send("POST", self._endpoint.path, json.loads(body), headers)

    def send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = json.dumps(body).encode()
        fields = {**self._endpoint.headers, "Content-Type": "application/json", **headers}
        self._connection.request(method, path, data, {**fields, "Content-Length": str(len(data))})
        text = self._connection.getresponse().read().decode()
        return json.loads(text.rpartition("data: ")[2])  # of an event stream, the last message


@contextmanager
def _gateway(folder: Path) -> Iterator[tuple[int, str]]:
    """Run a gateway with one rule for approvals; yield its port and its token."""
    (folder / "mcp.json").write_text(json.dumps(CONFIG))
    environ = {**os.environ, "TOOLWAY_STATE": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    words = ("serve", "-c", str(folder / "mcp.json"), "--port", "0", "--json", "--quiet", "--drain-delay", "0")
    log = subprocess.DEVNULL  # a line for each call that waits
    with subprocess.Popen([*_TOOLWAY, *words], env=environ, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        assert process.stdout is not None
        try:
            printed = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            port = int(printed["url"].rpartition(":")[2].partition("/")[0])
            yield port, (folder / "state" / "token").read_text().strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
