"""Tokens on disk: one encrypted file per server and principal, shared by all processes.

A file is encrypted with AES-256-GCM and bound to its server and principal: renamed to another one, it does not decrypt.
The key is itself a secret in the secret store (`secrets/`), which is the system keychain if there is one. It is fetched
once, when the first file is opened. So a hub without logins never waits for a keychain.
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
    """A token file cannot be decrypted."""


class EncryptedTokenStore:
    """`TokenStore` in encrypted files.

    Operations that wait for the disk or the user run in a thread.
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
        """Return a version that changes with every write of the file, or None if there is no file."""
        try:
            found = os.stat(self.file_path(upstream, principal))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def file_path(self, upstream: str, principal: str) -> Path:
        """Return the path of the file of a server and principal."""
        name = hashlib.sha256(json.dumps([upstream, principal]).encode()).hexdigest()[:40]
        return self.folder / f"{name}.token"

    async def read(self, upstream: str, principal: str) -> CredentialsByIssuer:
        """Return the stored credentials by issuer. Raises `TokenFileUnreadable`."""
        if self.version(upstream, principal) is None:
            return {}
        return await asyncio.to_thread(self._read_file, upstream, principal)

    def load_key(self) -> bytes:
        """Return the encryption key. May wait for the user to unlock the keychain.

        Raises `SecretsError`.
        """
        if self._key is None:
            self._key = self._fetch_key()
        return self._key

    def update(
        self, upstream: str, principal: str, change: Callable[[CredentialsByIssuer], CredentialsByIssuer]
    ) -> None:
        """Read, modify and replace the file under a lock.

        A file that cannot be decrypted is overwritten.
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
    """Return the token store of this user, or None if there is no home folder."""
    base = environ.get("XDG_DATA_HOME") or (f"{environ['HOME']}/.local/share" if environ.get("HOME") else "")
    if not base:
        return None
    folder = Path(base) / "toolway" / "tokens"
    return EncryptedTokenStore(folder, lambda: _load_or_create_key(folder, environ))


def _load_or_create_key(folder: Path, environ: Mapping[str, str]) -> bytes:
    """Return the encryption key from the secret store, and create it on first use.

    Raises `SecretsError`.
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
    """Encrypt credentials for the file of a server and principal."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    text = json.dumps([[issuer, credential_to_dict(credential)] for issuer, credential in credentials.items()]).encode()
    nonce = os.urandom(12)
    encrypted = AESGCM(key).encrypt(nonce, text, _associated_data(upstream, principal))
    return json.dumps({"format": 1, "nonce": b64encode(nonce).decode(), "data": b64encode(encrypted).decode()}).encode()


def decrypt_credentials(data: bytes, key: bytes, upstream: str, principal: str) -> CredentialsByIssuer:
    """Decrypt the content of the file of a server and principal. Raises `TokenFileUnreadable`."""
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
    """Return the associated data that binds a file to its server and principal."""
    return json.dumps([_ASSOCIATED_DATA_LABEL, upstream, principal]).encode()
