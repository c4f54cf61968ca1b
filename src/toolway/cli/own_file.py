"""The files of servers that are ours to change, and what they held before."""

from __future__ import annotations

import os
from pathlib import Path

from toolway.catalog.resolve import check_server
from toolway.cli.exits import UsageError
from toolway.cli.meant import did_you_mean
from toolway.cli.options import Where
from toolway.config import jsonc, scopes
from toolway.config.editing import backups
from toolway.config.editing.backups import Backup
from toolway.config.find import VARIABLE
from toolway.config.formats import content, entries_of, normalised, text_of
from toolway.errors import NotFound

SCOPES = ("user", "project", "local")


def named_file(where: Where) -> Path | None:
    """The one file that is meant, where one is named."""
    if where.config is not None:
        return where.config
    return Path(os.environ[VARIABLE]).expanduser() if os.environ.get(VARIABLE) else None


def file_of_scope(where: Where, scope: str | None) -> Path:
    """The file that a new entry is written to: the one that is named, or that of a scope, which is the user's own
    unless it is said. Raises `UsageError`."""
    named = named_file(where)
    if named is not None and scope is None:
        return named
    if scope not in (None, *SCOPES):
        raise UsageError(
            f"{scope!r} is no scope", fix=did_you_mean(str(scope), SCOPES) or f"one of {', '.join(SCOPES)}"
        )
    places = scopes.find(os.environ, Path.cwd())
    if scope == "project":
        return places.project[-1] if places.project else places.root / ".mcp.json"
    return places.local if scope == "local" else places.user


def file_of_server(where: Where, name: str) -> Path:
    """The file whose entry of this name is in force. Raises `NotFound`, or `ConfigError`."""
    named = named_file(where)
    if named is not None:
        return named
    merged = scopes.load(os.environ, Path.cwd())
    for origin in reversed(merged.files):  # what goes before the others comes last; an entry need not be usable
        _, entries = entries_of(jsonc.parse(text_of(content(origin.file), origin.file), origin.file), origin.file)
        if any(name in (written, normalised(written)) for written in entries):
            return Path(origin.file)
    if merged.broken:
        raise merged.broken[0]
    check_server(merged.servers, name)
    raise NotFound(f"no file has an entry {name!r}", server=name)


def versions(file: Path) -> list[Backup]:
    """What the file was before each change that was made by us, newest first."""
    return backups.of(Path(os.path.realpath(file)), backups.folder(os.environ))


def version(file: Path, number: int) -> Backup:
    """The version before the last change is number 1. Raises `NotFound`."""
    found = versions(file)
    if not 0 < number <= len(found):
        many = f"there are {len(found)}" if found else "it was never changed by toolway"
        raise NotFound(
            f"{file} has no earlier version {number}", evidence=many, fix="see them all: toolway config history"
        )
    return found[number - 1]
