"""`toolway tools`: from what earlier runs kept, and from the servers only where nothing is kept."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from toolway.catalog.index import Tool
from toolway.cli.ages import ago
from toolway.cli.exits import Exit
from toolway.cli.known import Kept
from toolway.cli.options import Session
from toolway.cli.output import Output, problem_facts
from toolway.cli.places import Place, file_at_once, find
from toolway.cli.running import DOWN, cause_of, exit_of, wait_listed
from toolway.doctor.tokens import cost_of

if TYPE_CHECKING:
    from toolway.upstream.status import Status

_OLD = 24 * 3600.0  # seconds after which it is said that the lists are from an earlier time


def show_tools(
    session: Session, words: Sequence[str], server: str | None, *, wait: float, refresh: bool, tokens: bool
) -> Exit | Coroutine[Any, Any, Exit]:
    """The tools in which all words occur; at once, where everything is on disk."""
    query = " ".join(words)
    place = file_at_once(session.output, session.where)
    kept = place.kept(server) if place is not None and not refresh else None
    if place is None or kept is None or kept.missing:
        return _ask_and_show(session, place, query, server, wait, refresh, tokens)
    return _show(session.output, place, _found(kept, query, server), [], kept, server, tokens)


async def _ask_and_show(
    session: Session, place: Place | None, query: str, server: str | None, wait: float, refresh: bool, tokens: bool
) -> Exit:
    output = session.output
    place = place if place is not None else await find(output, session.where)
    kept = place.kept(server)
    if kept is None or refresh:
        found, statuses = await _asked(output, place, query, server, wait)
        kept = Kept()
    else:
        statuses = await _ask_missing(output, place, kept, wait)
        found = _found(kept, query, server)
    return _show(output, place, found, statuses, kept, server, tokens)


def _found(kept: Kept, query: str, server: str | None) -> list[Tool]:
    return kept.catalog.search(query, server) if query else kept.catalog.tools(server)


def _show(
    output: Output,
    place: Place,
    found: list[Tool],
    statuses: list[Status],
    kept: Kept,
    server: str | None,
    tokens: bool,
) -> Exit:
    problems = place.problems(server)
    if output.as_json:
        facts = {"tools": [_facts(tool) for tool in found], "down": [_down_facts(s) for s in _down(statuses)]}
        output.facts({**facts, "problems": [problem_facts(p) for p in problems]})
    else:
        _print(output, found, tokens)
        output.problems(problems)
        _print_notes(output, statuses, kept, found)
        if server in kept.disabled:
            output.say(f"{server} does not take part; let it: toolway enable {server}", "yellow")
    return exit_of(statuses, problems)


async def _asked(
    output: Output, place: Place, query: str, server: str | None, wait: float
) -> tuple[list[Tool], list[Status]]:
    """The tools as all servers have them now."""
    async with place.asking(server) as servers:
        statuses = await wait_listed(servers, output, wait, server)
        return servers.tools(query, server=server), statuses


async def _ask_missing(output: Output, place: Place, kept: Kept, wait: float) -> list[Status]:
    """Add the tools of servers that were never asked."""
    if not kept.missing:
        return []
    async with place.asking_some(kept.missing) as servers:
        statuses = await wait_listed(servers, output, wait)
        for name in kept.missing:
            kept.catalog.replace(name, "tools", [tool.raw for tool in servers.tools(server=name)])
    return statuses


def _print(output: Output, found: Sequence[Tool], tokens: bool) -> None:
    if not found:
        output.say("no tool found")
    elif tokens:
        costs = [_tokens(tool) for tool in found]
        rows = [(tool.name, f"{cost:,}", _first_line(tool)) for tool, cost in zip(found, costs, strict=True)]
        output.table(("tool", "tokens", "description"), rows, right=("tokens",), cut=True)
        output.say(f"{len(found)} tools, about {sum(costs):,} tokens")
    else:
        output.table(("tool", "description"), [(tool.name, _first_line(tool)) for tool in found], cut=True)


def _print_notes(output: Output, statuses: Sequence[Status], kept: Kept, found: Sequence[Tool]) -> None:
    if _down(statuses):
        output.say("")
    for status in _down(statuses):
        stale = ", its tools are those of an earlier run" if status.stale and status.tools else ""
        how = "down" if status.last_error else "still starting"
        output.prose(f"{status.server} is {how}: {cause_of(status)}{stale}", "red")
    if _down(statuses):
        output.say(f"see more, and what to do: toolway doctor {_down(statuses)[0].server}")
    shown = [kept.at[name] for name in {tool.server for tool in found} if name in kept.at]
    age = time.time() - min(shown, default=time.time())
    if shown and (output.verbose or age > _OLD):
        output.say(f"\nas the servers said up to {ago(age)}; --refresh asks them again", "dim")


def _first_line(tool: Tool) -> str:
    lines = (tool.description or tool.title).strip().splitlines()
    return lines[0].strip() if lines else ""


def _tokens(tool: Tool) -> int:
    """With the provider to whom it is dearest."""
    return cost_of([tool.raw]).most


def _facts(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "server": tool.server,
        "tool": tool.ref.tool,
        "title": tool.title,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": tool.annotations,
        "stale": tool.stale,
        "tokens": _tokens(tool),
    }


def _down_facts(status: Status) -> dict[str, str]:
    return {"server": status.server, "state": status.state, "why": status.why, "fix": status.fix}


def _down(statuses: Sequence[Status]) -> list[Status]:
    return [status for status in statuses if status.state in DOWN]
