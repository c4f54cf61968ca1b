"""The last known lists on disk, so that they can be served before a server has answered.

One file per server, named by what identifies the server, so that another server under the same name starts afresh.
A file that cannot be read is a file that is not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from toolway.model import Era

_FORMAT: Final = 1
_MAX_FILE: Final = 64 * 1024 * 1024


class Stored(msgspec.Struct, frozen=True):
    """What is remembered of one server."""

    format: int
    era: Era
    lists: dict[str, list[Any]]


@runtime_checkable
class ListStore(Protocol):
    """Where lists are kept that are known already when a server is added."""

    def load(self, server: str, identity: str) -> Stored | None: ...

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """Called in a thread."""
        ...


class Store:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, server: str, identity: str) -> Stored | None:
        try:
            path = self._path(server, identity)
            if path.stat().st_size > _MAX_FILE:
                return None
            stored = msgspec.json.decode(path.read_bytes(), type=Stored)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return stored if stored.format == _FORMAT else None

    def kept_at(self, server: str, identity: str) -> float | None:
        """When the lists were saved, in seconds since 1970; None where there are none."""
        try:
            return self._path(server, identity).stat().st_mtime
        except OSError:
            return None

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """Replace the file at once or not at all. A disk that refuses costs the memory, not the server."""
        data = msgspec.json.encode(Stored(_FORMAT, era, dict(lists)))
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(name, self._path(server, identity))
            except OSError:
                os.unlink(name)
                raise

    def _path(self, server: str, identity: str) -> Path:
        return self._folder / f"{server}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
