"""Making changes of files: shown, asked about where they are somebody else's, made at once or not at all, and told."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.cli.exits import UsageError
from toolway.cli.output import Output
from toolway.cli.showing import show_edit
from toolway.config.approvals import open_approvals
from toolway.config.clients import own_place, plan_export, read
from toolway.config.clients.values import Export, KeyPath, Place
from toolway.config.editing.edit import Edit
from toolway.config.editing.write import apply
from toolway.config.formats import OUR_BLOCK, ROOT_KEYS
from toolway.config.formats import read as read_file
from toolway.config.scopes import find
from toolway.errors import ConfigError


def own(file: Path) -> Place:
    """One of our files as a place, with its servers where they are in it."""
    from toolway.config.editing.documents import Document

    value = Document(file).value
    keys = value.keys() if isinstance(value, dict) else set()
    root: KeyPath = next(((key,) for key in ROOT_KEYS if key in keys), ("mcpServers",))
    if not keys & set(ROOT_KEYS) and any(key != OUR_BLOCK and not key.startswith("$") for key in keys):
        root = ()  # a bare map of servers
    place = own_place(file, root)
    return place if not _is_of_project(file) else replace(place, directory=find(os.environ, Path.cwd()).root)


def entries_in(file: Path) -> dict[str, Any]:
    """The entries of one of our files as they are written, in our own form. Raises `ConfigError`."""
    imported = read(own(file))
    return {entry.name: dict(entry.value) for entry in imported.entries}


def allowed_in(file: Path) -> Addresses:
    """What one of our files allows, together with the user's own."""
    allowed = PUBLIC
    for each in {find(os.environ, Path.cwd()).user, file}:
        if each.is_file():
            with suppress(ConfigError):
                allowed = allowed.joined(read_file(each).addresses)
    return allowed


def written_to(file: Path, servers: dict[str, Any], remove: Sequence[str] = ()) -> Export:
    """A change of one of our files. Raises `ConfigError`."""
    return plan_export(own(file), servers, remove)


def make_own(output: Output, edit: Edit, *, dry_run: bool) -> dict[str, Any]:
    """Change one of our own files. What a person changed himself needs no approval of its own."""
    approvals = open_approvals(os.environ)
    ours = edit.before is None or approvals.approved(edit.path, edit.before)
    making = changes(edit) and not dry_run
    if not output.as_json and (dry_run or output.verbose):
        show_edit(output, edit)
    backup = apply(edit) if making else None
    if making and ours and _is_of_project(edit.path):
        approvals.approve(edit.path, edit.after)
    return {
        "file": str(edit.path),
        "changed": making,
        "diff": edit.diff(),
        "backup": str(backup) if backup is not None else None,
    }


def changes(edit: Edit) -> bool:
    """Whether there is something to write: nothing in a file that is not there is nothing."""
    return edit.changed and bool(edit.before is not None or edit.after)


def _is_of_project(file: Path) -> bool:
    return any(os.path.realpath(file) == os.path.realpath(each) for each in find(os.environ, file.parent).project)


def confirm(output: Output, question: str, yes: bool) -> bool:
    """Whether a person wants it. Raises `UsageError` where nobody can be asked and nothing was said before."""
    if yes:
        return True
    if output.as_json or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(f"nobody can be asked: {question}", fix="say it before: --yes; or look first: --dry-run")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
