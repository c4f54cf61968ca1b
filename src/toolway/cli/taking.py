"""`toolway init` and `toolway import`: what clients have becomes entries of our own file. No client's is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolway.cli.changing import allowed_in, confirm, entries_in, make_own, written_to
from toolway.cli.exits import Exit, UsageError
from toolway.cli.moving import moved_secrets, plain_secrets
from toolway.cli.options import Session
from toolway.cli.output import Output, problem_facts
from toolway.cli.own_file import file_of_scope
from toolway.cli.showing import hide_secrets, tilde
from toolway.config.addresses import names_inside
from toolway.config.clients import CLIENTS, Entry, client_named, find, portable, read
from toolway.config.formats import normalised
from toolway.config.mask import masked
from toolway.config.problems import Problem

Fate = Literal["new", "known", "duplicate"]


@dataclass(frozen=True)
class Found:
    """One server of a client, and what becomes of it."""

    name: str
    client: str
    entry: dict[str, Any] = field(repr=False)
    fate: Fate
    source: str  # file and line
    note: str = ""


def take(
    session: Session,
    clients: Sequence[str],
    *,
    project: bool,
    scope: str | None,
    plain: bool,
    yes: bool,
    dry_run: bool,
    beginning: bool = False,
) -> Exit:
    """Write what is new to one of our files."""
    facts = taken(session, clients, project=project, scope=scope, plain=plain, yes=yes, dry_run=dry_run)
    output = session.output
    if output.as_json:
        output.facts(facts)
    elif beginning and not facts["found"]:
        output.say("add one yourself: toolway add NAME -- COMMAND …, or toolway add URL")
    return Exit.OK


def taken(
    session: Session,
    clients: Sequence[str],
    *,
    project: bool = False,
    scope: str | None = None,
    plain: bool = False,
    yes: bool,
    dry_run: bool,
) -> dict[str, Any]:
    """The same, and what was found and done. It is told here as well, unless JSON is wanted."""
    output = session.output
    file = file_of_scope(session.where, scope)
    found, problems = look(clients, entries_in(file), project=project)
    new = {each.name: each.entry for each in found if each.fate == "new"}
    if not output.as_json:
        _print(output, found)
        output.problems(problems)
    if new and not plain and not dry_run and _wants_moving(output, new, yes):
        new = moved_secrets(output, new)
    inside = names_inside(new, allowed_in(file))
    change = written_to(file, new).edit
    hide_secrets(output, change)
    done = make_own(output, change, dry_run=dry_run)
    if new and not dry_run and not output.as_json:
        output.prose(f"{_count(len(new))} written to {tilde(file)}; no file of a client was changed", "green")
        output.problems(inside)
        output.say("see whether they work: toolway doctor")
    rows = [{"server": f.name, "client": f.client, "fate": f.fate, "source": f.source, "note": f.note} for f in found]
    return {"found": rows, "problems": [problem_facts(p) for p in (*problems, *inside)], **done}


def look(clients: Sequence[str], known: Mapping[str, Any], *, project: bool) -> tuple[list[Found], list[Problem]]:
    """What the files of these clients have, or of all. `known` are the entries that we have."""
    for name in clients:
        client_named(name)  # raises where there is none
    scopes = ("user", "local", "managed", *(["project"] if project else []))
    chosen = [
        p for p in find(os.environ, Path.cwd()) if p.exists and p.scope in scopes and p.client in (clients or CLIENTS)
    ]
    imported = [read(place) for place in chosen]
    sorting = _Sorting(known)
    found = [sorting.judged(entry) for each in imported for entry in each.entries if not is_hub(entry.value)]
    return found, [problem for each in imported for problem in each.problems]


class _Sorting:
    """Entries come one after the other. Of several that are the same server the first is taken, with what the others
    say besides; where they contradict each other they are two servers, for instance with two accounts."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._names = {normalised(name) for name in known}
        self._seen: list[tuple[str, str, dict[str, Any]]] = [
            (normalised(name), "", dict(entry)) for name, entry in known.items()
        ]

    def judged(self, entry: Entry) -> Found:
        value, client = portable(entry), entry.place.client
        source = f"{entry.place.path}:{entry.line}" if entry.line else str(entry.place.path)
        name, note = normalised(entry.name), ""
        for same, where, first in self._seen:
            if identity(first) == identity(value) and not _contradict(first, value):
                if not where:
                    return Found(same, client, value, "known", source, f"it is {same} of our own file")
                more = _completed(first, value)
                note = f"it is {same} of {CLIENTS[where].title}{', which gets its ' + ', '.join(more) if more else ''}"
                return Found(same, client, value, "duplicate", source, note)
        if name in self._names:
            name, note = self._free(f"{name}-{client}"), f"another server is called {name}"
        self._names.add(name)
        self._seen.append((name, client, value))
        return Found(name, client, value, "new", source, note)

    def _free(self, name: str) -> str:
        return next(each for each in (name, *(f"{name}-{n}" for n in range(2, 1000))) if each not in self._names)


def _contradict(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether they give one name two values. A reference to a secret agrees with every value: nobody looks it up."""
    for field_ in ("env", "headers"):
        one, other = (entry.get(field_) or {} for entry in (first, second))
        for name in one.keys() & other.keys():
            if one[name] != other[name] and not any("${" in str(text) for text in (one[name], other[name])):
                return True
    return False


def _completed(first: dict[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Give an entry what another one of the same server has besides; the names of that."""
    added: list[str] = []
    for field_ in ("env", "headers"):
        more = {
            name: text for name, text in (second.get(field_) or {}).items() if name not in (first.get(field_) or {})
        }
        if more:
            first[field_] = {**(first.get(field_) or {}), **more}
            added += more
    return added


def identity(entry: Mapping[str, Any]) -> str:
    """What makes two entries the same server: the address, or the command with its arguments."""
    url = entry.get("url")
    if isinstance(url, str):
        return url.rstrip("/").lower()
    command = os.path.basename(str(entry.get("command")))
    args = [arg for arg in entry.get("args") or [] if arg not in ("-y", "--yes")]
    return json.dumps([command, args], default=str)


def is_hub(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is ourselves, as `export --via-hub` writes it."""
    args = entry.get("args") or []
    ours = os.path.basename(str(entry.get("command"))) == "toolway" or "toolway.cli" in args
    return ours and "serve" in args and "--stdio" in args


def _wants_moving(output: Output, new: Mapping[str, Mapping[str, Any]], yes: bool) -> bool:
    moves = plain_secrets(new)
    if not moves:
        return False
    number = sum(len(each) for each in moves.values())
    what = "1 token stands" if number == 1 else f"{number} tokens stand"
    output.say(
        f"{what} in plain text: {', '.join(f'{n} ({m.place})' for n, ms in moves.items() for m in ms)}", "yellow"
    )
    if yes or output.as_json:
        return True
    try:
        return confirm(output, "Keep them in the store of secrets instead of our file?", yes)
    except UsageError:
        return True  # nobody can be asked, and a token is not copied into one more file


def _print(output: Output, found: Sequence[Found]) -> None:
    if not found:
        output.say("no server was found in the files of clients")
        return
    rows = [(f.name, CLIENTS[f.client].title, f.fate, f.note or _way(f.entry)) for f in found]
    output.table(("server", "client", "is", "runs"), rows, cut=True)


def _way(entry: Mapping[str, Any]) -> str:
    entry = masked(entry)
    return str(entry.get("url") or " ".join([str(entry.get("command")), *map(str, entry.get("args") or [])]))


def _count(number: int) -> str:
    return "1 server is" if number == 1 else f"{number} servers are"
