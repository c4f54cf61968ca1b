"""Changes of files as they are shown: before they are made, and without the secrets in them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from toolway.cli.output import Output
from toolway.config.editing.edit import Edit
from toolway.config.mask import masker
from toolway.config.spec import Server
from toolway.errors import ConfigError

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def tilde(path: str | os.PathLike[str]) -> str:
    """A path as people write it: with `~` for the home."""
    text, home = os.fspath(path), os.environ.get("HOME", "").rstrip("/")
    return f"~{text[len(home) :]}" if home and text.startswith(f"{home}/") else text


def show_edit(output: Output, edit: Edit) -> None:
    """The change as `diff -u` shows it."""
    if not edit.changed:
        output.say(f"{edit.path}: nothing changes", "dim")
    for line in edit.diff().splitlines():
        output.line(line, "bold" if line.startswith(("+++", "---")) else _STYLES.get(line[:1], ""))


def hide_secrets(output: Output, edit: Edit, others: Iterable[Server] = ()) -> None:
    """From now on no secret of either version is shown."""
    from toolway.config.formats import parse

    servers = list(others)
    for data in (edit.before, edit.after):
        try:
            servers += parse((data or b"{}").decode(errors="replace")).servers.values()
        except ConfigError:
            continue  # it has no servers that we could read, and is shown to nobody but its owner
    output.mask = masker(servers)
