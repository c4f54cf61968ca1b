"""`toolway config` and its parts: the files of servers as files."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toolway.cli.ages import ago
from toolway.cli.exits import Exit
from toolway.cli.options import Session
from toolway.cli.output import Output, problem_facts
from toolway.cli.own_file import named_file, version, versions
from toolway.cli.places import load
from toolway.cli.showing import hide_secrets, show_edit, tilde
from toolway.config import jsonc, scopes
from toolway.config.editing.edit import Edit, read_bytes
from toolway.config.editing.write import apply
from toolway.config.formats import OUR_BLOCK, content, entries_of, text_of
from toolway.config.origins import LEVELS, Origin, Value, values


def path(session: Session) -> Exit:
    """The files that are used, and where others would be."""
    output = session.output
    named = named_file(session.where)
    places = scopes.find(os.environ, Path.cwd())
    found = [("named", named)] if named is not None else list(places.all())
    if output.as_json:
        rows = [{"scope": scope, "file": str(file), "exists": file.exists()} for scope, file in found]
        output.facts({"files": rows})
    else:
        for scope, file in found:
            output.line(f"{scope:<9}{file}{'' if file.exists() else '  (not there)'}", "" if file.exists() else "dim")
    return Exit.OK


def show(session: Session, *, origin: bool) -> Exit:
    """Every value that is in force, and with `origin` where it was written. Secrets are not shown."""
    output = session.output
    named = named_file(session.where)
    values = _values_of(named) if named is not None else scopes.load(os.environ, Path.cwd()).values
    if output.as_json:
        output.facts({"values": [_facts(value) for value in values]})
    elif origin:
        rows = [(".".join(value.path), value.shown, tilde(str(value.origin))) for value in values]
        output.table(("value", "is", "from"), rows)
    else:
        for value in values:
            output.line(f"{'.'.join(value.path)} = {value.shown}")
    return Exit.OK


def _values_of(file: Path) -> list[Value]:
    """The values of one file that is named: it has no scope, and nothing else is in force."""
    name = os.fspath(file)
    text = text_of(content(name), name)
    document, lines = jsonc.parse(text, name), jsonc.deep_lines(text, LEVELS)
    root, entries = entries_of(document, name)
    where = Origin("user", name)
    found = [values(entry, (each,), (*root, each), lines, where) for each, entry in entries.items()]
    block = document.value.get(OUR_BLOCK)
    if isinstance(block, dict):
        found.append(values(block, (OUR_BLOCK,), (OUR_BLOCK,), lines, where))
    return [value for each in found for value in each]


def _facts(value: Value) -> dict[str, Any]:
    where = value.origin
    return {
        "path": list(value.path),
        "value": json.loads(value.shown),
        "scope": where.scope,
        "file": where.file,
        "line": where.line,
    }


def validate(session: Session) -> Exit:
    """Whether every entry can be used; nothing is started."""
    output = session.output
    loaded = load(output, session.where.config)
    worst = {problem.severity for problem in loaded.problems}
    if output.as_json:
        output.facts(
            {
                "file": str(loaded.file),
                "valid": "error" not in worst,
                "servers": list(loaded.servers),
                "problems": [problem_facts(p) for p in loaded.problems],
            }
        )
    else:
        output.problems(loaded.problems, notes=True)
        usable = f"{len(loaded.servers)} servers can be used"
        output.line(f"{tilde(loaded.file)}: {usable}", "red" if "error" in worst else "green")
    return Exit.CONFIG if "error" in worst else Exit.OK


def diff(session: Session, number: int) -> Exit:
    """What has changed since an earlier version."""
    file = _one_file(session)
    old = version(file, number)
    change = _edit(session.output, file, old.read(), read_bytes(file) or b"")
    if session.output.as_json:
        session.output.facts({"file": str(file), "version": number, "diff": change.diff()})
    else:
        show_edit(session.output, change)
    return Exit.OK


def history(session: Session) -> Exit:
    """The earlier versions of the file, newest first."""
    output = session.output
    file = _one_file(session)
    found = versions(file)
    now = datetime.now(UTC)
    if output.as_json:
        rows = [{"version": n, "until": each.made.isoformat()} for n, each in enumerate(found, 1)]
        output.facts({"file": str(file), "versions": rows})
    elif found:
        table = [
            (str(n), ago((now - each.made).total_seconds()), f"{len(each.read())} bytes")
            for n, each in enumerate(found, 1)
        ]
        output.table(("version", "replaced", "size"), table, right=("version", "size"))
        output.say("see one: toolway config diff VERSION · go back: toolway config rollback VERSION", "dim")
    else:
        output.say(f"{tilde(file)} was never changed by toolway")
    return Exit.OK


def rollback(session: Session, number: int, *, dry_run: bool) -> Exit:
    """Make the file what it was. That is a change as well, and can be taken back."""
    output = session.output
    file = _one_file(session)
    old = version(file, number)
    now = read_bytes(file)
    change = _edit(output, file, now, old.read())
    if not dry_run:
        apply(change)
    if output.as_json:
        output.facts({"file": str(file), "version": number, "changed": not dry_run, "diff": change.diff()})
        return Exit.OK
    show_edit(output, change)
    if not dry_run:
        output.say(f"{tilde(file)} is what it was; take that back with: toolway config rollback", "green")
    return Exit.OK


def _one_file(session: Session) -> Path:
    """The file whose versions are meant: the one that is named, or that was changed last."""
    named = named_file(session.where)
    if named is not None:
        return named
    places = scopes.find(os.environ, Path.cwd())
    changed = [(found[0].made, file) for _, file in places.all() if (found := versions(file))]
    return max(changed)[1] if changed else places.user


def _edit(output: Output, file: Path, before: bytes | None, after: bytes) -> Edit:
    """A change whose secrets are not shown, those of either version."""
    edit = Edit(file, before, after)
    hide_secrets(output, edit)
    return edit
