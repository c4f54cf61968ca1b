"""Sealed handles (AES-GCM): state that clients store but can neither read nor change.

The gateway keeps no table of the handles it issued, so any process with the same key can open them. Every handle has
an expiry time, and a kind, so it cannot be used for another purpose.
"""

from __future__ import annotations

import binascii
import os
import secrets
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from toolway.errors import ConfigError
from toolway.secrets.encrypted_file import read_or_create

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TO_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_MAX_HANDLE_CHARS: Final = 64 * 1024  # no sealed handle that a client sends is longer


class Sealer:
    """Encrypts values as text handles with an expiry time, and decrypts them.

    `now` returns wall time, because a handle may outlive the process that made it. A handle longer than `max_chars`
    characters is not opened.
    """

    def __init__(self, key: bytes, now: Callable[[], float], max_chars: int = _MAX_HANDLE_CHARS) -> None:
        self._aead = AESGCM(key)
        self._now = now
        self._max_chars = max_chars

    def seal(self, kind: str, value: Any, seconds: float) -> str:
        """Return an encrypted handle that contains `value` and expires after `seconds`.

        It can be opened only with the same `kind`.
        """
        plain = msgspec.json.encode([self._now() + seconds, value])
        nonce = os.urandom(_NONCE_BYTES)
        return _encode_base64(nonce + self._aead.encrypt(nonce, plain, kind.encode()))

    def open(self, kind: str, text: str) -> Any:
        """Return the value in a sealed handle, or None if it is invalid, expired, or of another kind."""
        opened = self.open_with_expiry(kind, text)
        return opened[1] if opened is not None and self._now() < opened[0] else None

    def open_with_expiry(self, kind: str, text: str) -> tuple[float, Any] | None:
        """Return the expiry time and value of a sealed handle, even if it has expired.

        Return None if the handle is invalid or of another kind.
        """
        if len(text) > self._max_chars or not text.isascii():
            return None
        try:
            data = _decode_base64(text)
            if _encode_base64(data) != text:
                return None  # not canonical: one handle must have exactly one text, which callers use as a key
            expires, value = msgspec.json.decode(
                self._aead.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], kind.encode())
            )
        except (binascii.Error, InvalidTag, ValueError):
            return None
        return expires, value


STATE_KIND: Final = "state"  # kind of sealed request states
TASK_KIND: Final = "task"
TASK_LIFETIME_S: Final = 30 * 86_400.0


class ClientHandles:
    """Handles that clients send back: states of interrupted requests, and task ids.

    A state is bound to one request (`binding`), and a task id to a principal and an endpoint (`owner`). In a cluster,
    any node can open all nodes' handles.
    """

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal_state(self, kind: str, value: str, binding: tuple[str, ...], seconds: float) -> str:
        return self._sealer.seal(STATE_KIND, [kind, value, binding], seconds)

    def open_state(self, state: object, binding: tuple[str, ...]) -> tuple[str, str] | None:
        """Decrypt a request state that a client sent back, and return its kind and value.

        Return None if the state is invalid, expired, or bound to another request.
        """
        found = self._sealer.open(STATE_KIND, state) if isinstance(state, str) else None
        return (found[0], found[1]) if found is not None and tuple(found[2]) == binding else None

    def seal_task_id(self, server: str, task_id: object, owner: tuple[str, str]) -> str:
        if isinstance(task_id, str) and self.open_task_id(task_id, owner) is not None:
            return task_id  # another node sealed it for this client
        return self._sealer.seal(TASK_KIND, [server, task_id, *owner], TASK_LIFETIME_S)

    def open_task_id(self, sealed_id: object, owner: tuple[str, str] | None) -> tuple[str, str] | None:
        """Return (server, the server's own task id) of a sealed task id.

        Return None if the sealed id is invalid or belongs to another owner. If `owner` is None, any owner is
        accepted.
        """
        found = self._sealer.open(TASK_KIND, sealed_id) if isinstance(sealed_id, str) else None
        if found is None or (owner is not None and found[2:] != [*owner]):
            return None
        return found[0], found[1]


# By `binascii` instead of `base64`: a call to another node of a cluster does this several times.


def _encode_base64(data: bytes) -> str:
    """Return the URL-safe base64 text of `data`, without padding."""
    return b2a_base64(data, newline=False).translate(_TO_URL_SAFE).rstrip(b"=").decode()


def _decode_base64(text: str) -> bytes:
    """Decode a URL-safe base64 text without padding. Raises `binascii.Error` if the text is not base64.

    It accepts a few strings that `_encode_base64` never returns.
    """
    return a2b_base64((text + "=" * (-len(text) % 4)).encode().translate(_FROM_URL_SAFE), strict_mode=True)


def read_sealing_key(file: Path) -> bytes:
    """Return the sealing key in `file`, which is created on first use.

    Raises `OSError` if the file is not accessible, and `ConfigError` if the key's length is wrong.
    """
    key = read_or_create(file, lambda: secrets.token_bytes(KEY_BYTES))
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"the gateway's sealing key is unusable: {file}",
            detail=f"it has {len(key)} bytes instead of {KEY_BYTES}",
            hint="restore the file, or move it away; clients must then start new sessions",
            code="E-STATE",
        )
    return key
