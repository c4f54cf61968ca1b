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
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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
        return base64.urlsafe_b64encode(nonce + self._aead.encrypt(nonce, plain, kind.encode())).decode().rstrip("=")

    def open(self, kind: str, text: str) -> Any:
        """What was sealed, or None for anything that is not ours, of another kind, or over."""
        if len(text) > _MAX or not text.isascii():
            return None
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            expires, value = msgspec.json.decode(self._aead.decrypt(data[:_NONCE], data[_NONCE:], kind.encode()))
        except (binascii.Error, InvalidTag, ValueError):
            return None
        return value if self._now() < expires else None


def key_of(file: Path) -> bytes:
    """The key in `file`, made at first use. Raises `OSError`."""
    try:
        key = file.read_bytes()
    except FileNotFoundError:
        key = b""
    return key if len(key) == KEY_BYTES else _made(file)


def _made(file: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    write_private(file, key)
    return key


def write_private(file: Path, data: bytes) -> None:
    """Replace a file that only its owner may read, at once or not at all. Raises `OSError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
    except OSError:
        new.unlink(missing_ok=True)
        raise
