"""`toolway top`, `calls`, `trace` and `replay`: the terminal's side of the dashboard, by the same `/admin`."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from toolway.cli.exits import Exit, GatewayError
from toolway.cli.gateways import Door
from toolway.cli.options import Session, Where
from toolway.cli.output import Output
from toolway.cli.places import gateway_for
from toolway.model import Json

EVERY: Final = 2.0  # seconds between two looks of `top`
_BARS: Final = " ▁▂▃▄▅▆▇█"
_CLEAR: Final = "\x1b[H\x1b[2J"
_WIDTH: Final = 40  # columns of a waterfall, where nobody looks at a terminal
_ILL: Final = ("backing_off", "failed", "starting")


async def door_of(output: Output, where: Where) -> Door:
    """The gateway that is asked. Raises `GatewayError` where none runs."""
    door = await gateway_for(output, where)
    if door is None:
        raise GatewayError(
            "no gateway runs here", evidence="what happened is remembered by one", fix="start one with: toolway serve"
        )
    return door


# -- calls ------------------------------------------------------------------------------------------------------------


async def calls(session: Session, wishes: Mapping[str, str], *, follow: bool) -> Exit:
    """The last calls, newest last, and with `follow` those that come."""
    output = session.output
    door = await door_of(output, session.where)
    query = urlencode({key: value for key, value in wishes.items() if value})
    found = (await door.ask("GET", f"calls?{query}"))["calls"]
    if output.as_json and not follow:
        output.facts({"calls": found})
        return Exit.OK
    seen = _print_calls(output, found, set(), head=True)
    if not found:
        output.say("no call that is remembered fits")
    while follow:
        await asyncio.sleep(EVERY / 2)
        seen = _print_calls(output, (await door.ask("GET", f"calls?{query}"))["calls"], seen, head=False)
    return Exit.OK


def _print_calls(output: Output, found: list[Json], seen: set[str], *, head: bool) -> set[str]:
    new = [call for call in reversed(found) if call["id"] not in seen]
    if output.as_json:
        for call in new:
            output.json_line(call)
    elif new:
        rows = [_row(call) for call in new]
        heads = ("time", "took", "tries", "outcome", "id", "tool", "what") if head else rows.pop(0)
        output.table(heads, rows, right=("took", "tries"), cut=True)
    sys.stdout.flush()
    return {call["id"] for call in found}


def _row(call: Json) -> tuple[str, ...]:
    outcome = call["outcome"] if call["executed"] != "unknown" else f"{call['outcome']} (unknown)"
    name = f"{call['server']}.{call['tool']}"
    return (_clock(call["at"]), took(call["seconds"]), str(call["attempts"]), outcome, call["id"], name, call["what"])


# -- one call ---------------------------------------------------------------------------------------------------------


async def trace(session: Session, id_: str) -> Exit:
    """Where the time of a call went."""
    output = session.output
    door = await door_of(output, session.where)
    call = await door.ask("GET", f"calls/{quote(id_, safe='')}")
    if output.as_json:
        output.facts(call)
        return Exit.OK
    width = shutil.get_terminal_size().columns - 34 if sys.stdout.isatty() else _WIDTH
    for text, style in waterfall(call, max(20, min(100, width))):
        output.line(text, style)
    return Exit.OK


def waterfall(call: Json, width: int) -> list[tuple[str, str]]:
    """A call as lines with a style each: what became of it, then a bar for everything that it waited for."""
    good = call["outcome"] == "ok"
    tries = "one try" if call["attempts"] == 1 else f"{call['attempts']} tries"
    ended = f"{call['outcome']} in {took(call['seconds'])}, {tries}, executed: {call['executed']}"
    lines = [(f"{call['server']}.{call['tool']}  {_clock(call['at'])}  by {call['who']}", "bold")]
    lines.append((ended, "green" if good else "red"))
    lines += [(f"  {name:<9}{call[name]}", "") for name in ("what", "evidence", "fix", "trace") if call[name]]
    total = max([call["seconds"], 1e-9, *(each["began"] + each["seconds"] for each in call["tries"])])
    for each in call["tries"]:
        lines.append((f"try {each['number']}  {each['outcome']} ({each['certainty']})", "dim"))
        for phase in each["phases"]:
            if phase["seconds"] > 0:
                bar = _bar(phase["began"] / total, phase["seconds"] / total, width)
                lines.append((f"  {phase['name']:<8}{bar}  {took(phase['seconds']):>8}", ""))
    if not call["tries"]:
        lines.append((f"  answered from {call['source']}" if call["source"] else "  it never came to a try", "dim"))
    return lines


def _bar(begin: float, share: float, width: int) -> str:
    left = min(width - 1, int(begin * width))
    length = max(1, min(width - left, round(share * width)))
    return f"{'·' * left}{'█' * length}{'·' * (width - left - length)}"


async def replay(session: Session, id_: str, *, yes: bool) -> Exit:
    """Make a call once more, with the same arguments."""
    output = session.output
    door = await door_of(output, session.where)
    answer = await door.ask("POST", f"calls/{quote(id_, safe='')}/replay", {"confirm": yes})
    result = answer["result"]
    failed = result.get("isError") is True
    if output.as_json:
        output.json(answer)
    else:
        for block in result.get("content") or []:
            output.text_of_tool(block["text"] if isinstance(block.get("text"), str) else json.dumps(block))
        tries = answer["attempts"]
        output.say(
            f"{took(answer['seconds'])}, {tries} {'try' if tries == 1 else 'tries'}; see toolway trace {answer['id']}"
        )
    return Exit.TOOL_FAILED if failed else Exit.OK


# -- all servers ------------------------------------------------------------------------------------------------------


async def top(session: Session, *, once: bool) -> Exit:
    """Every server, how busy it is and how well, again and again."""
    output = session.output
    door = await door_of(output, session.where)
    moving = sys.stdout.isatty() and not once and not output.as_json
    while True:
        overview = await door.ask("GET", "overview")
        if output.as_json:
            output.facts(overview)
            return Exit.OK
        rows = sorted(overview["servers"], key=_urgency)
        if moving:
            rows = rows[: max(3, shutil.get_terminal_size().lines - 5)]
            sys.stdout.write(_CLEAR)
        output.line(_sentence(overview), "bold")
        heads = ("state", "server", "calls", "", "failed", "p50", "p95", "busy", "restarts", "why")
        right = ("calls", "failed", "p50", "p95", "busy", "restarts")
        output.table(heads, [_server(row) for row in rows], right=right, cut=True)
        sys.stdout.flush()
        if not moving:
            return Exit.OK
        await asyncio.sleep(EVERY)


def _sentence(overview: Json) -> str:
    servers, pulse = overview["servers"], overview["pulse"]
    ill = [server for server in servers if server["state"] in _ILL or server["breaker"] != "closed"]
    well = f"{len(servers) - len(ill)} of {len(servers)} servers are well"
    share = f"{100 * pulse['errors'] / pulse['calls']:.1f} % failed" if pulse["calls"] else "no calls"
    return f"{well}; {pulse['calls']} calls in 30 minutes, {share}, p95 {took(pulse['p95'])}"


def _urgency(server: Json) -> tuple[bool, int, str]:
    ill = server["state"] in _ILL or server["breaker"] != "closed"
    return not ill, -server["pulse"]["calls"], server["server"]


def _server(row: Json) -> tuple[str, ...]:
    pulse = row["pulse"]
    state = row["state"] if row["breaker"] == "closed" else "breaker open"
    return (
        state,
        row["server"],
        str(pulse["calls"]),
        spark(pulse["per_minute"][-12:]),
        f"{100 * pulse['errors'] / pulse['calls']:.0f} %" if pulse["calls"] else "",
        took(pulse["p50"]),
        took(pulse["p95"]),
        f"{row['in_flight']}/{row['limit']}",
        str(row["restarts"]),
        row["why"],
    )


def spark(values: list[int]) -> str:
    """Counts as a line of blocks."""
    most = max([*values, 1])
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // most)] for value in values)


def took(seconds: Any) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
