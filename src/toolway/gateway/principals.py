"""Principals and API keys: the local administrator, and everyone with a key.

The local token is created on the first start, in a file that only its owner can read. API keys are random, shown
once, and stored as hashes. Each key is limited to the endpoints it was created for.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from toolway._os import O_UNSHARED, lock_handle
from toolway.errors import ConfigError
from toolway.gateway.rate_limit import Rate
from toolway.part_api import registry
from toolway.protocol.jsonrpc import encode_json
from toolway.protocol.sanitize import remove_invisible
from toolway.secrets.encrypted_file import read_or_create, write_private
from toolway.types import Json

TOKEN_PREFIX: Final = "tw_"
MAX_KEY_NAME_CHARS: Final = 100
ACCESS_PREFIX: Final = "access:"  # access of a user: a group of the identity provider; no API key can have it
KEY_PREFIX: Final = "key:"  # caller ids of API keys
USER_PREFIX: Final = "user:"  # ids of users that an identity provider logs in
METRICS_ACCESS: Final = "/metrics"  # what an API key may be limited to; no toolset can have this name
SEARCH_ENDPOINT: Final = "search"  # /mcp/search: all tools, found by search; no toolset can have this name
_ACCESS_NAME: Final = re.compile(r"(?:server/)?[a-z0-9-]{1,64}")  # a toolset, or one server: no pattern
_MIN_TOKEN_CHARS: Final = 16  # characters of the token of this machine, even if the user wrote it
MAX_EXPIRY: Final = 253_402_300_799.0  # the last second of the year 9999
#: Rate of a key that is made without one. No agent makes so many calls for long, a program that runs wild does.
DEFAULT_KEY_RATE: Final = "100/s"
NO_RATE: Final = "none"  # in place of a rate: the key has no limit
ENDED_LOGINS_S: Final = 30 * 86_400.0  # seconds after which the end of logins is forgotten: no access token is so old
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024


class Principal(msgspec.Struct, frozen=True):
    """The authenticated sender of a request: the local administrator, an API key, a user, or a cluster node."""

    id: str
    name: str
    caller_id: str  # caller id that selects the credentials of calls; "" for the local administrator
    admin: bool = False
    access: tuple[str, ...] | None = None  # toolsets, `server/name`, or `access:` of a user; None = everything
    rate: Rate | None = None  # rate limit; None = unlimited
    search: bool = False  # /mcp and all toolsets list the meta-tools of tool search
    is_node: bool = False  # another node of the cluster, which forwards calls of callers named by a call token
    expires_at: float | None = None  # seconds since 1970 at which an API key ends; None: it does not
    granted: tuple[str, ...] = ()  # OAuth scopes of a user's token, out of the OAuth scopes that some tools require
    attributes: tuple[tuple[str, str], ...] = ()  # of this API key, which parts add: name and JSON
    # Of a user, for policies:
    subject: str = ""  # at the identity provider
    groups: tuple[str, ...] = ()  # of the identity provider, sorted
    client: str = ""  # id of the client program that the token was issued to
    mfa: bool = False  # the user logged in with several factors

    def can_access(self, endpoint: str) -> bool:
        """Return True if this principal may use an MCP endpoint.

        `endpoint` is the name of a toolset, `server/name`, or "" for `/mcp`. Every principal may use `/mcp` and
        `/mcp/search`, with the tools it has access to, and a user all toolsets.
        """
        if self.access is None or not endpoint or endpoint == SEARCH_ENDPOINT or endpoint in self.access:
            return True
        return self.is_user and not endpoint.startswith("server/")

    @property
    def roles(self) -> tuple[str, ...]:
        """Names under which this principal may answer a workflow run's questions: a key's name, groups, `admin`.

        A user has group names instead of a name, because users choose their own names. `admin` is only for
        administrators.
        """
        names = self.groups if self.is_user else (self.name,)
        return (*(each for each in names if each != "admin"), *(("admin",) if self.admin else ()))

    @property
    def is_user(self) -> bool:
        """True if an identity provider logged this principal in."""
        return self.id.startswith(USER_PREFIX)


LOCAL_ADMIN: Final = Principal("local", "local", "", admin=True)


class ApiKey(msgspec.Struct, frozen=True):
    """An API key as stored: its hash, never the key itself.

    An entry with `ended_user` is not a key. It means that a user's tokens issued before `created` are rejected. It
    is stored with the keys, so all workers and nodes learn of both at the same time.
    """

    id: str
    name: str
    hash: str
    access: tuple[str, ...] | None  # without a default: a stored key without it is invalid, not unlimited
    admin: bool = False
    created: float = 0.0
    rate: Rate | None = None
    search: bool = False  # /mcp and all toolsets list the meta-tools of tool search
    expires: float | None = None  # seconds since 1970 from which it is rejected; None: it never expires
    ended_user: str = ""  # principal id
    made_by: str = ""  # caller id of the key or user that made it, or made its maker; "": the token of this machine
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)  # which parts add; stored next to the other fields

    def to_principal(self) -> Principal:
        return Principal(
            self.id,
            self.name,
            f"{KEY_PREFIX}{self.id}",
            self.admin,
            self.access,
            self.rate,
            self.search,
            expires_at=self.expires,
            attributes=tuple((name, encode_json(each).decode()) for name, each in self.attributes.items()),
        )

    def is_valid(self) -> bool:
        """Return False if the key has expired, or has a limit that no part of this gateway enforces."""
        if self.attributes and not self.attributes.keys() <= registry.key_attributes().keys():
            return False
        return self.expires is None or time.time() < self.expires

    def to_json(self) -> Json:
        """Return the key as it is stored, with the attributes that parts added as fields."""
        fields: Json = msgspec.to_builtins(self)
        attributes = fields.pop("attributes")
        return {**fields, **attributes}

    @staticmethod
    def from_json(stored: Json, *, strict: bool = True) -> ApiKey:
        """Read a stored key. Raises `msgspec.ValidationError` if it is invalid."""
        own = {name: each for name, each in stored.items() if name in _KEY_FIELDS}
        others = {name: each for name, each in stored.items() if name not in _KEY_FIELDS and each not in (None, [])}
        return msgspec.convert({**own, "attributes": others}, ApiKey, strict=strict)


_KEY_FIELDS: Final = frozenset(ApiKey.__struct_fields__) - {"attributes"}


def show_key(key: ApiKey) -> Json:
    """Return an API key as administrators see it, without its hash."""
    rate = str(key.rate) if key.rate is not None else None
    fields = {"id": key.id, "name": key.name, "access": key.access, "admin": key.admin, "created": key.created}
    limits = {
        name: each.show(key.attributes[name]) if name in key.attributes else each.empty
        for name, each in registry.key_attributes().items()
    }
    return {**fields, "rate": rate, **limits, "search": key.search, "expires": key.expires, "made_by": key.made_by}


class _KeysFile(msgspec.Struct):
    format: int = 1
    keys: list[dict[str, Any]] = msgspec.field(default_factory=list)


class ApiKeyStore(ABC):
    """Stores the local token and all API keys in memory. Subclasses also store the keys elsewhere.

    A lookup takes one hash, however many API keys there are.
    """

    def __init__(self, token: str) -> None:
        self._token_hash = _hash_token(token)
        self._keys: dict[str, ApiKey] = {}  # by hash
        self._ended_logins: Mapping[str, float] = {}  # by the user's principal id
        self.change_count = 0  # how often the keys have changed
        self._change_callbacks: list[Callable[[], None]] = []
        self._revocation_callbacks: list[Callable[[str], None]] = []

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change to the API keys, before the callbacks of `on_revoked`."""
        self._change_callbacks.append(callback)

    def on_revoked(self, callback: Callable[[str], None]) -> None:
        """Register a callback that gets the id of every API key that is revoked or changed.

        It also gets the principal id of every user whose logins are ended.
        """
        self._revocation_callbacks.append(callback)

    def authenticate(self, token: str) -> Principal | None:
        """Return the principal of a bearer token, or None if the token is unknown."""
        hashed = _hash_token(token)
        if hmac.compare_digest(hashed, self._token_hash):
            return LOCAL_ADMIN
        key = self._keys.get(hashed)
        return key.to_principal() if key is not None and key.is_valid() else None

    def principal_for(self, id: str) -> Principal | None:
        """Return the principal of the API key with this id, or None if it does not exist."""
        found = (key for key in self._keys.values() if key.id == id and not key.ended_user)
        return next((key.to_principal() for key in found if key.is_valid()), None)

    def user_of(self, caller_id: str) -> str:
        """Return one caller id for all keys that belong to the same user.

        A key made with another key, or by a user who logged in, belongs to its maker, and so do the keys made with
        it. Keys made with the local token belong to different users, because the machine's owner hands them out. ""
        is the local token.
        """
        id_ = caller_id.removeprefix(KEY_PREFIX)
        if id_ == caller_id:
            return caller_id
        return next((key.made_by for key in self._keys.values() if key.id == id_ and key.made_by), caller_id)

    def credential_hash(self, id: str) -> str:
        """Return the hash of the token with which a principal authenticates: the local token's or an API key's.

        Return "" if no such key exists (any more).
        """
        if id == LOCAL_ADMIN.id:
            return self._token_hash
        return next((key.hash for key in self._keys.values() if key.id == id), "")

    def list_keys(self) -> Sequence[ApiKey]:
        """Return all API keys, including expired ones."""
        return [key for key in self._keys.values() if not key.ended_user]

    def ended_logins(self) -> Mapping[str, float]:
        """Return when an administrator ended users' logins, in seconds since 1970, by principal id."""
        return self._ended_logins

    async def create_key(
        self,
        name: str,
        access: Iterable[str] | None,
        admin: bool,
        now: float,
        rate: Rate | None = None,
        search: bool = False,
        expires: float | None = None,
        made_by: str = "",
        **attributes: Any,
    ) -> tuple[str, ApiKey]:
        """Create and store an API key. Return its token, shown only once, and its stored entry.

        `made_by` is the user (`user_of`) behind the principal who asks for the key. `attributes` are limits that
        parts add (`KeyAttribute`).

        Raises `OSError` if the file cannot be written, and `ServerUnavailable` if the cluster database does not
        respond.
        """
        token, key = generate_key(name, access, admin, now, rate, search, expires, made_by, **attributes)
        await self.add_key(key)
        return token, key

    @abstractmethod
    async def add_key(self, key: ApiKey) -> None:
        """Store a new API key. Raises the same errors as `create_key`."""

    @abstractmethod
    async def end_logins(self, user: str, now: float) -> None:
        """Reject all access tokens issued to a user before `now`. `user` is a principal id.

        Raises `OSError` if the file cannot be written, and `ServerUnavailable` if the cluster database does not
        respond.
        """

    @abstractmethod
    async def revoke_key(self, id: str) -> bool:
        """Revoke an API key. Return False if no key has this id.

        Raises `OSError` if the file cannot be written, and `ServerUnavailable` if the cluster database does not
        respond.
        """

    @abstractmethod
    def reload(self) -> None:
        """Load changes to API keys made by another process. Raises `ConfigError` if the stored keys are invalid."""

    def _replace_keys(self, keys: Iterable[ApiKey]) -> None:
        previous, self._keys = self._keys, {key.hash: key for key in keys}
        self._ended_logins = _latest_ends(self._keys.values())
        self.change_count += 1
        for on_changed in self._change_callbacks:
            on_changed()
        for hashed, key in previous.items():
            if self._keys.get(hashed) != key:
                for callback in self._revocation_callbacks:
                    callback(key.id)
        for hashed, key in self._keys.items():
            if key.ended_user and hashed not in previous:
                for callback in self._revocation_callbacks:
                    callback(key.ended_user)


class FileApiKeyStore(ApiKeyStore):
    """Stores API keys in a JSON file, which several processes may change."""

    def __init__(self, file: Path, token: str) -> None:
        super().__init__(token)
        self._file = file
        self._stamp: tuple[int, ...] | None = None
        self.reload()

    async def add_key(self, key: ApiKey) -> None:
        self._add_key_sync(key)

    async def revoke_key(self, id: str) -> bool:
        return self.revoke_key_sync(id)

    async def end_logins(self, user: str, now: float) -> None:
        with self._locked():
            kept = [key for key in self._keys.values() if not key.ended_user or key.created > now - ENDED_LOGINS_S]
            self._save([*kept, generate_ended_login(user, now)])

    def create_key_sync(
        self,
        name: str,
        access: Iterable[str] | None,
        admin: bool,
        now: float,
        rate: Rate | None = None,
        search: bool = False,
        expires: float | None = None,
        made_by: str = "",
        **attributes: Any,
    ) -> tuple[str, ApiKey]:
        """Create an API key and write the file; blocks. Return its token and its stored entry.

        Raises `OSError` if the file cannot be written.
        """
        token, key = generate_key(name, access, admin, now, rate, search, expires, made_by, **attributes)
        self._add_key_sync(key)
        return token, key

    def _add_key_sync(self, key: ApiKey) -> None:
        with self._locked():
            self._save([*self._keys.values(), key])

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
        """Read the file again if another process changed it. Raises `ConfigError` if the file is invalid."""
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
            stored = msgspec.json.decode(self._file.read_bytes(), type=_KeysFile).keys
            keys = [ApiKey.from_json(each) for each in stored]
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"cannot read the API key file: {self._file}",
                detail=str(exc),
                hint="restore the file, or move it away and create all keys again",
                code="E-KEYS-FILE",
            ) from None
        self._set_keys(keys, stamp)

    def _set_keys(self, keys: Iterable[ApiKey], stamp: tuple[int, ...] | None) -> None:
        self._stamp = stamp
        self._replace_keys(keys)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file and reload it, so a concurrent change cannot restore a revoked key."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._file.with_name(f".{self._file.name}.lock"), os.O_RDWR | os.O_CREAT | O_UNSHARED, 0o600)
        try:
            lock_handle(handle)
            self.reload()
            yield
        finally:
            os.close(handle)

    def _save(self, keys: list[ApiKey]) -> None:
        write_private(self._file, msgspec.json.encode(_KeysFile(keys=[key.to_json() for key in keys])))
        self._stamp = None  # the file system clock may be too coarse to show the change
        self.reload()


def generate_ended_login(user: str, now: float) -> ApiKey:
    """Return the stored entry that says a user's logins were ended at `now`."""
    id_ = secrets.token_hex(4)
    return ApiKey(id_, "", f"ended:{user}:{id_}", access=(), created=now, ended_user=user)


def _latest_ends(keys: Iterable[ApiKey]) -> Mapping[str, float]:
    ends: dict[str, float] = {}
    for key in keys:
        if key.ended_user:
            ends[key.ended_user] = max(key.created, ends.get(key.ended_user, 0.0))
    return ends


def generate_key(
    name: str,
    access: Iterable[str] | None,
    admin: bool,
    now: float,
    rate: Rate | None,
    search: bool = False,
    expires: float | None = None,
    made_by: str = "",
    **attributes: Any,
) -> tuple[str, ApiKey]:
    """Generate an API key. Return its token and the entry to store, which has only a hash.

    Raises `ConfigError` if the name contains unprintable characters, if `access` has a pattern, if an administrator's
    key is limited, or if the key would already have expired.
    """
    if expires is not None and not now < expires <= MAX_EXPIRY:
        raise ConfigError(
            "an API key's expiry must be in the future",
            detail=f"the time is {expires:.0f} seconds since 1970",
            hint="use --expires 90d, or a date such as 2027-01-31",
            code="E-KEYS-NEW",
        )
    if not is_valid_key_name(name):
        raise ConfigError(
            "invalid API key name",
            detail=ascii(name[:MAX_KEY_NAME_CHARS]),
            hint=f"use 1 to {MAX_KEY_NAME_CHARS} printable characters on one line",
            code="E-KEYS-NEW",
        )
    if admin and access is not None:
        raise ConfigError(
            "an administrator's key cannot be limited",
            detail="/admin can call every tool and create more keys, so a limit would change nothing",
            hint="create two keys: one with --only, one with --admin",
            code="E-KEYS-NEW",
        )
    names = tuple(access) if access is not None else None
    for each in names or ():
        if not is_valid_access(each):
            raise ConfigError(
                "an API key cannot be limited to this",
                detail=ascii(each[:MAX_KEY_NAME_CHARS]),
                hint=f"use a toolset, server/NAME, or {METRICS_ACCESS}; for several servers, define a toolset",
                code="E-KEYS-NEW",
            )
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    hashed = _hash_token(token)
    key = ApiKey(secrets.token_hex(4), name, hashed, names, admin, now, rate, search, expires)
    return token, msgspec.structs.replace(key, made_by=made_by, attributes=_read_attributes(attributes))


def parse_key_rate(text: str | None) -> Rate | None:
    """Parse a new API key's rate limit; the default for None, and no limit (None) for `none`.

    Raises `ValueError` if the text is not a rate.
    """
    if text == NO_RATE:
        return None
    try:
        return Rate.parse(text if text is not None else DEFAULT_KEY_RATE)
    except ValueError as exc:
        raise ValueError(f"{exc}, or {NO_RATE} for no limit") from None


def _read_attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an API key's attributes from parts as they are stored. Raises `ConfigError`."""
    known, found = registry.key_attributes(), dict[str, Any]()
    for name, value in given.items():
        if value is None:
            continue
        try:
            stored = known[name].read(value)
        except (KeyError, ValueError) as exc:
            raise ConfigError(
                f"invalid {name} of an API key",
                detail=f"no part has this attribute: {name}" if isinstance(exc, KeyError) else str(exc),
                code="E-KEYS-NEW",
            ) from None
        if stored is not None:
            found[name] = stored
    return found


def is_valid_access(name: str) -> bool:
    """Return True if an API key may be limited to this: a toolset, `server/name` or `/metrics`, but no pattern."""
    return name == METRICS_ACCESS or _ACCESS_NAME.fullmatch(name) is not None


def is_valid_key_name(name: str) -> bool:
    """Return True if an API key may have this name: 1 to 100 printable characters on one line."""
    return 0 < len(name) <= MAX_KEY_NAME_CHARS and name.isprintable() and remove_invisible(name) == name


def read_local_token(file: Path) -> str:
    """Return the local administrator token from `file`, which is created on first use.

    Raises `OSError` if the file is not accessible, and `ConfigError` if the token is too short.
    """
    token = read_or_create(file, lambda: (TOKEN_PREFIX + secrets.token_urlsafe(32)).encode()).decode("latin-1").strip()
    if len(token) < _MIN_TOKEN_CHARS:
        raise ConfigError(
            f"the local token is unusable: {file}",
            detail=f"it has {len(token)} characters; at least {_MIN_TOKEN_CHARS} are required",
            hint="move the file away; a new token is created on the next start",
            code="E-STATE",
        )
    return token


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
