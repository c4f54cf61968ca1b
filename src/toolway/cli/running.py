"""What the commands share: reading the file, running a hub with the servers that are wanted, waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolway.catalog.resolve import check_server
from toolway.cli.exits import Exit, of_error
from toolway.cli.mask import masker
from toolway.cli.output import Output
from toolway.config.find import default_file
from toolway.config.formats import Loaded, normalised, read
from toolway.config.problems import Problem
from toolway.errors import CallError, ConfigError, ToolwayError
from toolway.hub import Hub
from toolway.upstream.status import Status

DOWN = ("starting", "backing_off", "failed")
_LOOK = 0.1  # seconds between two looks at who is still starting


def run(command: Callable[[Output], Coroutine[Any, Any, int]], output: Output) -> int:
    """Run a command to its exit code. Errors are shown, Ctrl-C ends in order."""
    try:
        return asyncio.run(command(output))
    except ToolwayError as exc:
        output.error(exc)
        return of_error(exc)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def load(output: Output, config: Path | None) -> Loaded:
    """The servers of the named or the default file. Raises `ConfigError`."""
    loaded = read(config or default_file())
    output.mask = masker(loaded.servers.values())
    return loaded


def must_be_usable(loaded: Loaded, name: str | None) -> None:
    """Raise what is wrong with the entry of this name: `ConfigError`, or `NotFound` where there is none."""
    if name is None or name in loaded.servers:
        return
    for problem in loaded.problems:
        if problem.severity == "error" and name in (problem.server, normalised(problem.server)):
            raise ConfigError(
                f"{problem.server}: {problem.what}",
                file=problem.file,
                line=problem.line,
                evidence=problem.evidence,
                fix=problem.fix,
                code=problem.code,
            )
    check_server(loaded.servers, name)


def problems_about(loaded: Loaded, name: str | None) -> tuple[Problem, ...]:
    """The problems of one server and of the file, or all."""
    return tuple(p for p in loaded.problems if name is None or p.server in (name, ""))


@asynccontextmanager
async def running(loaded: Loaded, only: str | None = None) -> AsyncIterator[Hub]:
    """A hub in which all servers start, or only the one that is wanted; the others are known but stay asleep."""
    servers = {name: replace(server, lazy=only not in (None, name)) for name, server in loaded.servers.items()}
    async with Hub(replace(loaded, servers=servers)) as hub:
        yield hub


async def wait_listed(hub: Hub, output: Output, wait: float, only: str | None = None) -> None:
    """Wait until each server has shown its tools or failed, showing at a terminal who is still missing."""
    with output.spinner("starting") as update:
        looking = asyncio.ensure_future(_show_waiting(hub, update))
        try:
            await hub.list_tools(server=only, timeout=wait)
        except CallError:
            pass  # its status tells more
        finally:
            looking.cancel()


async def _show_waiting(hub: Hub, update: Callable[[str], None]) -> None:
    while True:
        names = [name for name, status in hub.status().items() if status.state == "starting"]
        if names:
            update(f"waiting for {len(names)}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}")
        await asyncio.sleep(_LOOK)


def exit_of(statuses: Iterable[Status], problems: Iterable[Problem] = ()) -> Exit:
    """0 where all is well, 8 where some are down, 4 where all are, 3 where no entry of the file can be used."""
    states = [status.state for status in statuses if status.state != "disabled"]
    down = sum(state in DOWN for state in states)
    broken = any(problem.severity == "error" for problem in problems)
    if not states and broken:
        return Exit.CONFIG
    if states and down == len(states):
        return Exit.UNREACHABLE
    return Exit.PARTIAL if down or broken else Exit.OK
