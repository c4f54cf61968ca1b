"""Last answers of registries, in the cache folder: fresh for a day, kept for 30 days, at most 20 MB.

Each file has the URL, the digest of the answer, and the answer; its time is when it was stored. Errors are ignored,
because the cache is optional.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from toolway._os import O_PRIVATE, cache_folder

FRESH_S: Final = 24 * 3600.0
KEPT_S: Final = 30 * 24 * 3600.0
MAX_BYTES: Final = 20 * 1000 * 1000
_MAX_HEAD_BYTES: Final = 8192


class CachedAnswer(NamedTuple):
    """An answer that was stored, and its age in seconds."""

    url: str
    body: bytes
    age: float


class AnswerCache:
    """Stored answers, one private file per URL."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # None: nothing is stored

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> AnswerCache:
        """Return the cache of this user. The folder is created when something is stored."""
        cache = cache_folder(environ)
        return cls(cache / "registry" if cache is not None else None)

    def load(self, url: str) -> CachedAnswer | None:
        """Return the last answer to a GET of `url`, if it is not older than 30 days."""
        found = _read(self._path(url)) if self._folder is not None else None
        return found if found is not None and found.url == url else None

    def iter_answers(self, prefix: str) -> Iterator[CachedAnswer]:
        """Yield all answers to URLs that begin with `prefix`, the newest first."""
        for path in self._newest_first():
            found = _read(path, prefix)
            if found is not None:
                yield found

    def save(self, url: str, body: bytes) -> None:
        """Store an answer, and remove old ones."""
        if self._folder is None:
            return
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._path(url)
            new = path.with_suffix(f".{os.getpid()}")
            head = msgspec.json.encode([url, hashlib.sha256(body).hexdigest()])
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | O_PRIVATE, 0o600), "wb") as file:
                file.write(head + b"\n" + body)
            new.replace(path)
            self._evict()

    def remove(self, url: str) -> None:
        """Forget the answer to a GET of `url`: the registry has none any more."""
        if self._folder is not None:
            with suppress(OSError):
                self._path(url).unlink(missing_ok=True)

    def _path(self, url: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()}.answer"

    def _newest_first(self) -> list[Path]:
        if self._folder is None:
            return []
        found = []
        for path in self._folder.glob("*.answer"):
            with suppress(OSError):
                found.append((path.stat().st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)]

    def _evict(self) -> None:
        total = 0
        for path in self._newest_first():
            with suppress(OSError):
                facts = path.stat()
                total += facts.st_size
                if total > MAX_BYTES or not 0 <= time.time() - facts.st_mtime + 1 <= KEPT_S:
                    path.unlink()


def _read(path: Path, prefix: str = "") -> CachedAnswer | None:
    try:
        with path.open("rb") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            url, digest = msgspec.json.decode(file.readline(_MAX_HEAD_BYTES), type=tuple[str, str])
            if not -1 <= age <= KEPT_S or not url.startswith(prefix):
                return None
            body = file.read(MAX_BYTES + 1)
    except (OSError, ValueError):
        return None
    return CachedAnswer(url, body, max(age, 0.0)) if hashlib.sha256(body).hexdigest() == digest else None
