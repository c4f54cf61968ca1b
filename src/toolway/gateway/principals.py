"""Principals and API keys: the local administrator, and the holders of keys.

The token of this machine is created at the first start, in a file that only its user can read. API keys are random,
shown once, and stored as hashes. Each key is restricted to the endpoints it was created for.
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

from toolway._lazy import compile_pattern
from toolway.errors import ConfigError
from toolway.gateway.rate_limit import Rate
from toolway.protocol.sanitize import remove_invisible
from toolway.secrets.encrypted_file import read_or_create, write_private

TOKEN_PREFIX: Final = "tw_"
MAX_KEY_NAME_CHARS: Final = 100
METRICS_SCOPE: Final = "/metrics"  # scope of an API key; no group can have this name
SEARCH_ENDPOINT: Final = "search"  # /mcp/search: all tools, found by search; no group can have this name
_SCOPE: Final = compile_pattern(r"(?:server/)?[a-z0-9-]{1,64}")  # a group, or one server: no pattern
_MIN_TOKEN_CHARS: Final = 16  # characters of the token of this machine, also if the user wrote it
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024


class Principal(msgspec.Struct, frozen=True):
    """Authenticated sender of a request: the local administrator, an API key or a cluster node."""

    id: str
    name: str
    caller_id: str  # caller id that selects the credentials of calls; "" for the local administrator
    admin: bool = False
    scopes: tuple[str, ...] | None = None  # groups, and `server/name`; None = everything
    rate: Rate | None = None  # rate limit; None = unlimited
    search: bool = False  # /mcp and all groups list the meta-tools of tool search
    is_node: bool = False  # another node of the cluster, which forwards calls of callers named by a call token

    def can_access(self, endpoint: str) -> bool:
        """Return True if this principal may use an MCP endpoint.

        `endpoint` is the name of a group, `server/name`, or "" for `/mcp`. Every principal may use `/mcp` and
        `/mcp/search`, with the tools of its scopes.
        """
        return self.scopes is None or not endpoint or endpoint == SEARCH_ENDPOINT or endpoint in self.scopes


LOCAL_ADMIN: Final = Principal("local", "the owner of this gateway", "", admin=True)


class ApiKey(msgspec.Struct, frozen=True):
    """An API key as it is stored: its hash, never the key itself."""

    id: str
    name: str
    hash: str
    scopes: tuple[str, ...] | None = None
    admin: bool = False
    created: float = 0.0
    rate: Rate | None = None
    search: bool = False  # /mcp and all groups list the meta-tools of tool search

    def to_principal(self) -> Principal:
        return Principal(self.id, self.name, f"key:{self.id}", self.admin, self.scopes, self.rate, self.search)


class _KeysFile(msgspec.Struct):
    format: int = 1
    keys: list[ApiKey] = msgspec.field(default_factory=list)


class ApiKeyStore(ABC):
    """The token of this machine and all API keys, in memory; subclasses store the API keys.

    A lookup costs one hash, independent of the number of API keys.
    """

    def __init__(self, token: str) -> None:
        self._token_hash = _hash_token(token)
        self._keys: dict[str, ApiKey] = {}  # by hash
        self.change_count = 0  # how often the keys have changed
        self._change_callbacks: list[Callable[[], None]] = []
        self._revocation_callbacks: list[Callable[[str], None]] = []

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback` at every change of the API keys from now on, before anything else learns of it."""
        self._change_callbacks.append(callback)

    def on_revoked(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the id of every API key that is revoked or changed from now on."""
        self._revocation_callbacks.append(callback)

    def authenticate(self, token: str) -> Principal | None:
        """Return the principal of a bearer token, or None if the token is unknown."""
        hashed = _hash_token(token)
        if hmac.compare_digest(hashed, self._token_hash):
            return LOCAL_ADMIN
        key = self._keys.get(hashed)
        return key.to_principal() if key is not None else None

    def principal_for(self, id: str) -> Principal | None:
        """Return the principal of the API key with this id; None if there is no such key (any more)."""
        return next((key.to_principal() for key in self._keys.values() if key.id == id), None)

    def credential_hash(self, id: str) -> str:
        """Return the hash of the token that proves a principal: of this machine's token, or of an API key.

        Empty if there is no such key (any more).
        """
        if id == LOCAL_ADMIN.id:
            return self._token_hash
        return next((key.hash for key in self._keys.values() if key.id == id), "")

    def list_keys(self) -> Sequence[ApiKey]:
        return list(self._keys.values())

    @abstractmethod
    async def create_key(
        self,
        name: str,
        scopes: Iterable[str] | None,
        admin: bool,
        now: float,
        rate: Rate | None = None,
        search: bool = False,
    ) -> tuple[str, ApiKey]:
        """Create and store an API key. Return its token, shown only once, and its stored entry.

        Raises `OSError` if the file cannot be written, `ServerUnavailable` if the cluster database does not respond.
        """

    @abstractmethod
    async def revoke_key(self, id: str) -> bool:
        """Revoke an API key. Return False if there is no key with this id.

        Raises `OSError` if the file cannot be written, `ServerUnavailable` if the cluster database does not respond.
        """

    @abstractmethod
    def reload(self) -> None:
        """Load changes made by another process. Raises `ConfigError` if the stored keys are invalid."""

    def _replace_keys(self, keys: Iterable[ApiKey]) -> None:
        previous, self._keys = self._keys, {key.hash: key for key in keys}
        self.change_count += 1
        for on_changed in self._change_callbacks:
            on_changed()
        for hashed, key in previous.items():
            if self._keys.get(hashed) != key:
                for callback in self._revocation_callbacks:
                    callback(key.id)


class FileApiKeyStore(ApiKeyStore):
    """Store of API keys in a JSON file, which several processes may change."""

    def __init__(self, file: Path, token: str) -> None:
        super().__init__(token)
        self._file = file
        self._stamp: tuple[int, ...] | None = None
        self.reload()

    async def create_key(
        self,
        name: str,
        scopes: Iterable[str] | None,
        admin: bool,
        now: float,
        rate: Rate | None = None,
        search: bool = False,
    ) -> tuple[str, ApiKey]:
        return self.create_key_sync(name, scopes, admin, now, rate, search)

    async def revoke_key(self, id: str) -> bool:
        return self.revoke_key_sync(id)

    def create_key_sync(
        self,
        name: str,
        scopes: Iterable[str] | None,
        admin: bool,
        now: float,
        rate: Rate | None = None,
        search: bool = False,
    ) -> tuple[str, ApiKey]:
        """Create an API key and write the file; blocks. Return its token and its stored entry.

        Raises `OSError` if the file cannot be written.
        """
        token, key = generate_key(name, scopes, admin, now, rate, search)
        with self._locked():
            self._save([*self._keys.values(), key])
        return token, key

    def revoke_key_sync(self, id: str) -> bool:
        """Revoke an API key and write the file; blocks. Return False if the id is unknown.

        Raises `OSError` if the file cannot be written.
        """
        with self._locked():
            remaining = [key for key in self._keys.values() if key.id != id]
            if len(remaining) == len(self._keys):
                return False
            self._save(remaining)
        return True

    def reload(self) -> None:
        """Read the file again if another process changed it. Raises `ConfigError` if it is invalid."""
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            self._set_keys([], None)
            return
        stamp = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp:
            return
        try:
            if stat.st_size > _MAX_FILE_BYTES:
                raise ValueError("file is too large")
            keys = msgspec.json.decode(self._file.read_bytes(), type=_KeysFile).keys
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"cannot read the file of API keys: {self._file}",
                detail=str(exc),
                hint="move the file away; all keys must then be created again",
                code="E-KEYS-FILE",
            ) from None
        self._set_keys(keys, stamp)

    def _set_keys(self, keys: Iterable[ApiKey], stamp: tuple[int, ...] | None) -> None:
        self._stamp = stamp
        self._replace_keys(keys)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file and reload it, so that a concurrent change cannot restore a revoked key."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._file.with_name(f".{self._file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self.reload()
            yield
        finally:
            os.close(handle)

    def _save(self, keys: list[ApiKey]) -> None:
        write_private(self._file, msgspec.json.encode(_KeysFile(keys=keys)))
        self._stamp = None  # the file system clock may be too coarse to show the change
        self.reload()


def generate_key(
    name: str, scopes: Iterable[str] | None, admin: bool, now: float, rate: Rate | None, search: bool = False
) -> tuple[str, ApiKey]:
    """Generate an API key. Return its token and the entry to store, which has only a hash.

    Raises `ConfigError` if the name has unprintable characters, if a scope is no name, or if an administrator's key has
    scopes.
    """
    if not is_valid_key_name(name):
        raise ConfigError(
            "invalid name of an API key",
            detail=ascii(name[:MAX_KEY_NAME_CHARS]),
            hint=f"use 1 to {MAX_KEY_NAME_CHARS} printable characters in one line",
            code="E-KEYS-NEW",
        )
    if admin and scopes is not None:
        raise ConfigError(
            "an administrator's key cannot have a scope",
            detail="/admin can call every tool and create further keys, so a scope would restrict nothing",
            hint="create two keys: one with --scope, one with --admin",
            code="E-KEYS-NEW",
        )
    scope_names = tuple(scopes) if scopes is not None else None
    for scope in scope_names or ():
        if not is_valid_scope(scope):
            raise ConfigError(
                "invalid scope of an API key",
                detail=ascii(scope[:MAX_KEY_NAME_CHARS]),
                hint=f"name a group, one server as server/NAME, or {METRICS_SCOPE}; for several servers define a group",
                code="E-KEYS-NEW",
            )
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return token, ApiKey(secrets.token_hex(4), name, _hash_token(token), scope_names, admin, now, rate, search)


def is_valid_scope(scope: str) -> bool:
    """Return True if an API key may have this scope: a group, `server/name` or `/metrics`, but no pattern."""
    return scope == METRICS_SCOPE or _SCOPE.fullmatch(scope) is not None


def is_valid_key_name(name: str) -> bool:
    """Return True if an API key may have this name: 1 to 100 printable characters in one line."""
    return 0 < len(name) <= MAX_KEY_NAME_CHARS and name.isprintable() and remove_invisible(name) == name


def read_local_token(file: Path) -> str:
    """Return the administrator token of this machine from `file`, which is created at first use.

    Raises `OSError` if the file is not accessible, `ConfigError` if the token is too short.
    """
    token = read_or_create(file, lambda: (TOKEN_PREFIX + secrets.token_urlsafe(32)).encode()).decode("latin-1").strip()
    if len(token) < _MIN_TOKEN_CHARS:
        raise ConfigError(
            f"token of this machine is unusable: {file}",
            detail=f"it has {len(token)} characters; at least {_MIN_TOKEN_CHARS} are required",
            hint="move the file away; a new token is created at the next start",
            code="E-STATE",
        )
    return token


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
