"""Who may enter: the person at this machine, and the holders of API keys.

The token of this machine is made at the first start and lies in a file that only its owner may read. Keys are random,
shown once, and kept as hashes; each is held to the endpoints it was made for.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from toolway.errors import ConfigError
from toolway.gateway.rates import Rate
from toolway.gateway.sealed import made_once, write_private

TOKEN_PREFIX: Final = "tw_"
_LEAST: Final = 16  # characters of the token of this machine, whoever made it
_MAX_FILE: Final = 16 * 1024 * 1024


class Principal(msgspec.Struct, frozen=True):
    """Who is asking."""

    id: str
    name: str
    caller: str  # the authorization context of calls; empty for the owner of the hub
    admin: bool = False
    scopes: tuple[str, ...] | None = None  # groups, and `server/name`; None = everything
    rate: Rate | None = None  # how often it may call; None = as often as it likes
    node: bool = False  # another gateway of a cluster, which speaks for those who come with a pass

    def may_use(self, endpoint: str) -> bool:
        """Whether an endpoint (a group's name, `server/name`, or nothing for all) is open to this principal."""
        return self.scopes is None or not endpoint or endpoint in self.scopes


OWNER: Final = Principal("local", "the owner of this gateway", "", admin=True)


class ApiKey(msgspec.Struct, frozen=True):
    """A key as it is kept: never itself."""

    id: str
    name: str
    hash: str
    scopes: tuple[str, ...] | None = None
    admin: bool = False
    created: float = 0.0
    rate: Rate | None = None

    def principal(self) -> Principal:
        return Principal(self.id, self.name, f"key:{self.id}", self.admin, self.scopes, self.rate)


class _File(msgspec.Struct):
    format: int = 1
    keys: list[ApiKey] = msgspec.field(default_factory=list)


class KnownKeys(ABC):
    """All that opens the door, as this process knows it. Looking one up costs one hash, however many there are.
    `on_revoked` hears of every key that opens it no more."""

    def __init__(self, token: str) -> None:
        self._token_hash = _hash(token)
        self._keys: dict[str, ApiKey] = {}  # by hash
        self.changes = 0  # how often the keys have changed
        self.on_revoked: Callable[[str], None] | None = None

    def who(self, token: str) -> Principal | None:
        hashed = _hash(token)
        if hmac.compare_digest(hashed, self._token_hash):
            return OWNER
        key = self._keys.get(hashed)
        return key.principal() if key is not None else None

    def principal(self, id: str) -> Principal | None:
        """The holder of a key, for as long as there is such a key."""
        return next((key.principal() for key in self._keys.values() if key.id == id), None)

    def all(self) -> Sequence[ApiKey]:
        return list(self._keys.values())

    @abstractmethod
    async def issue(
        self, name: str, scopes: Iterable[str] | None, admin: bool, now: float, rate: Rate | None = None
    ) -> tuple[str, ApiKey]:
        """A new key, and what is kept of it. The key itself is never seen again. Raises `OSError`, `Unavailable`."""

    @abstractmethod
    async def withdraw(self, id: str) -> bool:
        """A key opens the door no more. Whether there was such a key. Raises `OSError`, `Unavailable`."""

    @abstractmethod
    def reload(self) -> None:
        """Take what another process changed. Raises `ConfigError` where it cannot be trusted."""

    def _know(self, keys: Iterable[ApiKey]) -> None:
        before, self._keys = self._keys, {key.hash: key for key in keys}
        self.changes += 1
        for hashed, key in before.items():
            if self._keys.get(hashed) != key and self.on_revoked is not None:
                self.on_revoked(key.id)


class Keyring(KnownKeys):
    """The keys in a file."""

    def __init__(self, file: Path, token: str) -> None:
        super().__init__(token)
        self._file = file
        self._stamp: tuple[int, ...] | None = None
        self.reload()

    async def issue(
        self, name: str, scopes: Iterable[str] | None, admin: bool, now: float, rate: Rate | None = None
    ) -> tuple[str, ApiKey]:
        return self.create(name, scopes, admin, now, rate)

    async def withdraw(self, id: str) -> bool:
        return self.revoke(id)

    def create(
        self, name: str, scopes: Iterable[str] | None, admin: bool, now: float, rate: Rate | None = None
    ) -> tuple[str, ApiKey]:
        """What `issue` does. Raises `OSError`."""
        token, key = new_key(name, scopes, admin, now, rate)
        with self._alone():
            self._save([*self._keys.values(), key])
        return token, key

    def revoke(self, id: str) -> bool:
        """What `withdraw` does. Raises `OSError`."""
        with self._alone():
            kept = [key for key in self._keys.values() if key.id != id]
            if len(kept) == len(self._keys):
                return False
            self._save(kept)
        return True

    def reload(self) -> None:
        """Take what another process changed. Raises `ConfigError` where the file cannot be trusted."""
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            self._take([], None)
            return
        stamp = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp:
            return
        try:
            if stat.st_size > _MAX_FILE:
                raise ValueError("it is too large")
            kept = msgspec.json.decode(self._file.read_bytes(), type=_File).keys
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"the file of API keys cannot be read: {self._file}",
                evidence=str(exc),
                fix="move it away; keys must then be made anew",
                code="E-KEYS-FILE",
            ) from None
        self._take(kept, stamp)

    def _take(self, keys: Iterable[ApiKey], stamp: tuple[int, ...] | None) -> None:
        self._stamp = stamp
        self._know(keys)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Change the keys as they are now, and nobody else meanwhile: a key that was revoked must not come back."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._file.with_name(f".{self._file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self.reload()
            yield
        finally:
            os.close(handle)

    def _save(self, keys: list[ApiKey]) -> None:
        write_private(self._file, msgspec.json.encode(_File(keys=keys)))
        self._stamp = None  # the clock of the file system may be too coarse to tell
        self.reload()


def new_key(name: str, scopes: Iterable[str] | None, admin: bool, now: float, rate: Rate | None) -> tuple[str, ApiKey]:
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    chosen = tuple(scopes) if scopes is not None else None
    return token, ApiKey(secrets.token_hex(4), name, _hash(token), chosen, admin, now, rate)


def token_in(file: Path) -> str:
    """The token of this machine, made at first use. Raises `OSError`, and `ConfigError` for one that can be guessed."""
    token = made_once(file, lambda: (TOKEN_PREFIX + secrets.token_urlsafe(32)).encode()).decode("latin-1").strip()
    if len(token) < _LEAST:
        raise ConfigError(
            f"the token of this machine cannot be used: {file}",
            evidence=f"it has {len(token)} characters; a token has at least {_LEAST}",
            fix="move the file away; a new one is made at the next start",
            code="E-STATE",
        )
    return token


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
