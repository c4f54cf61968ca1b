"""`toolway logs`: what servers write to stderr, of the gateway that runs or of servers that are started for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

from toolway.catalog.resolve import check_server
from toolway.cli.exits import Exit
from toolway.cli.options import Session
from toolway.cli.output import Output
from toolway.cli.places import Servers, find
from toolway.cli.running import wait_listed
from toolway.upstream.status import Status

_LOOK = 0.5  # seconds between two looks


async def logs(session: Session, name: str | None, *, follow: bool, lines: int, wait: float) -> Exit:
    """The last lines, and with `follow` those that come."""
    output = session.output
    place = await find(output, session.where)
    async with place.asking(name) as servers:
        await wait_listed(servers, output, 0.0 if follow else wait, name)
        known = _lines_of(servers.status(), name)
        if output.as_json and not follow:
            output.facts({"logs": {server: each[-lines:] for server, each in known.items()}})
            return Exit.OK
        _print(output, {server: each[-lines:] for server, each in known.items()}, several=name is None)
        while follow:
            await asyncio.sleep(_LOOK)
            now = _lines_of(await _looked(servers), name)
            new = {server: added(known.get(server, []), each) for server, each in now.items()}
            _print(output, new, several=name is None)
            known = now
    if not any(known.values()):
        output.say("nothing was written to stderr")
    return Exit.OK


async def _looked(servers: Servers) -> Mapping[str, Status]:
    await servers.list_tools(timeout=0)
    return servers.status()


def _lines_of(statuses: Mapping[str, Status], name: str | None) -> dict[str, list[str]]:
    if name is not None:
        check_server(statuses, name)
    chosen = {server: status for server, status in statuses.items() if name in (None, server)}
    return {server: status.stderr.splitlines() for server, status in chosen.items()}


def added(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The lines that are new, where only so many of the last lines are known at a time."""
    for old in range(min(len(before), len(now)), 0, -1):
        if list(before[-old:]) == list(now[:old]):
            return list(now[old:])
    return list(now)


def _print(output: Output, lines: Mapping[str, Sequence[str]], *, several: bool) -> None:
    for server, each in lines.items():
        for line in each:
            if output.as_json:
                output.json_line({"server": server, "line": line})
            else:
                output.line(f"{server} | {line}" if several else line)
    sys.stdout.flush()
