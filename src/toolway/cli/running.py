"""What the commands share: waiting for servers, and what their states amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from toolway.catalog.resolve import check_server
from toolway.cli.exits import Exit
from toolway.cli.output import Output
from toolway.cli.places import Servers
from toolway.config.problems import Problem
from toolway.errors import CallError

if TYPE_CHECKING:
    from toolway.upstream.status import Status

DOWN = ("starting", "backing_off", "failed")
_LOOK = 0.1  # seconds between two looks at who is still starting


async def wait_listed(servers: Servers, output: Output, wait: float, only: str | None = None) -> list[Status]:
    """Wait until each server has shown its tools or failed, showing at a terminal who is still missing; how they are
    then. Raises `NotFound` where there is no such server."""
    import asyncio

    with output.spinner("starting") as update:
        looking = asyncio.ensure_future(_show_waiting(servers, update))
        try:
            await servers.list_tools(server=only, timeout=wait)
        except CallError:
            pass  # its status tells more
        finally:
            looking.cancel()
    found = servers.status()
    if only is None:
        return list(found.values())
    check_server(found, only)
    return [found[only]]


async def _show_waiting(servers: Servers, update: Callable[[str], None]) -> None:
    import asyncio

    while True:
        names = [name for name, status in servers.status().items() if status.state == "starting"]
        if names:
            update(f"waiting for {len(names)}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}")
        await asyncio.sleep(_LOOK)


def cause_of(status: Status) -> str:
    """Why a server is not ready, in as few words as are known."""
    _, found, cause = status.why.partition("likely cause: ")
    if found:
        return cause
    return status.last_error or status.why if status.state in DOWN else status.why


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
