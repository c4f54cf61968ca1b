"""Documents that were fetched before, on disk: one file each, for its owner alone. Whatever fails here is no matter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from toolway.openapi.reading import MAX_BYTES

MOST: Final = 64  # documents; the ones that were used least lately go first
_LONGEST: Final = 1000  # characters of what a server calls its version


class Kept(NamedTuple):
    """A document, and by what its server knows this version of it."""

    data: bytes
    etag: str = ""
    modified: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """The headers that ask for another version only."""
        if _sendable(self.etag):
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.modified} if _sendable(self.modified) else {}


class Shelf:
    """The place of one document."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._file = folder / f"{sha256(url.encode()).hexdigest()}.doc"

    @classmethod
    def of(cls, environ: Mapping[str, str], url: str) -> Shelf | None:
        cache = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if "HOME" in environ else "")
        return cls(Path(cache) / "toolway" / "openapi", url) if cache else None

    def load(self) -> Kept | None:
        try:
            with self._file.open("rb") as file:
                head, data = file.readline(4 * _LONGEST), file.read(MAX_BYTES + 1)
            etag, modified, digest = msgspec.json.decode(head, type=tuple[str, str, str])
            if sha256(data).hexdigest() != digest:
                return None  # torn, or somebody else's
            os.utime(self._file)
            return Kept(data, etag, modified)
        except (OSError, ValueError):
            return None

    def save(self, kept: Kept) -> None:
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            head = msgspec.json.encode([kept.etag[:_LONGEST], kept.modified[:_LONGEST], sha256(kept.data).hexdigest()])
            new = self._file.with_suffix(f".{os.getpid()}")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(head + b"\n" + kept.data)
            new.replace(self._file)
            self._make_room()

    def _make_room(self) -> None:
        files = sorted(self._folder.glob("*.doc"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[MOST:]:
            file.unlink(missing_ok=True)


def _sendable(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable() and len(value) <= _LONGEST
