"""Tokens on disk: one encrypted file per server and principal, shared by all processes.

A file is encrypted with AES-256-GCM and bound to its server and principal, so it cannot be decrypted if it is renamed
to another one. The key is itself a secret in the secret store (`secrets/`), which is the system keychain if there is
one. It is fetched once, when the first file is opened, so a hub without logins never waits for a keychain.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from toolway._os import data_folder
from toolway.auth.token_store import (
    Credential,
    CredentialsByIssuer,
    TokenKey,
    credential_from_dict,
    credential_to_dict,
    put_credential,
    remove_credential,
)
from toolway.secrets import SecretsError, open_store, remember_secret
from toolway.secrets.encrypted_file import locked, read_private, write_private

KEY_SECRET_NAME: Final = "toolway/logins"  # name of the encryption key in the secret store
MAX_TOKEN_FILE_BYTES: Final = 4 * 1024 * 1024  # bytes of a token file
_ASSOCIATED_DATA_LABEL: Final = "toolway tokens 1"


class TokenFileUnreadable(Exception):
    """Raised when a token file is too large, malformed, or not decryptable with the current key."""


class EncryptedTokenStore:
    """`TokenStore` in encrypted files, one file per server and principal.

    File access, and a keychain prompt for the user, run in a thread.
    """

    def __init__(self, folder: Path, key: Callable[[], bytes]) -> None:
        self.folder = folder
        self._fetch_key = key
        self._key: bytes | None = None

    # -- TokenStore methods -------------------------------------------------------------------------------------------

    async def get(self, key: TokenKey) -> Credential | None:
        return (await self.read(key.upstream, key.principal)).get(key.issuer)

    async def put(self, key: TokenKey, credential: Credential) -> None:
        await asyncio.to_thread(
            self.update,
            key.upstream,
            key.principal,
            lambda credentials: put_credential(credentials, key.issuer, credential),
        )

    async def remove(self, key: TokenKey) -> None:
        await asyncio.to_thread(
            self.update, key.upstream, key.principal, lambda credentials: remove_credential(credentials, key.issuer)
        )

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        return list(reversed(await self.read(upstream, principal)))

    # -- for SharedTokenSlot ------------------------------------------------------------------------------------------

    def version(self, upstream: str, principal: str) -> tuple[int, int] | None:
        """Return (mtime, inode) of the token file, which change with every write, or None if missing."""
        try:
            found = os.stat(self.file_path(upstream, principal))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def file_path(self, upstream: str, principal: str) -> Path:
        """Return the path of the token file for a server (`upstream`: name and URL) and principal."""
        name = hashlib.sha256(json.dumps([upstream, principal]).encode()).hexdigest()[:40]
        return self.folder / f"{name}.token"

    async def read(self, upstream: str, principal: str) -> CredentialsByIssuer:
        """Return the stored credentials for a server and principal, by issuer. Empty without a file.

        Raises `TokenFileUnreadable` if the file cannot be decrypted, and `SecretsError` if the encryption key is not
        available.
        """
        if self.version(upstream, principal) is None:
            return {}
        return await asyncio.to_thread(self._read_file, upstream, principal)

    def load_key(self) -> bytes:
        """Return the encryption key. The first call fetches it from the secret store.

        This may wait for the user to unlock the keychain. Raises `SecretsError` if the key is invalid or cannot be
        fetched.
        """
        if self._key is None:
            self._key = self._fetch_key()
        return self._key

    def update(
        self, upstream: str, principal: str, change: Callable[[CredentialsByIssuer], CredentialsByIssuer]
    ) -> None:
        """Apply `change` to a server and principal's stored credentials, under a file lock.

        If no credential is left, the file is deleted. A file that cannot be decrypted counts as empty and is
        overwritten.
        """
        file = self.file_path(upstream, principal)
        with locked(file):
            try:
                before = self._read_file(upstream, principal) if file.exists() else {}
            except TokenFileUnreadable:
                before = {}
            after = change(before)
            if after:
                write_private(file, encrypt_credentials(after, self.load_key(), upstream, principal))
            else:
                file.unlink(missing_ok=True)

    def _read_file(self, upstream: str, principal: str) -> CredentialsByIssuer:
        try:
            data = read_private(self.file_path(upstream, principal))
        except FileNotFoundError:
            return {}
        try:
            return decrypt_credentials(data, self.load_key(), upstream, principal)
        except TokenFileUnreadable:
            self._key = None  # another process may have created a new key
            return decrypt_credentials(data, self.load_key(), upstream, principal)


def default_token_store(environ: Mapping[str, str]) -> EncryptedTokenStore | None:
    """Return the token store in the user's data folder, or None without XDG_DATA_HOME and HOME."""
    base = data_folder(environ)
    if base is None:
        return None
    folder = base / "tokens"
    return EncryptedTokenStore(folder, lambda: _load_or_create_key(folder, environ))


def _load_or_create_key(folder: Path, environ: Mapping[str, str]) -> bytes:
    """Return the key for the encrypted token files from the secret store, and create it if missing.

    Raises `SecretsError` if the stored key is not 32 bytes in hex, or if the secret store fails.
    """
    store = open_store(environ)
    with locked(folder / "key"):
        text = store.get(KEY_SECRET_NAME)
        if text is None:
            text = os.urandom(32).hex()
            store.set(KEY_SECRET_NAME, text)
    remember_secret(text)
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        hint = f"toolway secrets rm {KEY_SECRET_NAME}, and log in again"
        raise SecretsError(
            "the key of the logins is invalid", detail=f"the secret {KEY_SECRET_NAME} was changed", hint=hint
        )
    return key


# -- encryption -------------------------------------------------------------------------------------------------------


def encrypt_credentials(credentials: CredentialsByIssuer, key: bytes, upstream: str, principal: str) -> bytes:
    """Return the encrypted content of the token file for a server and principal."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    text = json.dumps([[issuer, credential_to_dict(credential)] for issuer, credential in credentials.items()]).encode()
    nonce = os.urandom(12)
    encrypted = AESGCM(key).encrypt(nonce, text, _associated_data(upstream, principal))
    return json.dumps({"format": 1, "nonce": b64encode(nonce).decode(), "data": b64encode(encrypted).decode()}).encode()


def decrypt_credentials(data: bytes, key: bytes, upstream: str, principal: str) -> CredentialsByIssuer:
    """Return the credentials in `data`, the content of the token file for a server and principal.

    Raises `TokenFileUnreadable` if `data` is malformed, or was encrypted for another key, server, or principal.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        if len(data) > MAX_TOKEN_FILE_BYTES:
            raise ValueError
        parts = json.loads(data)
        nonce, encrypted = b64decode(parts["nonce"]), b64decode(parts["data"])
        text = AESGCM(key).decrypt(nonce, encrypted, _associated_data(upstream, principal))
        return {issuer: credential_from_dict(fields) for issuer, fields in json.loads(text)}
    except (InvalidTag, ValueError, KeyError, TypeError, binascii.Error):
        raise TokenFileUnreadable("the token file cannot be decrypted with the current key") from None


def _associated_data(upstream: str, principal: str) -> bytes:
    """Return the AES-GCM associated data that binds a token file to its server and principal."""
    return json.dumps([_ASSOCIATED_DATA_LABEL, upstream, principal]).encode()
