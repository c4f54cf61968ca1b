"""Storage of each server's last known lists of tools and other items on disk.

With them, the lists are available before the server answers.

There is one file per server. Its name depends on the server's fingerprint, so another server with the same name
starts without old lists. An unreadable file counts as missing.

Other programs can write to the cache folder. Even a server that cannot read Toolway's own folders can do so, if it
runs as the same user. So each file begins with a MAC that covers its content and the server that it belongs to. The
MAC's key is in the state folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from toolway.secrets.encrypted_file import read_or_create, read_private
from toolway.types import Era

_FORMAT_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_KEY_BYTES: Final = 32
_MAC_CHARS: Final = 64
LATE_MEMORY_S: Final = 300.0  # seconds for which a server that kept a list waiting counts as late


class ForgedListsError(Exception):
    """Raised when stored lists have an invalid MAC, so Toolway did not write them."""


class StoredLists(msgspec.Struct, frozen=True):
    """Stored tool, prompt, resource and template lists of one server, and its protocol era."""

    format: int
    era: Era
    lists: dict[str, list[Any]]


@runtime_checkable
class CatalogStorage(Protocol):
    """A storage for each server's last known lists (tools, prompts …), loaded when the server is added."""

    def load(self, server: str, identity: str) -> StoredLists | None:
        """Return the stored lists (tools, prompts …) of a server with this fingerprint (`identity`), or None if none.

        May raise `ForgedListsError`, if the storage can detect forged lists.
        """
        ...

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """Save a server's lists (tools, prompts …) under its fingerprint (`identity`). Called in a thread."""
        ...


class FileCatalogStorage:
    """Catalog storage in a folder, one file per server: a MAC, a line break and JSON."""

    def __init__(self, folder: Path, key_file: Path) -> None:
        """Create the storage for tool lists. A MAC authenticates each file, with the key in `key_file`.

        The key file is created when the first lists are stored.
        """
        self._folder = folder
        self._key_file = key_file
        self._key = b""

    def load(self, server: str, identity: str) -> StoredLists | None:
        """Return the stored lists of a server, or None if there are none. Raises `ForgedListsError` for a wrong MAC."""
        try:
            key = self._load_key(create=False)
            path = self._path(key, server, identity)
            if path.stat().st_size > _MAX_FILE_BYTES:
                return None
            mac, _, data = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if not compare_digest(mac, self._mac(key, server, identity, data)):
            raise ForgedListsError
        try:
            stored = msgspec.json.decode(data, type=StoredLists)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return stored if stored.format == _FORMAT_VERSION else None

    def saved_at(self, server: str, identity: str) -> float | None:
        """Return the Unix time when the lists of a server were saved, or None if no lists are stored."""
        try:
            return self._path(self._load_key(create=False), server, identity).stat().st_mtime
        except OSError:
            return None

    def save(self, server: str, identity: str, era: Era, lists: Mapping[str, list[Any]]) -> None:
        """Store a server's lists by replacing its file. A disk error is ignored, because lists can be fetched again."""
        data = msgspec.json.encode(StoredLists(_FORMAT_VERSION, era, dict(lists)))
        with contextlib.suppress(OSError):
            key = self._load_key(create=True)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            import tempfile  # slow to import

            handle, name = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines((self._mac(key, server, identity, data), b"\n", data))
                os.replace(name, self._path(key, server, identity))
            except OSError:
                os.unlink(name)
                raise
            self._late_path(server, identity).unlink(missing_ok=True)

    def mark_late(self, server: str, identity: str) -> None:
        """Remember for some minutes that a list had to wait for a server. Disk errors are ignored."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._late_path(server, identity).touch(mode=0o600)

    def late_for(self, server: str, identity: str, now: float) -> float:
        """Return for how many seconds after `now` a server still counts as late, or 0 if it does not."""
        try:
            marked_at = self._late_path(server, identity).stat().st_mtime
        except OSError:
            return 0.0
        return max(0.0, LATE_MEMORY_S - max(0.0, now - marked_at))

    def _late_path(self, server: str, identity: str) -> Path:
        """Return the path of a late server's mark, which is not signed: a forged one only shortens a wait."""
        return self._folder / f"{server}-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.late"

    def _load_key(self, *, create: bool) -> bytes:
        """Read the key for the MACs. If `create`, create a missing key. Raises `OSError` without a valid key."""
        if not self._key:
            key = (
                read_or_create(self._key_file, lambda: os.urandom(_KEY_BYTES))
                if create
                else read_private(self._key_file)
            )
            if len(key) != _KEY_BYTES:
                raise OSError(f"{self._key_file} has not {_KEY_BYTES} bytes")
            self._key = key
        return self._key

    def _path(self, key: bytes, server: str, identity: str) -> Path:
        """Return the path of the file with the stored lists of a server.

        The path depends on the key, so programs with other state folders use other files.
        """
        return self._folder / f"{server}-{hashlib.blake2b(identity.encode(), key=key, digest_size=8).hexdigest()}.lists"

    @staticmethod
    def _mac(key: bytes, server: str, identity: str, data: bytes) -> bytes:
        mac = hashlib.blake2b(msgspec.json.encode([server, identity]), key=key, digest_size=_MAC_CHARS // 2)
        mac.update(data)
        return mac.hexdigest().encode()
