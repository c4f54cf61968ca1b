"""Query one stdio server directly, to compare its responses with those of Toolway.

Deliberately simple and independent: one process, one request at a time, no SDK and no Toolway. So a mistake in either
cannot affect both sides of a comparison.

    python interop/direct.py --installed DIR [NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import corpus
from compare import first_difference, masked
from corpus import CorpusServer

START_SECONDS = 60.0
REQUEST_SECONDS = 60.0
STOP_SECONDS = 3.0

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
CLIENT = {"name": "toolway", "version": "0"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}
METHOD_NOT_FOUND = -32601

# result key: (method, capability that announces it, key of the items in a page)
LISTS = {
    "tools": ("tools/list", "tools", "tools"),
    "prompts": ("prompts/list", "prompts", "prompts"),
    "resources": ("resources/list", "resources", "resources"),
    "templates": ("resources/templates/list", "resources", "resourceTemplates"),
}


class DirectError(Exception):
    """Unexpected behavior of the server; the message describes it."""


class RpcError(DirectError):
    """JSON-RPC error returned by the server."""

    def __init__(self, method: str, error: dict[str, Any]) -> None:
        super().__init__(f"{method}: {error}")
        self.error = error


def query(server: CorpusServer, era: str) -> dict[str, Any]:
    """Start the server, request all lists, make its call, and stop it.

    Besides the responses, the result has `refused`: the errors of lists that the server announced but did not return.
    """
    with _Process(server, era) as process:
        started = time.monotonic()
        capabilities, negotiated = _initialize(process, era)
        seconds = time.monotonic() - started
        responses: dict[str, Any] = {"negotiated": negotiated, "seconds": seconds, "refused": {}}
        for key, (method, capability, items) in LISTS.items():
            responses[key] = []
            if capability not in capabilities:
                continue
            try:
                responses[key] = _list_all(process, method, items)
            except RpcError as error:
                if key == "tools":
                    raise
                responses["refused"][key] = error.error
        responses["call"] = None
        if server.tool is not None:
            params = {"name": server.tool, "arguments": server.arguments}
            responses["call"] = process.request("tools/call", params)
        return responses


def list_tools(server: CorpusServer, era: str) -> list[Any]:
    """Start the server, request its tools, and stop it."""
    with _Process(server, era) as process:
        _initialize(process, era)
        return _list_all(process, "tools/list", "tools")


def _initialize(process: _Process, era: str) -> tuple[dict[str, Any], str]:
    """Initialize and return capabilities and protocol version."""
    if era == "modern":
        found = process.request("server/discover", {}, START_SECONDS)
        if MODERN not in found["supportedVersions"]:
            raise DirectError(f"supports only {found['supportedVersions']}")
        return found["capabilities"], MODERN
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
    found = process.request("initialize", params, START_SECONDS)
    process.notify("notifications/initialized")
    return found["capabilities"], found["protocolVersion"]


def _list_all(process: _Process, method: str, items: str) -> list[Any]:
    """Return the items of all pages of a list."""
    found: list[Any] = []
    params: dict[str, Any] = {}
    while True:
        page = process.request(method, params)
        found += page[items]
        if page.get("nextCursor") is None:
            return found
        params = {"cursor": page["nextCursor"]}


class _Process:
    """Process of the server, used for one request at a time."""

    def __init__(self, server: CorpusServer, era: str) -> None:
        self._server = server
        self._meta = {"_meta": META} if era == "modern" else {}
        self._last_id = 0
        self._lines: queue.Queue[bytes | None] = queue.Queue()

    def __enter__(self) -> _Process:
        self._stderr = tempfile.TemporaryFile()
        minimal = {key: os.environ[key] for key in ("LANG", "TMPDIR") if key in os.environ}
        self._process = subprocess.Popen(
            [self._server.command, *self._server.args],
            env={**minimal, **self._server.env},
            cwd=self._server.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._stdin: IO[bytes] = self._process.stdin
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        # Even after a normal exit: a child process of the server could hold the pipe open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(STOP_SECONDS)
        self._stderr.close()

    def request(self, method: str, params: dict[str, Any], seconds: float = REQUEST_SECONDS) -> Any:
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": {**params, **self._meta}})
        deadline = time.monotonic() + seconds
        while True:
            message = self._next(method, deadline)
            if "method" in message:
                self._reject(message)
            elif message.get("id") == self._last_id:
                if "error" in message:
                    raise RpcError(method, message["error"])
                return message["result"]

    def notify(self, method: str) -> None:
        self._send({"method": method})

    def _reject(self, message: dict[str, Any]) -> None:
        """Reject a request of the server; notifications get no response."""
        if "id" in message:
            error = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
            self._send({"id": message["id"], "error": error})

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        try:
            self._stdin.write(line.encode())
            self._stdin.flush()
        except BrokenPipeError as error:
            raise DirectError(f"the process no longer reads its input; {self._stderr_tail()}") from error

    def _next(self, method: str, deadline: float) -> dict[str, Any]:
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise DirectError(f"{method}: no response in time; {self._stderr_tail()}") from None
            if line is None:
                raise DirectError(f"{method}: the process closed its output; {self._stderr_tail()}")
            try:
                message = json.loads(line)
            except ValueError:
                continue  # Some servers print a banner on stdout.
            if isinstance(message, dict):
                return message

    def _read(self, stdout: IO[bytes]) -> None:
        with stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _stderr_tail(self) -> str:
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace").strip()
        return f"stderr ends with: {text[-500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("--twice", action="store_true", help="print differences between two runs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: every server")
    options = parser.parse_args()
    packages = corpus.read_packages(options.servers)
    wanted = [package for package in packages if not options.names or package.name in options.names]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(wanted, installed=options.installed, work=Path(work))
        good = [_show(server, options.twice) for server in servers]
    print(f"{sum(good)}/{len(good)} as expected")
    return 0 if all(good) else 1


def _show(server: CorpusServer, twice: bool) -> bool:
    """Query one server, print a line about it, and return True if there was no problem."""
    try:
        responses = _query_fresh(server)
        again = _query_fresh(server) if twice else responses
    except DirectError as error:
        print(f"{server.name}: {error}", flush=True)
        return False
    call = responses["call"]
    called = "no call" if call is None else "call failed" if call.get("isError") else "call ok"
    counts = ", ".join(f"{len(responses[key])} {key}" for key in LISTS)
    problems = [f"expected {server.tools} tools"] if len(responses["tools"]) != server.tools else []
    difference = first_difference(masked(server.name, responses), masked(server.name, again))
    problems += [f"second run differs at {difference}"] if difference else []
    notes = [f"{key} rejected: {error['message']}" for key, error in responses["refused"].items()]
    facts = [f"{responses['negotiated']} in {responses['seconds']:.1f} s", counts, called, *notes, *problems]
    print(f"{server.name}: {'; '.join(facts)}", flush=True)
    return not problems and called != "call failed"


def _query_fresh(server: CorpusServer) -> dict[str, Any]:
    corpus.make_work(server.work)
    return query(server, server.era)


if __name__ == "__main__":
    sys.exit(main())
