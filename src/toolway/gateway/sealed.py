"""Handles that clients keep for us: sealed, so that they say nothing and cannot be made up or changed.

A gateway keeps no table of what it gave out: another process with the same key can read what this one sealed. Every
handle has a kind, so that one cannot be used for another, and an end.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from toolway.errors import ConfigError

KEY_BYTES: Final = 32
_NONCE: Final = 12
_MAX: Final = 64 * 1024  # nothing we ever sealed is longer


class Sealer:
    """`now` is wall time: a handle outlives the process that made it."""

    def __init__(self, key: bytes, now: Callable[[], float]) -> None:
        self._aead = AESGCM(key)
        self._now = now

    def seal(self, kind: str, value: Any, seconds: float) -> str:
        plain = msgspec.json.encode([self._now() + seconds, value])
        nonce = os.urandom(_NONCE)
        return _text(nonce + self._aead.encrypt(nonce, plain, kind.encode()))

    def open(self, kind: str, text: str) -> Any:
        """What was sealed, or None for anything that is not ours, of another kind, or over."""
        if len(text) > _MAX or not text.isascii():
            return None
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if _text(data) != text:
                return None  # another spelling: who remembers a handle by its text must find it again
            expires, value = msgspec.json.decode(self._aead.decrypt(data[:_NONCE], data[_NONCE:], kind.encode()))
        except (binascii.Error, InvalidTag, ValueError):
            return None
        return value if self._now() < expires else None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def key_of(file: Path) -> bytes:
    """The key in `file`, made at first use. Raises `OSError`, and `ConfigError` where the file holds something else."""
    key = made_once(file, lambda: secrets.token_bytes(KEY_BYTES))
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"the key of the gateway cannot be used: {file}",
            evidence=f"it has {len(key)} bytes instead of {KEY_BYTES}",
            fix="put the right one back, or move it away; sessions of clients must then begin anew",
            code="E-STATE",
        )
    return key


# -- private files ----------------------------------------------------------------------------------------------------


def made_once(file: Path, make: Callable[[], bytes]) -> bytes:
    """What a private file holds, made at first use; where several begin at once, all take what the first one made.
    Raises `OSError`."""
    with suppress(FileNotFoundError):
        return _read_private(file)
    new = _written(file, make())
    try:
        with suppress(FileExistsError):
            os.link(new, file)
    finally:
        new.unlink()
    return _read_private(file)


def write_private(file: Path, data: bytes) -> None:
    """Replace a file that only its owner may read, at once or not at all. Raises `OSError`."""
    new = _written(file, data)
    try:
        os.replace(new, file)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _read_private(file: Path) -> bytes:
    """Raises `OSError`. What others could read is closed to them."""
    with open(file, "rb") as opened:
        if os.fstat(opened.fileno()).st_mode & 0o077:
            os.fchmod(opened.fileno(), 0o600)
        return opened.read()


def _written(file: Path, data: bytes) -> Path:
    """A new private file beside `file`, on disk."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return new
