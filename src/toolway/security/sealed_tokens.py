"""Tokens on disk, one sealed file for each server and principal, shared by all processes of a user.

A file is sealed with AES-256-GCM for the server and the principal it belongs to: put in the place of another, it does
not open. The key is a secret of the store (`secrets/`): in the keychain of the system where there is one. It is fetched
once, and not before there is a file to open, so whoever needs no login waits for no keychain.
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

from toolway.secrets import SecretsError, open_store, remember
from toolway.secrets.files import locked, read_private, write_private
from toolway.security.kept import Kept, with_one, without
from toolway.security.tokens import Credential, Key, packed, unpacked

SECRET: Final = "toolway/logins"  # the name of the key among the secrets
LARGEST: Final = 4 * 1024 * 1024  # bytes of a file of ours
_BOUND: Final = "toolway tokens 1"


class Unreadable(Exception):
    """A file does not open."""


class SealedTokens:
    """A `TokenStore`. What waits for a disk or a person does so in a thread."""

    def __init__(self, folder: Path, key: Callable[[], bytes]) -> None:
        self.folder = folder
        self._fetch_key = key
        self._key: bytes | None = None

    # -- as a store ---------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Credential | None:
        return (await self.read(key.upstream, key.principal)).get(key.issuer)

    async def put(self, key: Key, credential: Credential) -> None:
        await asyncio.to_thread(
            self.change, key.upstream, key.principal, lambda kept: with_one(kept, key.issuer, credential)
        )

    async def remove(self, key: Key) -> None:
        await asyncio.to_thread(self.change, key.upstream, key.principal, lambda kept: without(kept, key.issuer))

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        return list(reversed(await self.read(upstream, principal)))

    # -- for those who know that it is shared -------------------------------------------------------------------------

    def stamp(self, upstream: str, principal: str) -> tuple[int, int] | None:
        """Another one after every change; None where nothing is kept."""
        try:
            found = os.stat(self.file(upstream, principal))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def file(self, upstream: str, principal: str) -> Path:
        name = hashlib.sha256(json.dumps([upstream, principal]).encode()).hexdigest()[:40]
        return self.folder / f"{name}.token"

    async def read(self, upstream: str, principal: str) -> Kept:
        if self.stamp(upstream, principal) is None:
            return {}
        return await asyncio.to_thread(self._opened, upstream, principal)

    def key(self) -> bytes:
        """May wait for a person. Raises `SecretsError`."""
        if self._key is None:
            self._key = self._fetch_key()
        return self._key

    def change(self, upstream: str, principal: str, change: Callable[[Kept], Kept]) -> None:
        """Read, change and replace, alone. A file that does not open is replaced: whoever puts something has it."""
        file = self.file(upstream, principal)
        with locked(file):
            try:
                before = self._opened(upstream, principal) if file.exists() else {}
            except Unreadable:
                before = {}
            after = change(before)
            if after:
                write_private(file, seal(after, self.key(), upstream, principal))
            else:
                file.unlink(missing_ok=True)

    def _opened(self, upstream: str, principal: str) -> Kept:
        try:
            data = read_private(self.file(upstream, principal))
        except FileNotFoundError:
            return {}
        try:
            return unseal(data, self.key(), upstream, principal)
        except Unreadable:
            self._key = None  # another process may have made a new one
            return unseal(data, self.key(), upstream, principal)


def of_this_user(environ: Mapping[str, str]) -> SealedTokens | None:
    """The store that all programs of this user share; None where there is no place for one."""
    base = environ.get("XDG_DATA_HOME") or (f"{environ['HOME']}/.local/share" if environ.get("HOME") else "")
    if not base:
        return None
    folder = Path(base) / "toolway" / "tokens"
    return SealedTokens(folder, lambda: _key_of(folder, environ))


def _key_of(folder: Path, environ: Mapping[str, str]) -> bytes:
    """The key, made at first use. Raises `SecretsError`."""
    store = open_store(environ)
    with locked(folder / "key"):
        text = store.get(SECRET)
        if text is None:
            text = os.urandom(32).hex()
            store.set(SECRET, text)
    remember(text)
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        fix = f"toolway secrets rm {SECRET}, and log in again"
        raise SecretsError("the key of the logins is none", evidence=f"the secret {SECRET} was changed", fix=fix)
    return key


# -- sealing ----------------------------------------------------------------------------------------------------------


def seal(kept: Kept, key: bytes, upstream: str, principal: str) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    text = json.dumps([[issuer, packed(credential)] for issuer, credential in kept.items()]).encode()
    nonce = os.urandom(12)
    sealed = AESGCM(key).encrypt(nonce, text, _bound(upstream, principal))
    return json.dumps({"format": 1, "nonce": b64encode(nonce).decode(), "data": b64encode(sealed).decode()}).encode()


def unseal(data: bytes, key: bytes, upstream: str, principal: str) -> Kept:
    """Raises `Unreadable`."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        if len(data) > LARGEST:
            raise ValueError
        parts = json.loads(data)
        nonce, sealed = b64decode(parts["nonce"]), b64decode(parts["data"])
        text = AESGCM(key).decrypt(nonce, sealed, _bound(upstream, principal))
        return {issuer: unpacked(facts) for issuer, facts in json.loads(text)}
    except (InvalidTag, ValueError, KeyError, TypeError, binascii.Error):
        raise Unreadable("the file of tokens does not open with the key that we have") from None


def _bound(upstream: str, principal: str) -> bytes:
    return json.dumps([_BOUND, upstream, principal]).encode()
