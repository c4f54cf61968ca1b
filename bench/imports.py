"""CPU time to load Toolway and to start a gateway, next to what cannot be avoided.

    python -m bench.imports [--rounds N]

`from toolway import Hub` is compared with importing the libraries that every hub needs. `toolway serve` is measured
from its start to the first good answer to `tools/list`, with one HTTP server. All programs run in turn, with cached
bytecode. CPU time excludes waiting on a busy machine. Medians are compared; the smallest value is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import machine
from bench.single_request import list_pages, tool_names
from bench.wire import Endpoint
from toolway.testing import FakeHttp

LIBRARIES = "import asyncio, ssl, msgspec, httptools"
IMPORT_HUB = "from toolway import Hub"
PROGRAMS = (
    LIBRARIES,
    IMPORT_HUB,
    "from toolway import Hub; Hub({})",
    "from toolway import ConfigError, Server",
    "import toolway.serve.process",
)
ANSWER_TIMEOUT_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print("                                                  CPU   smallest   to the libraries")
    rounds = measure_imports(options.rounds)
    times = {program: [each[program] for each in rounds] for program in PROGRAMS}
    base = statistics.median(times[LIBRARIES]), min(times[LIBRARIES])
    for program, taken in times.items():
        middle, least = statistics.median(taken), min(taken)
        ratios = f"{middle / base[0]:5.2f} × ({least / base[1]:.2f} ×)"
        print(f"{program:44} {middle * 1000:6.0f} ms  {least * 1000:6.0f} ms   {ratios}")
    started = asyncio.run(measure_starts(options.rounds))
    print("\ntoolway serve, start to first answer         clock       CPU")
    for name, pick in (("median", statistics.median), ("smallest", min)):
        clock, cpu = (pick(each) for each in zip(*started, strict=True))
        print(f"  {name:42} {clock * 1000:6.0f} ms  {cpu * 1000:6.0f} ms")


def measure_imports(rounds: int) -> list[dict[str, float]]:
    """Return the CPU seconds of each program, by round. The first round writes bytecode and is not counted."""
    return [{program: _import_time(program) for program in PROGRAMS} for _ in range(rounds + 1)][1:]


def _import_time(program: str) -> float:
    """Return the CPU seconds of the imports themselves, without the start of Python."""
    script = f"import time\nbegan = time.process_time()\n{program}\nprint(time.process_time() - began)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return float(result.stdout)


async def measure_starts(rounds: int) -> list[tuple[float, float]]:
    """Return clock and CPU seconds of each start of a gateway, until its first answer."""
    async with FakeHttp() as server:
        # The first start writes bytecode and is not counted.
        return [await asyncio.to_thread(_gateway_start, server.url) for _ in range(rounds + 1)][1:]


def _gateway_start(url: str) -> tuple[float, float]:
    """Start a gateway in its own folder; return clock and CPU seconds until it lists a tool of its server."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        file, port = Path(name) / "mcp.json", machine.free_port()
        file.write_text(json.dumps({"mcpServers": {"fake": {"url": url}}}))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLWAY_", "XDG_"))}
        words = [str(Path(sys.executable).with_name("toolway")), "--config", str(file)]
        words += ["serve", "--port", str(port), "--no-auth"]
        began = time.perf_counter()
        process = subprocess.Popen(words, cwd=name, env={**inherited, "HOME": name}, stderr=subprocess.DEVNULL)
        try:
            _wait_for_answer(Endpoint(port, "/mcp"), process)
            clock = time.perf_counter() - began
            used = _process_cpu(process.pid)
        finally:
            process.terminate()
            process.wait(30)
    return clock, used


def _wait_for_answer(endpoint: Endpoint, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if tool_names(list_pages(endpoint)):
                return
        except OSError:
            time.sleep(0.01)
    raise SystemExit(f"the gateway gave no answer within {ANSWER_TIMEOUT_S:.0f} s")


def _process_cpu(pid: int) -> float:
    """Return the user and system seconds of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
