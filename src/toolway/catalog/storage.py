"""Storage of each server's last known lists on disk.

With them, the lists are available before the server answers.

One file per server. Its name includes the server's fingerprint, so that another server under the same name starts
without old lists. An unreadable file counts as missing.
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

from toolway.types import Era

_FORMAT_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024


class StoredLists(msgspec.Struct, frozen=True):
    """Stored tool, prompt, resource and template lists of one server, and its protocol era."""

    format: int
    era: Era
    lists: dict[str, list[Any]]


@runtime_checkable
class CatalogStorage(Protocol):
    """Storage of each server's last known lists, which are loaded when the server is added."""

    def load(self, server: str, identity: str) -> StoredLists | None: ...

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """Save the lists of a server under its fingerprint (`identity`). Called in a thread."""
        ...


class FileCatalogStorage:
    """Catalog storage in a folder, one JSON file per server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, server: str, identity: str) -> StoredLists | None:
        try:
            path = self._path(server, identity)
            if path.stat().st_size > _MAX_FILE_BYTES:
                return None
            stored = msgspec.json.decode(path.read_bytes(), type=StoredLists)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return stored if stored.format == _FORMAT_VERSION else None

    def saved_at(self, server: str, identity: str) -> float | None:
        """Return the Unix time when the lists of a server were saved; None if there are none."""
        try:
            return self._path(server, identity).stat().st_mtime
        except OSError:
            return None

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """Replace the server's file atomically. A disk error is ignored: lists are fetched again."""
        data = msgspec.json.encode(StoredLists(_FORMAT_VERSION, era, dict(lists)))
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
