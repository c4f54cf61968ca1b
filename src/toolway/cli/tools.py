"""`toolway tools`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolway.catalog.index import Tool
from toolway.cli.exits import Exit
from toolway.cli.output import Output, problem_facts
from toolway.cli.places import Where, find
from toolway.cli.running import DOWN, exit_of, wait_listed
from toolway.upstream.status import Status

_DESCRIPTION = 100  # characters, in the table


async def show_tools(output: Output, where: Where, wait: float, words: Sequence[str], server: str | None) -> Exit:
    """The tools in which all words occur."""
    place = await find(output, where)
    async with place.asking(server) as servers:
        statuses = await wait_listed(servers, output, wait, server)
        found = servers.tools(" ".join(words), server=server)
    problems = place.problems(server)
    if output.as_json:
        output.facts(
            {
                "tools": [_facts(tool) for tool in found],
                "down": [{"server": s.server, "state": s.state, "why": s.why, "fix": s.fix} for s in _down(statuses)],
                "problems": [problem_facts(p) for p in problems],
            }
        )
    else:
        _print(output, found)
        output.problems(problems)
        for status in _down(statuses):
            stale = ", its tools are those of an earlier run" if status.stale and status.tools else ""
            output.say(f"{status.server}: {status.why}{stale}", "red")
    return exit_of(statuses, problems)


def _print(output: Output, found: Sequence[Tool]) -> None:
    if found:
        output.table(("tool", "description"), [(tool.name, _first_line(tool)) for tool in found])
    else:
        output.say("no tool found")


def _first_line(tool: Tool) -> str:
    lines = (tool.description or tool.title).strip().splitlines()
    text = lines[0].strip() if lines else ""
    return text if len(text) <= _DESCRIPTION else text[: _DESCRIPTION - 1] + "…"


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
    }


def _down(statuses: Sequence[Status]) -> list[Status]:
    return [status for status in statuses if status.state in DOWN]
