"""`toolway get|rm|enable|disable|edit`: one entry of a file of servers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from toolway.catalog.resolve import check_server
from toolway.cli.changing import entries_in, make_own, own
from toolway.cli.exits import Exit, UsageError
from toolway.cli.known import kept_lists
from toolway.cli.options import Session
from toolway.cli.own_file import file_of_scope, file_of_server
from toolway.cli.places import load
from toolway.cli.showing import hide_secrets, show_edit, tilde
from toolway.config.editing.documents import Document
from toolway.config.editing.edit import Edit, read_bytes
from toolway.config.formats import normalised, parse
from toolway.config.mask import masked
from toolway.errors import ConfigError

_TAKE_A_LINE = ("vi", "vim", "nvim", "nano", "emacs", "micro", "joe")  # editors that begin at `+LINE`


def get(session: Session, name: str) -> Exit:
    """The entry as its file has it, without secrets, and where it stands."""
    output = session.output
    loaded = load(output, session.where.config)
    check_server(loaded.servers, name)
    file = file_of_server(session.where, name)
    written, line = _written(file, name)
    shown = masked(entries_in(file)[written])
    kept = kept_lists({name: loaded.servers[name]})
    tools = [tool.ref.tool for tool in kept.catalog.tools(name)]
    if output.as_json:
        output.facts({"server": name, "file": str(file), "line": line, "entry": shown, "tools": tools})
        return Exit.OK
    output.line(f"{name}  {tilde(file)}:{line}" if line else f"{name}  {tilde(file)}", "bold")
    output.line(json.dumps(shown, ensure_ascii=False, indent=2))
    if tools:
        output.say(f"{len(tools)} tools: toolway tools -s {name}", "dim")
    output.say(f"change it: toolway edit {name} · remove it: toolway rm {name}", "dim")
    return Exit.OK


def remove(session: Session, name: str, *, dry_run: bool) -> Exit:
    """Take an entry out of its file."""
    file = file_of_server(session.where, name)
    written, _ = _written(file, name)
    document = Document(file)
    document.drop((*own(file).root, written))
    return _made(session, document, f"{name} is removed from {tilde(file)}", dry_run)


def switch(session: Session, name: str, *, on: bool, dry_run: bool) -> Exit:
    """Let a server take part, or not."""
    file = file_of_server(session.where, name)
    written, _ = _written(file, name)
    document = Document(file)
    path = (*own(file).root, written)
    if not isinstance(document.at(path), dict):
        raise ConfigError(
            f"the entry of {name} is no object, so nothing can be added to it",
            file=str(file),
            fix=f"toolway edit {name}",
            code="E-CONFIG-KEY",
        )
    if "disabled" in document.at(path):
        document.drop((*path, "disabled"))
    if on and "enabled" in document.at(path):
        document.drop((*path, "enabled"))
    elif not on:
        document.put((*path, "enabled"), False)
    return _made(session, document, f"{name} {'takes part' if on else 'does not take part any more'}", dry_run)


def edit(session: Session, name: str | None, *, scope: str | None) -> Exit:
    """Open the file in an editor. What comes out is used if it can be read; else the file stays as it was."""
    output = session.output
    file = file_of_server(session.where, name) if name else file_of_scope(session.where, scope)
    line = _written(file, name)[1] if name else None
    before = read_bytes(file)
    after = _edited(before or b'{\n  "mcpServers": {}\n}\n', file, line)
    change = Edit(file, before, after)
    hide_secrets(output, change)
    problems = parse(after.decode(errors="replace"), str(file)).problems  # raises where nothing of it can be used
    facts = make_own(output, change, dry_run=False)
    if output.as_json:
        output.facts(facts)
    elif not change.changed:
        output.say("nothing was changed")
    else:
        show_edit(output, change)
        output.problems(problems)
        output.say(f"{tilde(file)} is changed; take it back with: toolway config rollback", "green")
    return Exit.OK


def _written(file: Path, name: str) -> tuple[str, int | None]:
    """How the file spells a server's name, and where its entry stands."""
    document = Document(file)
    root = own(file).root
    lines = document.lines(root)
    for written in document.at(root) or ():
        if name in (written, normalised(written)):
            return written, lines.get(written)
    raise ConfigError(f"{file} has no entry {name!r}", file=str(file), fix="see them all: toolway ls")


def _made(session: Session, document: Document, done: str, dry_run: bool) -> Exit:
    output = session.output
    change = document.edit()
    hide_secrets(output, change)
    facts: dict[str, Any] = make_own(output, change, dry_run=dry_run)
    if output.as_json:
        output.facts(facts)
    elif not change.changed:
        output.say("it is so already")
    elif not dry_run:
        output.say(f"{done}; take it back with: toolway config rollback", "green")
    return Exit.OK


def _edited(data: bytes, file: Path, line: int | None) -> bytes:
    """What a person makes of it in an editor. Raises `UsageError`."""
    words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not words:
        raise UsageError(
            "no editor is named", evidence="neither VISUAL nor EDITOR is set", fix="EDITOR=nano toolway edit"
        )
    at = [f"+{line}"] if line and os.path.basename(words[0]) in _TAKE_A_LINE else []
    with tempfile.TemporaryDirectory() as folder:  # only its owner can look into it
        copy = Path(folder) / file.name
        copy.write_bytes(data)
        try:
            ended = subprocess.run([*words, *at, str(copy)], check=False)
        except OSError as exc:
            raise UsageError(f"{words[0]} cannot be started", evidence=str(exc), fix="set EDITOR") from None
        if ended.returncode != 0:
            raise UsageError(f"{words[0]} ended with {ended.returncode}", evidence="nothing was changed")
        return copy.read_bytes()
