"""`toolway ls`, `toolway status` and `toolway restart`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from toolway.catalog.resolve import check_server
from toolway.cli.exits import Exit
from toolway.cli.output import Output, last_lines, problem_facts
from toolway.cli.places import Place, Servers, Where, find, gateway_alone
from toolway.cli.running import DOWN, cause_of, exit_of, wait_listed
from toolway.errors import NotFound
from toolway.upstream.status import Status

_LOOK = 0.5  # seconds between two looks


async def show_list(output: Output, where: Where, wait: float, watch: bool) -> Exit:
    """All servers, a line each; with `watch` again whenever something has changed, until Ctrl-C."""
    place = await find(output, where)
    async with place.asking() as servers:
        statuses = await wait_listed(servers, output, wait)
        while watch:
            _show_list(output, place, statuses)
            sys.stdout.flush()
            statuses = await _changed(servers, statuses)
            output.line()
    _show_list(output, place, statuses)
    return exit_of(statuses, place.problems())


async def _changed(servers: Servers, before: Collection[Status]) -> list[Status]:
    """The servers, as soon as one is in another state or has other tools."""
    seen = {s.server: (s.state, s.tools, s.restarts) for s in before}
    while True:
        await asyncio.sleep(_LOOK)
        await servers.list_tools(timeout=0)
        now = list(servers.status().values())
        if {s.server: (s.state, s.tools, s.restarts) for s in now} != seen:
            return now


def _show_list(output: Output, place: Place, statuses: Collection[Status]) -> None:
    if output.as_json:
        keys = ("server", "transport", "state", "era", "protocol", "tools", "stale", "why", "fix")
        rows = [{key: facts[key] for key in (*keys, *owner_key(statuses))} for facts in map(asdict, statuses)]
        output.facts({"servers": rows, "problems": [problem_facts(p) for p in place.problems()]})
    else:
        _print_list(output, place, statuses)


def owner_key(statuses: Collection[Status]) -> tuple[str, ...]:
    """Who owns a server is told where that is somebody: in a cluster."""
    return ("nodes",) if any(status.nodes for status in statuses) else ()


async def show_status(output: Output, where: Where, wait: float, name: str | None) -> Exit:
    """All that is known about one server, or about each."""
    place = await find(output, where)
    async with place.asking(name) as servers:
        statuses = await wait_listed(servers, output, wait, name)
    problems = place.problems(name)
    if output.as_json:
        output.facts({"servers": [asdict(s) for s in statuses], "problems": [problem_facts(p) for p in problems]})
    else:
        for status in statuses:
            _print_status(output, status)
        output.problems(problems)
    return exit_of(statuses, problems)


async def restart(output: Output, where: Where, name: str) -> Exit:
    """Start a server of the gateway that runs again. Only there is something that runs."""
    door = await gateway_alone(
        output,
        where,
        "no gateway runs here, so no server does",
        fix="start one with: toolway serve; every other command starts the servers afresh",
    )
    try:
        await door.ask("POST", f"servers/{quote(name, safe='')}/restart")
    except NotFound:
        known = await door.ask("GET", "servers")
        check_server([server["server"] for server in known["servers"]], name)
        raise
    if output.as_json:
        output.facts({"restarting": name})
    else:
        output.say(f"{name} is started again; see how it does: toolway status {name}")
    return Exit.OK


def _print_list(output: Output, place: Place, statuses: Collection[Status]) -> None:
    if owner_key(statuses):
        shared = [(s.server, s.state, _tools(s), s.era or "–", ", ".join(s.nodes) or "–", _why(s)) for s in statuses]
        output.table(("server", "state", "tools", "era", "owner", "why"), shared, right=("tools",), cut=True)
    elif statuses:
        rows = [(s.server, s.state, _tools(s), s.era or "–", _why(s)) for s in statuses]
        output.table(("server", "state", "tools", "era", "why"), rows, right=("tools",), cut=True)
    else:
        output.say(f"no servers in {place.name}")
    output.problems(place.problems())
    for status in statuses:
        if status.state in DOWN:
            _print_failure(output, status)


def _tools(status: Status) -> str:
    return str(status.tools) if status.tools or status.state == "ready" else "–"


def _why(status: Status) -> str:
    calm = status.state == "ready" and not status.restarts and not status.problems
    if calm and status.transport == "sse":
        return status.why  # it says that this is deprecated
    earlier = ["its tools are those of an earlier run"] if status.stale and status.tools and not calm else []
    return "" if calm else "; ".join((cause_of(status), *earlier, *status.problems))


def _print_failure(output: Output, status: Status) -> None:
    output.say("")
    output.prose(f"{status.server}: {status.last_error or status.why}", "red")
    for line in last_lines(status.stderr):
        output.say(f"  | {line}", "dim")
    if status.fix:
        output.say(f"  fix: {status.fix}", "bold")


def _print_status(output: Output, status: Status) -> None:
    output.line(f"{status.server}: {status.state}", {"ready": "green"}.get(status.state, "yellow"))
    for label, value in _details(status):
        output.line(f"  {label:<12}{value}")


def _details(status: Status) -> Iterator[tuple[str, Any]]:
    yield "why", status.why
    if status.fix:
        yield "fix", status.fix
    yield "transport", status.transport
    if status.era:
        yield "era", f"{status.era} ({status.protocol})" if status.protocol else status.era
    if status.pid is not None:
        yield "pid", status.pid
    if status.nodes:
        yield "owner", ", ".join(status.nodes)
    yield "tools", f"{status.tools} (of an earlier run)" if status.stale and status.tools else status.tools
    yield "in flight", status.in_flight
    yield "restarts", status.restarts
    yield "since", f"{status.since:.1f} s"
    if status.next_retry is not None:
        yield "next retry", f"in {status.next_retry:.1f} s"
    if status.last_error:
        yield "last error", status.last_error
    for problem in status.problems:
        yield "problem", problem
    for line in last_lines(status.stderr):
        yield "stderr", f"| {line}"
