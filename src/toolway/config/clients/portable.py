"""Converts client entries to portable ones, which mean the same in any other file.

A client starts a project's servers in the project directory. In another file, the entry needs an explicit `cwd`. Inputs
that a client prompts for, and secrets in the client's store, become references to our secret store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolway.config.clients.models import ClientConfigFile, ClientEntry
from toolway.config.loader import normalize_name
from toolway.config.variables import TOOLWAY_SYNTAX, TextPiece, VariableRef, parse_variables, render_variables

_SHELLS: Final = frozenset({"cmd", "cmd.exe"})
_UNSAFE_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]+")


def to_portable(entry: ClientEntry) -> dict[str, Any]:
    """Return a client's server entry in a form that means the same in any other file.

    Its working directory is explicit, and secrets refer to our secret store. `clients import` writes this form to our
    file.
    """
    return to_explicit(entry.name, entry.value, entry.file)


def to_explicit(name: str, value: Mapping[str, Any], file: ClientConfigFile) -> dict[str, Any]:
    """Return a server entry, in our own file's form, with explicit `cwd` and without client-specific references.

    `${workspaceFolder}` becomes a path. Inputs and secrets of the client refer to our secret store.
    """
    replacer = _ReferenceReplacer(name, file.directory)
    explicit = {key: replacer.replace(item) for key, item in value.items() if key != "extras"}
    if "extras" in value:
        explicit["extras"] = value["extras"]
    if explicit.get("command") is not None:
        _unwrap_cmd(explicit)
        if file.directory is not None:
            explicit["cwd"] = _resolve_cwd(explicit.get("cwd"), file.directory)
    if explicit.get("envFile") is not None and file.directory is not None:
        explicit["envFile"] = _resolve_cwd(explicit["envFile"], file.directory)
    return explicit


def drop_default_cwd(value: Mapping[str, Any], file: ClientConfigFile) -> dict[str, Any]:
    """Return the entry without its `cwd`, if the client starts all servers of this file in that directory anyway."""
    entry = dict(value)
    if file.directory is not None and entry.get("cwd") == str(file.directory):
        del entry["cwd"]
    return entry


def restore_spelling(
    name: str, value: Mapping[str, Any], raw: Mapping[str, Any], file: ClientConfigFile
) -> dict[str, Any]:
    """Return the entry `value`, spelled like the existing entry `raw` wherever both mean the same.

    So `${workspaceFolder}` in the file is not replaced with its path. Both entries have our config file's keys
    (`models.py`).
    """
    return dict(_restore_value(value, to_explicit(name, raw, file), raw))


def _restore_value(value: Any, explicit: Any, raw: Any) -> Any:
    if value == explicit:
        return raw
    if isinstance(value, Mapping) and isinstance(explicit, Mapping) and isinstance(raw, Mapping):
        both = explicit.keys() & raw.keys()
        return {
            key: _restore_value(each, explicit[key], raw[key]) if key in both else each for key, each in value.items()
        }
    if isinstance(value, list) and isinstance(explicit, list) and isinstance(raw, list):
        restored_items = [_restore_value(*each) for each in zip(value, explicit, raw, strict=False)]
        return [*restored_items, *value[len(restored_items) :]]
    return value


def _resolve_cwd(cwd: Any, directory: Path) -> Any:
    if cwd is None:
        return str(directory)
    if not isinstance(cwd, str) or cwd.startswith(("~", "$")):
        return cwd
    return str(directory / cwd)


class _ReferenceReplacer:
    """Replaces client-specific references in an entry: the project folder, inputs, and secrets."""

    def __init__(self, name: str, directory: Path | None) -> None:
        self._name = normalize_name(name)
        self._directory = directory

    def replace(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self.replace(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.replace(item) for item in value]
        if not isinstance(value, str):
            return value
        return render_variables(
            tuple(self._replace_piece(piece) for piece in parse_variables(value, TOOLWAY_SYNTAX)), TOOLWAY_SYNTAX
        ).text

    def _replace_piece(self, piece: TextPiece) -> TextPiece:
        if isinstance(piece, str):
            return piece
        if piece.kind in ("input", "secret"):
            return VariableRef("keyring", f"{self._name}.{_UNSAFE_CHARS.sub('-', piece.name)}")
        if piece.kind != "place":
            return piece
        known: dict[str, TextPiece] = {"userHome": VariableRef("env", "HOME"), "pathSeparator": "/", "/": "/"}
        if self._directory is not None:
            known |= {"workspaceFolder": str(self._directory), "workspaceFolderBasename": self._directory.name}
        return known.get(piece.name, piece)


def _unwrap_cmd(value: dict[str, Any]) -> None:
    """Replace the command `cmd /c npx …` in an entry with `npx …`.

    Windows clients need `cmd` to find a script. Toolway finds scripts itself.
    """
    args = value.get("args")
    if str(value["command"]).lower() not in _SHELLS or not isinstance(args, list) or len(args) < 2:
        return
    if str(args[0]).lower() == "/c":
        value["command"], value["args"] = args[1], args[2:]
