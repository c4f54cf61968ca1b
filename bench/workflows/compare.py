"""Engines side by side: steps a second, CPU time a step, and effects under `kill -9`.

The killed process is the one that executes the steps. It is started again at once, with the same arguments, and the
engine's own recovery continues the runs. The effect server, databases and servers of the engines are not killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.install import ROOT, InstallError
from bench.machine import free_port, measure_usage, run_process, wait_for_port
from bench.workflows.engines import Engine, StoreServer, open_store
from bench.workflows.runner import KEYED_STEPS, STEPS, UNSAFE_STEPS

_NOTHING = Path("/nonexistent")
_POLL_S = 0.05
_SPEED_SHARE = 0.4  # of the limit, for the measurement of speed


@dataclass(frozen=True)
class Sizes:
    """How much is measured for each engine."""

    seconds: float  # of the measurement of speed
    runs: int  # of the kill run
    max_kills: int
    limit: float  # seconds for both measurements; an engine that does not end is stopped, and its row says so
    at_once: int = 20
    delay: float = 0.15  # of a call, before its effect and after it, in the kill run


QUICK = Sizes(seconds=3.0, runs=50, max_kills=3, limit=180.0)
FULL = Sizes(seconds=6.0, runs=100, max_kills=6, limit=600.0)


@contextlib.contextmanager
def effect_server() -> Iterator[str]:
    """Run the effect server; give its address."""
    port = free_port()
    command = [sys.executable, "-m", "bench.workflows.effect_server", str(port)]
    with tempfile.TemporaryDirectory() as folder, run_process(command, Path(folder) / "log", cwd=ROOT) as process:
        if not wait_for_port(port, process, 30):
            raise InstallError("the effect server does not start")
        yield f"http://127.0.0.1:{port}"


def compare(engine: Engine, url: str, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Measure one engine: its speed, then the kill run. Raises `InstallError` if its server does not start."""
    row: dict[str, Any] = {"engine": engine.name}
    end = time.monotonic() + sizes.limit
    with tempfile.TemporaryDirectory(prefix="toolway-bench-") as temporary:
        for part in ("speed", "kills"):
            folder = Path(temporary) / part
            folder.mkdir()
            with open_store(engine, folder) as store:
                if part == "speed":
                    row |= measure_speed(engine, store, folder, url, sizes)
                else:
                    row |= measure_kills(engine, store, folder, url, sizes, seed, end)
    return row


def measure_speed(engine: Engine, store: StoreServer, folder: Path, url: str, sizes: Sizes) -> dict[str, Any]:
    """Execute runs for some seconds, `at_once` at a time; calls take no time. CPU time covers all processes."""
    _ask(url, "DELETE")
    before = 0.0
    process = _start(engine, store, folder, url, sizes, ["--seconds", str(sizes.seconds)])
    try:
        end = time.monotonic() + _SPEED_SHARE * sizes.limit
        while process.poll() is None and not (folder / "began").exists() and time.monotonic() < end:
            time.sleep(_POLL_S)  # until the engine has started and executed one run
        before = measure_usage(store.pid, _NOTHING).cpu if store.pid else 0.0
        process.wait(max(sizes.seconds + 5, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return {"steps": 0, "problem": f"it did not end in {_SPEED_SHARE * sizes.limit:.0f} s"}
    finally:
        _kill(process)
    after = measure_usage(store.pid, _NOTHING).cpu if store.pid else 0.0
    report = _report(folder)
    if report is None:
        return {"steps": 0, "problem": _last_words(folder)}
    steps = sum(report["states"].values()) * len(STEPS)
    return {
        "steps": steps,
        "rate": round(steps / report["seconds"], 1),
        "cpu_ms": round(report["cpu"] / steps * 1000, 3),
        "server_cpu_ms": round((after - before) / steps * 1000, 3) if store.pid else None,
    }


def measure_kills(
    engine: Engine, store: StoreServer, folder: Path, url: str, sizes: Sizes, seed: int, end: float
) -> dict[str, Any]:
    """Execute the runs; kill the process 1 to 3 s after its first call and start it again, until all have ended.

    It is stopped at the time `end`.
    """
    _ask(url, "DELETE")
    chance = random.Random(seed)
    began = time.monotonic()
    kills = underway = failures = 0
    while _report(folder) is None and time.monotonic() < end and failures < 3:
        calls = _ask(url)["calls"]
        process = _start(engine, store, folder, url, sizes, ["--runs", str(sizes.runs), "--delay", str(sizes.delay)])
        try:
            while process.poll() is None and time.monotonic() < end and _ask(url)["calls"] == calls:
                time.sleep(_POLL_S)
            is_last = kills >= sizes.max_kills
            wait = end - time.monotonic() if is_last else chance.uniform(1.0, 3.0)
            try:
                failures += process.wait(max(0.1, wait)) != 0
            except subprocess.TimeoutExpired:
                if not is_last:
                    kills += 1
                    underway += _ask(url)["underway"]
        finally:
            _kill(process)
    ended = _report(folder)
    report = ended or {"states": {}, "asked": 0}
    time.sleep(2 * sizes.delay + 0.2)  # calls of the last killed process
    found = _judge(_ask(url)["effects"], sizes.runs)
    states = report["states"]
    return {
        "runs": sizes.runs,
        "kills": kills,
        "underway": underway,
        **found,
        "done": states.get("done", 0),
        "failed": sum(count for state, count in states.items() if state != "done"),
        "lost_runs": sizes.runs - sum(states.values()),
        "asked": report["asked"],
        "kill_seconds": round(time.monotonic() - began, 1),
        "ended": ended is not None,  # otherwise it was stopped, and nothing is known about lost runs
        **({"kill_problem": _last_words(folder)} if failures >= 3 else {}),
    }


def _judge(effects: dict[str, int], runs: int) -> dict[str, int]:
    """Count the effects that happened more than once, and the missing ones."""
    unsafe = [effects.get(f"run{number}/{step}", 0) for number in range(runs) for step in UNSAFE_STEPS]
    keyed = [effects.get(f"run{number}/{step}", 0) for number in range(runs) for step in KEYED_STEPS]
    return {
        "unsafe": len(unsafe),
        "unsafe_doubled": sum(count > 1 for count in unsafe),
        "keyed_doubled": sum(count > 1 for count in keyed),
        "missing": sum(count == 0 for count in (*unsafe, *keyed)),
    }


def _start(
    engine: Engine, store: StoreServer, folder: Path, url: str, sizes: Sizes, more: list[str]
) -> subprocess.Popen[bytes]:
    command = [engine.python, "-m", f"bench.workflows.{engine.runner}", str(folder), "--url", url]
    command += ["--at-once", str(sizes.at_once), "--database", store.address, "--variant", engine.variant, *more]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **engine.env, **dict(store.env)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and those that it started, if they still run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ask(url: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as response:
        return json.load(response)


def _report(folder: Path) -> dict[str, Any] | None:
    file = folder / "ended"
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    return found


def _last_words(folder: Path) -> str:
    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it ended without a word"
