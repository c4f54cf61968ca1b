"""An entry as it can stand in any other file: it keeps its working directory, and what hangs on it.

A client starts the servers of a project in the project's directory, whatever the entry says or does not say. Moved to
another file, the entry must say so itself. What a client asks a person for, or keeps among its own secrets, is a secret
of our store afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolway.config.clients.values import Entry, Place
from toolway.config.formats import normalised
from toolway.config.syntaxes import OURS, Piece, Ref, parse, write

_SHELLS: Final = frozenset({"cmd", "cmd.exe"})
_SAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")


def portable(entry: Entry) -> dict[str, Any]:
    """The entry with its directory written out. `toolway import` writes this into our file."""
    return localised(entry.name, entry.value, entry.place)


def localised(name: str, value: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """An entry in our own form, as it is meant in the file of this place."""
    filling = _Filling(name, place.directory)
    moved = {key: filling.fill(item) for key, item in value.items() if key != "extras"}
    if "extras" in value:
        moved["extras"] = value["extras"]
    if moved.get("command") is not None:
        _unwrap(moved)
        if place.directory is not None:
            moved["cwd"] = _directory(moved.get("cwd"), place.directory)
    return moved


def at_home(value: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The same without the directory that goes without saying in this place: what `localised` would add again."""
    left = dict(value)
    if place.directory is not None and left.get("cwd") == str(place.directory):
        del left["cwd"]
    return left


def restored(name: str, value: Mapping[str, Any], written: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """`value` with what says the same as an entry of this place in the words of that entry, both in our own form."""
    return dict(_restored(value, localised(name, written, place), written))


def _restored(value: Any, meant: Any, written: Any) -> Any:
    if value == meant:
        return written
    if isinstance(value, Mapping) and isinstance(meant, Mapping) and isinstance(written, Mapping):
        both = meant.keys() & written.keys()
        return {key: _restored(each, meant[key], written[key]) if key in both else each for key, each in value.items()}
    if isinstance(value, list) and isinstance(meant, list) and isinstance(written, list):
        said = [_restored(*each) for each in zip(value, meant, written, strict=False)]
        return [*said, *value[len(said) :]]
    return value


def _directory(cwd: Any, directory: Path) -> Any:
    if cwd is None:
        return str(directory)
    if not isinstance(cwd, str) or cwd.startswith(("~", "$")):
        return cwd
    return str(directory / cwd)


class _Filling:
    """Texts with what only the client knows put in: the folder of the project, and where a secret is kept now."""

    def __init__(self, name: str, directory: Path | None) -> None:
        self._name = normalised(name)
        self._directory = directory

    def fill(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self.fill(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.fill(item) for item in value]
        if not isinstance(value, str):
            return value
        return write(tuple(self._filled(piece) for piece in parse(value, OURS)), OURS).text

    def _filled(self, piece: Piece) -> Piece:
        if isinstance(piece, str):
            return piece
        if piece.kind in ("input", "secret"):
            return Ref("keyring", f"{self._name}.{_SAFE.sub('-', piece.name)}")
        if piece.kind != "place":
            return piece
        known: dict[str, Piece] = {"userHome": Ref("env", "HOME"), "pathSeparator": "/", "/": "/"}
        if self._directory is not None:
            known |= {"workspaceFolder": str(self._directory), "workspaceFolderBasename": self._directory.name}
        return known.get(piece.name, piece)


def _unwrap(value: dict[str, Any]) -> None:
    """`cmd /c npx …` is what Windows needs to find a script; we find scripts ourselves."""
    args = value.get("args")
    if str(value["command"]).lower() not in _SHELLS or not isinstance(args, list) or len(args) < 2:
        return
    if str(args[0]).lower() == "/c":
        value["command"], value["args"] = args[1], args[2:]
