"""Secrets in one file, sealed with AES-256-GCM, names and all.

The key comes from `$TOOLWAY_SECRETS_PASSPHRASE`, or else lies in another folder than the file. With a passphrase the
file is safe from whoever reads the disk; with a key beside it, from whoever gets the file alone: a backup, a repository
of settings, a support bundle. Against a program of the same user only a keychain or a passphrase helps.
"""

from __future__ import annotations

import binascii
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from toolway.secrets.files import locked, read_private, write_private
from toolway.secrets.store import SecretsError

PASSPHRASE: Final = "TOOLWAY_SECRETS_PASSPHRASE"
_BOUND: Final = b"toolway secrets 1"  # a sealed file is this and nothing else
_SCRYPT: Final = {"n": 2**15, "r": 8, "p": 1}


class SealedFile:
    """A `Store`. Every change reads, changes and replaces the file under a lock."""

    def __init__(self, file: Path, key: Path, passphrase: str = "") -> None:
        self._file = file
        self._key = key
        self._passphrase = passphrase
        self.where = f"the sealed file {file}"

    def get(self, name: str) -> str | None:
        return self._read().get(name)

    def set(self, name: str, value: str) -> None:
        self._change(lambda kept: {**kept, name: value})

    def delete(self, name: str) -> bool:
        before = self._read()
        if name in before:
            self._change(lambda kept: {other: value for other, value in kept.items() if other != name})
        return name in before

    def names(self) -> list[str]:
        return sorted(self._read())

    def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        try:
            with locked(self._file):
                data = self._seal(change(self._read()))
                write_private(self._file, data)
        except OSError as exc:
            raise _trouble(self._file, "cannot be written", exc) from None

    # -- sealing ------------------------------------------------------------------------------------------------------

    def _seal(self, kept: Mapping[str, str]) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt = os.urandom(16) if self._passphrase else None
        nonce = os.urandom(12)
        sealed = AESGCM(self._key_for(salt, create=True)).encrypt(nonce, json.dumps(kept).encode(), _BOUND)
        parts = {"salt": salt, "nonce": nonce, "data": sealed}
        texts = {name: b64encode(part).decode() for name, part in parts.items() if part is not None}
        return json.dumps({"format": 1, **texts}).encode()

    def _read(self) -> dict[str, str]:
        try:
            data = read_private(self._file)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise _trouble(self._file, "cannot be read", exc) from None
        return self._open(data)

    def _open(self, data: bytes) -> dict[str, str]:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            parts: dict[str, Any] = json.loads(data)
            salt = b64decode(parts["salt"]) if "salt" in parts else None
            nonce, sealed = b64decode(parts["nonce"]), b64decode(parts["data"])
        except (ValueError, KeyError, TypeError, binascii.Error):
            raise self._unusable("it is damaged", "restore it from a backup, or remove it and set them again") from None
        key = self._key_for(salt)
        try:
            kept: dict[str, str] = json.loads(AESGCM(key).decrypt(nonce, sealed, _BOUND))
        except (InvalidTag, ValueError):
            if salt is not None:
                raise self._unusable(
                    f"${PASSPHRASE} does not open it", "give the passphrase it was sealed with"
                ) from None
            raise self._unusable(f"the key in {self._key} does not open it", "restore the key from a backup") from None
        return kept

    def _key_for(self, salt: bytes | None, *, create: bool = False) -> bytes:
        """The key of a file with this salt; without one, the key that lies on disk."""
        if salt is None:
            return self._key_on_disk(create)
        if not self._passphrase:
            raise self._unusable("it is sealed with a passphrase", f"export {PASSPHRASE}=…")
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

        return Scrypt(salt=salt, length=32, **_SCRYPT).derive(self._passphrase.encode())

    def _key_on_disk(self, create: bool) -> bytes:
        try:
            return read_private(self._key)
        except FileNotFoundError:
            if not create or self._file.exists():
                raise self._unusable(f"its key {self._key} is gone", "restore the key from a backup") from None
        except OSError as exc:
            raise _trouble(self._key, "cannot be read", exc) from None
        key = os.urandom(32)
        write_private(self._key, key)
        return key

    def _unusable(self, evidence: str, fix: str) -> SecretsError:
        return SecretsError("the secrets cannot be opened", evidence=f"{self._file}: {evidence}", fix=fix)


def _trouble(file: Path, what: str, exc: OSError) -> SecretsError:
    return SecretsError(f"the file of secrets {what}", evidence=f"{file}: {exc.strerror or exc}")
