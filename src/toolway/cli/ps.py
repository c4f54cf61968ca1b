"""`toolway ps`: the processes of servers: those of the gateway that runs, and those that nobody needs any more."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from toolway.cli.ages import for_so_long
from toolway.cli.exits import Exit, UsageError
from toolway.cli.options import Session
from toolway.cli.output import Output
from toolway.cli.places import gateway_for, load
from toolway.doctor.processes import Orphan, find_orphans
from toolway.errors import ConfigError


async def ps(session: Session, *, orphans: bool, kill: bool) -> Exit:
    """Running servers, or with `orphans` what is left over; `kill` ends the latter."""
    if kill and not orphans:
        raise UsageError("--kill is for what is left over", fix="write: toolway ps --orphans --kill")
    if orphans:
        return _left_over(session, kill)
    output = session.output
    door = await gateway_for(output, session.where)
    running = (await door.ask("GET", "servers"))["servers"] if door is not None else []
    rows = [server for server in running if server.get("pid")]
    if output.as_json:
        keys = ("server", "pid", "state", "since", "restarts")
        output.facts({"processes": [{key: row[key] for key in keys} for row in rows]})
    elif rows:
        table = [(str(r["pid"]), r["server"], r["state"], for_so_long(r["since"]), str(r["restarts"])) for r in rows]
        output.table(("pid", "server", "state", "since", "restarts"), table, right=("pid",))
    else:
        why = "no process" if door is not None else "no gateway runs here, so no server does"
        output.say(f"{why}; what is left over of others: toolway ps --orphans")
    return Exit.OK


def _left_over(session: Session, kill: bool) -> Exit:
    output = session.output
    try:
        servers: dict[str, Any] = load(output, session.where.config).servers
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
        servers = {}
    found = find_orphans(servers)
    ended = [orphan.apply() for orphan in found] if kill else []
    if output.as_json:
        output.facts({"orphans": [asdict(orphan) for orphan in found], "ended": ended})
        return Exit.OK
    if not found:
        output.say("no process is left over")
        return Exit.OK
    _print(output, found)
    for line in ended:
        output.say(line)
    if not kill:
        output.say("end them with: toolway ps --orphans --kill", "bold")
    return Exit.OK


def _print(output: Output, found: list[Orphan]) -> None:
    rows = [
        (str(each.pid), each.server or "–", f"{each.megabytes} MB", for_so_long(each.seconds), each.command)
        for each in found
    ]
    output.table(("pid", "server", "memory", "since", "command"), rows, right=("pid", "memory"), cut=True)
