"""`toolway` alone: how the servers are, as far as that is known without starting one, and what to do next."""

from __future__ import annotations

import time
from typing import Any

from toolway.cli.ages import ago
from toolway.cli.exits import Exit
from toolway.cli.known import Kept
from toolway.cli.next_step import Known, Step, next_step
from toolway.cli.options import Session
from toolway.cli.output import Output, problem_facts
from toolway.cli.places import gateway_for, load
from toolway.cli.running import exit_of
from toolway.config.scopes import APPROVAL
from toolway.config.spec import Server
from toolway.errors import ConfigError


async def overview(session: Session) -> Exit:
    """A line each, and the next step."""
    output = session.output
    door = await gateway_for(output, session.where)
    if door is not None:
        return await _of_gateway(output, door)
    try:
        loaded = load(output, session.where.config)
    except ConfigError as exc:
        if exc.code not in ("E-CONFIG-NONE", APPROVAL):
            raise
        return _nothing_yet(output, exc)
    from toolway.cli.known import kept_lists

    kept = kept_lists(loaded.servers)
    waiting = [p for p in loaded.problems if p.code == APPROVAL]
    broken = [p for p in loaded.problems if p.severity == "error" and p.code != APPROVAL]
    step = next_step(
        Known(
            servers=len(loaded.servers),
            never_asked=len(kept.missing),
            unusable=len(broken),
            unapproved=len(waiting),
        )
    )
    rows = [_row(name, server, kept) for name, server in loaded.servers.items()]
    if output.as_json:
        output.facts(
            {
                "file": str(loaded.file),
                "gateway": None,
                "servers": rows,
                "problems": [problem_facts(p) for p in loaded.problems],
                "next": {"command": step.command, "why": step.why},
            }
        )
    else:
        _print(output, rows)
        output.problems(loaded.problems)
        _print_step(output, step)
    return Exit.CONFIG if broken and not loaded.servers else Exit.PARTIAL if broken else Exit.OK


def _row(name: str, server: Server, kept: Kept) -> dict[str, Any]:
    asked = kept.at.get(name)
    state = "disabled" if not server.enabled else "known" if asked is not None else "no answer yet"
    return {
        "server": name,
        "transport": server.transport,
        "state": state,
        "tools": len(kept.catalog.tools(name)) if asked is not None else None,
        "asked": round(asked) if asked is not None else None,
        "runs": server.place,
    }


def _print(output: Output, rows: list[dict[str, Any]]) -> None:
    if rows:
        output.table(
            ("server", "tools", "state", "runs"),
            [(row["server"], _number(row["tools"]), _state(row), row["runs"]) for row in rows],
            right=("tools",),
            cut=True,
        )


def _number(tools: int | None) -> str:
    return "–" if tools is None else str(tools)


def _state(row: dict[str, Any]) -> str:
    return f"asked {ago(time.time() - row['asked'])}" if row["asked"] is not None else str(row["state"])


async def _of_gateway(output: Output, door: Any) -> Exit:
    """The gateway that runs knows how its servers are."""
    from toolway.cli.remote import Remote
    from toolway.cli.servers import owner_key

    remote = Remote(door)
    await remote.list_tools(timeout=0)
    statuses = list(remote.status().values())
    down = [s.server for s in statuses if s.state in ("backing_off", "failed")]
    step = next_step(Known(servers=len(statuses), gateway=True, down=tuple(down)))
    if output.as_json:
        keys = ("server", "transport", "state", "tools", "why", "fix", *owner_key(statuses))
        servers = [{key: getattr(status, key) for key in keys} for status in statuses]
        facts = {"file": door.config or None, "gateway": door.url, "servers": servers, "problems": []}
        output.facts({**facts, "next": {"command": step.command, "why": step.why}})
    else:
        if owner_key(statuses):
            shared = [(s.server, str(s.tools), s.state, ", ".join(s.nodes) or "–", s.why) for s in statuses]
            output.table(("server", "tools", "state", "owner", "why"), shared, right=("tools",), cut=True)
        else:
            rows = [(s.server, str(s.tools), s.state, s.why) for s in statuses]
            output.table(("server", "tools", "state", "why"), rows, right=("tools",), cut=True)
        _print_step(output, step)
    return exit_of(statuses)


def _nothing_yet(output: Output, error: ConfigError) -> Exit:
    waits = error.code == APPROVAL
    step = next_step(Known(unapproved=int(waits), elsewhere=0 if waits else _elsewhere()))
    if output.as_json:
        facts: dict[str, Any] = {"file": None, "gateway": None, "servers": [], "problems": []}
        output.facts({**facts, "next": {"command": step.command, "why": step.why}})
    else:
        output.say(f"{error.what}: {error.evidence}." if waits else "There is no file of servers yet.")
        _print_step(output, step)
    return Exit.OK


def _elsewhere() -> int:
    """How many servers the clients of this machine know."""
    from toolway.cli.taking import look

    found, _ = look([], {}, project=False)
    return sum(each.fate == "new" for each in found)


def _print_step(output: Output, step: Step) -> None:
    output.say("")
    output.say(f"{step.why}:")
    output.say(f"  {step.command}", "bold")
