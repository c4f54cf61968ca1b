"""Secrets in one file, encrypted with AES-256-GCM, including their names.

The key is derived from `$TOOLWAY_SECRETS_PASSPHRASE`, or else read from a file in another folder. A passphrase
protects the secrets even if someone reads the whole disk. A key file protects them if only the encrypted file leaks,
for example in a backup, a settings repository, or a support bundle. Only a keychain or a passphrase protects them
from other programs of the same user.
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import json
import os
import stat
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from toolway._os import O_UNSHARED, lock_handle, restrict_to_owner, sync_folder
from toolway.secrets.secrets_error import SecretsError

PASSPHRASE_VARIABLE: Final = "TOOLWAY_SECRETS_PASSPHRASE"
_ASSOCIATED_DATA: Final = b"toolway secrets 1"  # no other encrypted file decrypts as this one
_SCRYPT_PARAMS: Final = {"n": 2**15, "r": 8, "p": 1}


class EncryptedFileStore:
    """A `SecretStore` that keeps all of a user's secrets in one encrypted file.

    Each change reads and replaces the whole file under a lock, so no process overwrites another one's change.
    """

    def __init__(self, file: Path, key_file: Path, passphrase: str = "") -> None:
        self._file = file
        self._key_file = key_file
        self._passphrase = passphrase
        self.location = f"the encrypted file {file}"

    def get(self, name: str) -> str | None:
        return self._read().get(name)

    def set(self, name: str, value: str) -> None:
        self._update(lambda secrets: {**secrets, name: value})

    def delete(self, name: str) -> bool:
        before = self._read()
        if name in before:
            self._update(lambda secrets: {other: value for other, value in secrets.items() if other != name})
        return name in before

    def names(self) -> list[str]:
        return sorted(self._read())

    def _update(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        try:
            with locked(self._file):
                data = self._encrypt(change(self._read()))
                write_private(self._file, data)
        except OSError as exc:
            raise _file_error(self._file, "cannot be written", exc) from None

    # -- encryption ---------------------------------------------------------------------------------------------------

    def _encrypt(self, secrets: Mapping[str, str]) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt = os.urandom(16) if self._passphrase else None
        nonce = os.urandom(12)
        encrypted = AESGCM(self._load_key(salt, create=True)).encrypt(
            nonce, json.dumps(secrets).encode(), _ASSOCIATED_DATA
        )
        parts = {"salt": salt, "nonce": nonce, "data": encrypted}
        texts = {name: b64encode(part).decode() for name, part in parts.items() if part is not None}
        return json.dumps({"format": 1, **texts}).encode()

    def _read(self) -> dict[str, str]:
        try:
            data = read_private(self._file)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise _file_error(self._file, "cannot be read", exc) from None
        return self._decrypt(data)

    def _decrypt(self, data: bytes) -> dict[str, str]:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            parts: dict[str, Any] = json.loads(data)
            salt = b64decode(parts["salt"]) if "salt" in parts else None
            nonce, encrypted = b64decode(parts["nonce"]), b64decode(parts["data"])
        except (ValueError, KeyError, TypeError, binascii.Error):
            raise self._decrypt_error(
                "it is damaged", "restore it from a backup, or remove it and set them again"
            ) from None
        key = self._load_key(salt)
        try:
            secrets: dict[str, str] = json.loads(AESGCM(key).decrypt(nonce, encrypted, _ASSOCIATED_DATA))
        except (InvalidTag, ValueError):
            if salt is not None:
                raise self._decrypt_error(
                    f"${PASSPHRASE_VARIABLE} does not decrypt it", "set the passphrase it was encrypted with"
                ) from None
            raise self._decrypt_error(
                f"the key in {self._key_file} does not decrypt it", "restore the key from a backup"
            ) from None
        return secrets

    def _load_key(self, salt: bytes | None, *, create: bool = False) -> bytes:
        """Return the encryption key: derived from passphrase and `salt`, or read from the key file.

        The key file is used if `salt` is None. With `create`, a missing key file is created if no secret exists yet.
        Raises `SecretsError` if the passphrase or the key file is missing.
        """
        if salt is None:
            return self._read_or_create_key(create)
        if not self._passphrase:
            raise self._decrypt_error("it is encrypted with a passphrase", f"export {PASSPHRASE_VARIABLE}=…")
        return _derive_key(self._passphrase, salt)

    def _read_or_create_key(self, create: bool) -> bytes:
        try:
            return read_private(self._key_file)
        except FileNotFoundError:
            if not create or self._file.exists():
                raise self._decrypt_error(
                    f"its key {self._key_file} is missing", "restore the key from a backup"
                ) from None
        except OSError as exc:
            raise _file_error(self._key_file, "cannot be read", exc) from None
        key = os.urandom(32)
        write_private(self._key_file, key)
        return key

    def _decrypt_error(self, detail: str, hint: str) -> SecretsError:
        return SecretsError("the secrets cannot be decrypted", detail=f"{self._file}: {detail}", hint=hint)


@functools.lru_cache(maxsize=2)
def _derive_key(passphrase: str, salt: bytes) -> bytes:
    """Derive the encrypted file's key from the passphrase.

    This takes a tenth of a second on purpose, so do it once per file, not once per secret.
    """
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=32, **_SCRYPT_PARAMS).derive(passphrase.encode())


def _file_error(file: Path, problem: str, exc: OSError) -> SecretsError:
    return SecretsError(f"the secrets file {problem}", detail=f"{file}: {exc.strerror or exc}")


# -- private files, written atomically ---------------------------------------------------------------------------------


def write_private(file: Path, data: bytes) -> None:
    """Replace the content of `file` atomically, with mode 0600.

    Raises `OSError` if the file cannot be written. Its old content then stays.
    """
    write_private_parts(file, (data,))


def write_private_parts(file: Path, parts: Iterable[bytes]) -> None:
    """Replace `file` like `write_private`, without holding all parts in memory at once."""
    with _new_private(file, parts) as new:
        os.replace(new, file)
    _fsync_folder(file.parent)


def read_or_create(file: Path, make: Callable[[], bytes]) -> bytes:
    """Return the content of a file that is private to its user. If it is missing, create it with `make()`.

    If several processes create it at the same time, all return the first one's content. Raises `OSError` if the file
    cannot be read or written.
    """
    with contextlib.suppress(FileNotFoundError):
        return read_private(file)
    with _new_private(file, (make(),)) as new, contextlib.suppress(FileExistsError):
        os.link(new, file)
    return read_private(file)


@contextlib.contextmanager
def _new_private(file: Path, parts: Iterable[bytes]) -> Iterator[str]:
    """Yield the path of a new file next to `file` with these `parts`; remove it on exit.

    It has mode 0600 and is synced to disk. The caller renames or links it.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    import tempfile  # slow to import

    handle, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as out:
            out.writelines(parts)
            out.flush()
            os.fsync(out.fileno())
        yield new
    finally:
        with contextlib.suppress(OSError):
            os.unlink(new)


def read_private(file: Path) -> bytes:
    """Return the content of `file`, and set its mode to 0600 if other users could read it.

    A device such as /dev/null belongs to all programs, so its mode is left alone. Raises `OSError` if the file cannot
    be read.
    """
    with open(file, "rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if mode & 0o077 and stat.S_ISREG(mode):
            restrict_to_owner(opened.fileno())
        return opened.read()


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock for changes to `file`, across all processes.

    Waits until the lock is free. The lock is a separate file in the same folder.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | O_UNSHARED, 0o600), "rb") as lock:
        lock_handle(lock.fileno())
        yield


def _fsync_folder(folder: Path) -> None:
    """Sync a folder to disk, because a rename in it is not durable otherwise. Errors are ignored."""
    with contextlib.suppress(OSError):
        sync_folder(folder)
