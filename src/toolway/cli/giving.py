"""`toolway export` and `toolway sync`: our servers, or the one way to all of them, in the files of clients."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolway.cli.changing import changes, confirm, entries_in, own
from toolway.cli.exits import Exit, UsageError
from toolway.cli.options import Session
from toolway.cli.output import Output, problem_facts
from toolway.cli.own_file import named_file
from toolway.cli.places import load
from toolway.cli.showing import show_edit, tilde
from toolway.cli.taking import identity, is_hub, taken
from toolway.config import moving, scopes
from toolway.config.clients import CLIENTS, Export, Place, client_named, find, plan_export, portable, read
from toolway.config.editing.write import apply
from toolway.config.formats import normalised
from toolway.config.problems import Problem

HUB = "toolway"


@dataclass(frozen=True)
class Plan:
    place: Place
    export: Export


def give(
    session: Session,
    clients: Sequence[str],
    *,
    everyone: bool,
    via_hub: bool,
    scope: str,
    yes: bool,
    dry_run: bool,
) -> Exit:
    """Change the files of clients, each shown before."""
    if bool(clients) == everyone:
        raise UsageError("which client is meant?", fix="toolway export CLIENT, or toolway export --all")
    output = session.output
    load(output, session.where.config)  # its secrets are masked from now on
    ours = own_entries(session)
    places = [_place(name, scope) for name in clients] if clients else _installed(scope)
    plans = [
        Plan(place, _planned(place, ours, hub_entry(named_file(session.where)) if via_hub else None))
        for place in places
    ]
    return _made(output, plans, yes=yes, dry_run=dry_run)


def sync(session: Session, *, yes: bool, dry_run: bool) -> Exit:
    """Take what clients have and we do not, then give all of them the same. One that has the hub keeps only that."""
    facts = taken(session, [], yes=yes, dry_run=dry_run)
    ours = own_entries(session)
    plans = [Plan(place, _planned(place, ours, _hub_in(place))) for place in _installed("user")]
    return _made(session.output, plans, yes=yes, dry_run=dry_run, facts=facts)


def own_entries(session: Session) -> dict[str, dict[str, Any]]:
    """Our entries as they are written, of all files that are in force; variables are not filled in."""
    named = named_file(session.where)
    if named is not None:
        return {normalised(name): entry for name, entry in entries_in(named).items()}
    merged = scopes.load(os.environ, Path.cwd())
    found: dict[str, dict[str, Any]] = {}
    for origin in merged.files:
        for entry in read(own(Path(origin.file))).entries:
            if normalised(entry.name) in merged.servers:
                found[normalised(entry.name)] = portable(entry)
    return found


def _place(client: str, scope: str) -> Place:
    """The file of a client that is written. Raises `ConfigError`, or `UsageError`."""
    client_named(client)
    places = [place for place in find(os.environ, Path.cwd()) if place.client == client]
    chosen = [place for place in places if place.scope == scope]
    if not chosen:
        raise UsageError(
            f"{CLIENTS[client].title} has no {scope} file",
            fix=f"choose --scope {' or '.join(sorted({place.scope for place in places}))}",
        )
    return next((place for place in chosen if place.exists), chosen[0])


def _installed(scope: str) -> list[Place]:
    """A file of each client that is on this machine."""
    there = {place.client for place in find(os.environ, Path.cwd()) if place.exists and place.scope != "project"}
    found = [place for place in find(os.environ, Path.cwd()) if place.client in there and place.scope == scope]
    return [_place(client, scope) for client in dict.fromkeys(place.client for place in found)]


def _planned(place: Place, ours: Mapping[str, dict[str, Any]], hub: dict[str, Any] | None) -> Export:
    """All servers, or with `hub` that alone in place of those that are behind it."""
    theirs = {entry.name: identity(portable(entry)) for entry in read(place).entries}
    if hub is None:
        kept, left_out = _without_secrets(place, _under_their_names(ours, theirs))
        export = plan_export(place, kept)
        return replace(export, losses=(*export.losses, *left_out))
    same = {identity(entry) for entry in ours.values()}
    behind = [name for name, key in theirs.items() if key in same]
    return plan_export(place, {HUB: hub}, remove=behind)


def _without_secrets(
    place: Place, entries: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """The entries that bring no secret in plain text into a file that has it not, and what is said of the others."""
    there = place.path.read_text(errors="replace") if place.exists else ""
    kept, left_out = {}, []
    for name, entry in entries.items():
        secrets = {move.secret: move.place for move in moving.plan(name, entry)}
        secrets |= dict.fromkeys(moving.stuck(entry), "args")
        new = sorted({where for secret, where in secrets.items() if secret not in there})
        if new:
            left_out.append(_left_out(name, place, new))
        else:
            kept[name] = entry
    return kept, left_out


def _left_out(name: str, place: Place, where: Sequence[str]) -> Problem:
    return Problem(
        name,
        f"{name} is left out",
        evidence=f"{', '.join(where)} is a secret in plain text, and would be copied into one more file",
        fix=f"give the client the hub instead: toolway export {place.client} --via-hub",
        code="E-CLIENT-SECRET",
        severity="warning",
        file=str(place.path),
    )


def _under_their_names(ours: Mapping[str, dict[str, Any]], theirs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Our entries as a client calls them. A server keeps the name that the client has for it, and never takes that of
    another server of ours."""
    names = {key: name for name, key in theirs.items()}
    found = {names[key]: entry for entry in ours.values() if (key := identity(entry)) in names}
    for name, entry in ours.items():
        if identity(entry) not in names:
            free = (each for each in (name, *(f"{name}-{n}" for n in range(2, 1000))) if each not in found)
            found[next(free)] = entry
    return found


def hub_entry(named: Path | None = None) -> dict[str, Any]:
    """What starts us, with the file that is named, if one is. The whole path, because an application of a desktop has
    another PATH than a shell."""
    program = shutil.which(HUB, path=os.path.dirname(sys.executable)) or shutil.which(HUB)
    words = ["serve", "--stdio", *(["--config", str(named.absolute())] if named is not None else [])]
    if program is not None:
        return {"command": program, "args": words}
    return {"command": sys.executable, "args": ["-m", "toolway.cli", *words]}


def _hub_in(place: Place) -> dict[str, Any] | None:
    """The hub as a client has it, if it has it."""
    return next((portable(entry) for entry in read(place).entries if is_hub(entry.value)), None)


def _made(
    output: Output, plans: Sequence[Plan], *, yes: bool, dry_run: bool, facts: Mapping[str, Any] | None = None
) -> Exit:
    changed = [plan for plan in plans if changes(plan.export.edit)]
    for plan in plans if not output.as_json else ():
        _show(output, plan)
    agreed = bool(changed) and not dry_run and confirm(output, _question(changed), yes)
    backups = {plan.place.path: apply(plan.export.edit) for plan in changed} if agreed else {}
    if output.as_json:
        found = {"taken": facts} if facts is not None else {}
        output.facts({**found, "clients": [_facts(plan, agreed) for plan in plans]})
        return Exit.OK
    for path, backup in backups.items():
        output.prose(f"changed: {tilde(path)}{f', a copy of what it was is {backup}' if backup else ''}", "green")
    if not plans:
        output.say("no client was found on this machine")
    return Exit.OK


def _question(changed: Sequence[Plan]) -> str:
    return "Change this file?" if len(changed) == 1 else f"Change these {len(changed)} files?"


def _show(output: Output, plan: Plan) -> None:
    title = CLIENTS[plan.place.client].title
    if changes(plan.export.edit):
        output.line(title, "bold")
        show_edit(output, plan.export.edit)
    else:
        output.say(f"{title}: {plan.place.path} says so already", "dim")
    output.problems(plan.export.losses, notes=True)


def _facts(plan: Plan, agreed: bool) -> dict[str, Any]:
    edit = plan.export.edit
    return {
        "client": plan.place.client,
        "file": str(plan.place.path),
        "changed": changes(edit) and agreed,
        "diff": edit.diff(),
        "written": list(plan.export.written),
        "losses": [problem_facts(loss) for loss in plan.export.losses],
    }
