"""An identity provider's public keys: finds them through its metadata, fetches them, and keeps them if it goes down.

Old keys stay in use until a fetch succeeds. So if a provider is down, or answers with anything but keys, nobody is
locked out for `KEYS_LIFETIME_S`. Unknown key ids cause at most one fetch per `UNKNOWN_KEY_INTERVAL_S`, for all requests
together, because every client can make up key ids.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from toolway.auth.urls import check_oauth_url
from toolway.errors import ConfigError
from toolway.parts.identity.access_tokens import InvalidToken
from toolway.parts.identity.settings import LoginSettings
from toolway.protocol.jsonrpc import decode_json
from toolway.types import AuthError, Json

KEYS_LIFETIME_S: Final = 24 * 3600.0  # seconds for which keys are used after they were fetched
REFRESH_INTERVAL_S: Final = 300.0  # seconds between two fetches, so a withdrawn key is noticed
RETRY_INTERVAL_S: Final = 15.0  # seconds between two fetches while the provider is down
UNKNOWN_KEY_INTERVAL_S: Final = 30.0  # seconds between two fetches because of unknown key ids
MAX_REQUESTED_KEYS: Final = 1000  # unknown key ids that are remembered; the bearers of more try again later
MAX_KEYS: Final = 100  # keys of one provider; more are ignored
MIN_RSA_BITS: Final = 2048
_EC_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_PUBLIC_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_log = logging.getLogger("toolway.gateway")

#: Returns the body of a document of the provider. Raises `AuthError` if it cannot be fetched.
Fetch = Callable[[str], Awaitable[bytes]]


class SigningKey(NamedTuple):
    """One of a provider's public keys, and the signature algorithms that it may be used with."""

    algorithms: frozenset[str]
    key: Any  # of joserfc
    identity: str  # the public members of the key, to compare keys

    def verify(self, token: str, algorithm: str) -> None:
        """Verify a compact JWT's signature. Raises `InvalidToken` if this key did not sign it."""
        from joserfc.errors import JoseError
        from joserfc.jws import JWSRegistry

        signed, _, signature = token.rpartition(".")
        if algorithm not in self.algorithms:
            raise InvalidToken("the signature is invalid")
        model = JWSRegistry.algorithms[algorithm]
        try:
            model.check_key(self.key)
            is_valid = model.verify(signed.encode(), _decode_base64(signature), self.key)
        except (JoseError, ValueError):
            is_valid = False
        if is_valid is not True:
            raise InvalidToken("the signature is invalid")


class SigningKeys:
    """All usable keys in one JWKS document."""

    def __init__(self, keys: Mapping[tuple[str, str], SigningKey]) -> None:
        self._keys = dict(keys)  # by key id and kind

    def find(self, key_id: str, algorithm: str) -> SigningKey | None:
        """Return the key for a token with this key id and algorithm, or None if no key fits.

        A token without a key id gets a key only if there is exactly one for its algorithm.
        """
        found = [
            key for (id_, _), key in self._keys.items() if algorithm in key.algorithms and (id_ == key_id or not key_id)
        ]
        return found[0] if len(found) == 1 else None

    def has_id(self, key_id: str) -> bool:
        """Return True if any key has this id, whatever its algorithm."""
        return any(id_ == key_id for id_, _ in self._keys)

    def has_all_of(self, other: SigningKeys) -> bool:
        """Return True if this set contains every key of `other` under the same id."""
        return all(
            name in self._keys and self._keys[name].identity == key.identity for name, key in other._keys.items()
        )

    def __len__(self) -> int:
        return len(self._keys)


def parse_jwks(data: bytes) -> SigningKeys:
    """Return the usable keys in a JWKS document. Raises `ValueError` if it is invalid or has no usable key.

    Encryption keys, symmetric keys, weak keys, and keys published with their private part are left out.
    """
    document = decode_json(data)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is not a JWKS document")
    keys: dict[tuple[str, str], SigningKey] = {}
    for entry in entries[:MAX_KEYS]:
        key = _parse_key(entry) if isinstance(entry, dict) else None
        if key is not None:
            keys.setdefault((entry.get("kid", ""), entry["kty"]), key)
    if not keys:
        raise ValueError("it has no usable public key")
    return SigningKeys(keys)


def _parse_key(entry: Json) -> SigningKey | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    kind, id_, usage = entry.get("kty"), entry.get("kid", ""), entry.get("key_ops")
    if not isinstance(kind, str) or kind not in _PUBLIC_MEMBERS or not isinstance(id_, str):
        return None
    if entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    if usage is not None and (not isinstance(usage, list) or "verify" not in usage):
        return None
    public: dict[str, Any] = {name: entry.get(name) for name in ("kty", *_PUBLIC_MEMBERS[kind])}
    if not all(isinstance(value, str) for value in public.values()):
        return None
    try:
        algorithms = _algorithms_of(public)
        if not algorithms:
            return None
        key = JWKRegistry.import_key(public)
        key.get_op_key("verify")  # decodes the key now, not at the first token
    except (JoseError, ValueError, TypeError):
        return None
    stated = entry.get("alg")
    if stated is not None:
        algorithms &= {stated} if isinstance(stated, str) else set()
    return SigningKey(frozenset(algorithms), key, repr(sorted(public.items()))) if algorithms else None


def _algorithms_of(public: Mapping[str, Any]) -> set[str]:
    """Return the signature algorithms that a public key may be used for.

    There are none if the key is weak or its curve is unknown.
    """
    if public["kty"] == "RSA":
        return set(_RSA_ALGORITHMS) if len(_decode_base64(public["n"]).lstrip(b"\0")) * 8 >= MIN_RSA_BITS else set()
    if public["kty"] == "EC":
        name = _EC_ALGORITHMS.get(public["crv"])
        return {name} if name is not None else set()
    return {"EdDSA", "Ed25519"} if public["crv"] == "Ed25519" else set()


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except Base64Error:
        raise ValueError("invalid base64") from None


def require_joserfc() -> None:
    """Raise `ConfigError` if the signature library is not installed."""
    try:
        import joserfc.jws  # noqa: F401 - loaded here, before the first request needs it
    except ImportError as exc:
        raise ConfigError(
            "logins with an identity provider need the `login` extra",
            detail=str(exc),
            hint="pip install 'toolway[login]'",
            code="E-LOGIN-MISSING",
        ) from None


class ProviderKeys:
    """The identity provider's public keys: fetches them, and returns the ones that are valid now.

    `on_changed` is called when a key was withdrawn, because the tokens it signed are no longer valid. `on_problem` is
    called with the reason if the keys cannot be fetched, and with "" once they can be fetched again; `logs` also writes
    the reason to the log. `now` returns the wall-clock time, which tokens use.
    """

    def __init__(
        self,
        settings: LoginSettings,
        fetch: Fetch,
        on_changed: Callable[[], None],
        on_problem: Callable[[str], None] = lambda reason: None,
        now: Callable[[], float] = time.time,
        logs: bool = True,
    ) -> None:
        self._settings = settings
        self._logs = logs
        self._fetch = fetch
        self._on_changed = on_changed
        self._on_problem = on_problem
        self._now = now
        self._keys: SigningKeys | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._next_unknown = 0.0  # when an unknown key id may lead to a fetch again
        self._requested: set[str] = set()  # unknown key ids for which the keys are being fetched
        self._absent: set[str] = set()  # key ids that the last fetch was for, and that the provider does not have
        self.good_until = 0.0  # wall time until which the keys are used
        self.problem = "the identity provider's signing keys are not fetched yet"  # "" after a fetch that succeeded
        self.stated_issuer = ""  # of the provider's metadata, if it is another one than in the settings
        self.fetch_count = 0

    @property
    def current(self) -> SigningKeys | None:
        """The keys that may be used now, or None if there are none or the last fetch was too long ago."""
        return self._keys if self._now() < self.good_until else None

    def refresh_for_unknown_key(self, key_id: str) -> asyncio.Task[None] | None:
        """Return the fetch that a token with an unknown key id has to wait for, starting one if none is running.

        Return None if the last fetch for an unknown id was too recent.
        """
        task, now = self._refresh_task, self._now()
        if task is None or task.done():
            if now < self._next_unknown:
                return None
            self._next_unknown = now + UNKNOWN_KEY_INTERVAL_S
            task = self._start_refresh()
        if len(self._requested) < MAX_REQUESTED_KEYS:
            self._requested.add(key_id)
        return task

    def is_absent(self, key_id: str) -> bool:
        """Return True if keys were just fetched because of this id, and the provider does not have the key."""
        return key_id in self._absent and self._now() < self._next_unknown

    @property
    def retry_after(self) -> int:
        """The number of seconds after which a client may try a token with an unknown key id again."""
        return max(1, min(int(UNKNOWN_KEY_INTERVAL_S), int(self._next_unknown - self._now()) + 1))

    async def refresh(self) -> None:
        """Fetch the keys now, or wait for the fetch that is running.

        If it fails, `problem` says why, and the old keys stay in use.
        """
        task = self._refresh_task
        await asyncio.shield(task if task is not None and not task.done() else self._start_refresh())

    def _start_refresh(self) -> asyncio.Task[None]:
        self._refresh_task = asyncio.get_running_loop().create_task(self._refresh_once())
        return self._refresh_task

    async def run(self) -> None:
        """Fetch the keys at regular intervals, until this is cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(RETRY_INTERVAL_S if self.problem else REFRESH_INTERVAL_S)

    async def close(self) -> None:
        """Cancel the running fetch, if any."""
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.gather(self._refresh_task, return_exceptions=True)

    async def _refresh_once(self) -> None:
        self.fetch_count += 1
        previous = self.problem
        try:
            url = self._settings.jwks or await self._discover()
            keys = parse_jwks(await self._fetch(url))
        except Exception as exc:  # whatever its documents contain, they are fetched again later
            self.problem = str(exc) or type(exc).__name__
            if self.problem != previous:
                if self._logs:
                    _log.warning("%s", _fetch_error(self._settings.issuer, self.problem))
                self._on_problem(self.problem)
            return
        self._absent, self._requested = self._requested, set()
        withdrawn = self._keys is not None and not keys.has_all_of(self._keys)
        self._keys, self.problem = keys, ""
        self.good_until = self._now() + KEYS_LIFETIME_S
        if previous:
            self._on_problem("")
        if withdrawn:
            self._on_changed()

    async def _discover(self) -> str:
        """Return the keys' URL from the provider's metadata (OpenID Connect, or else RFC 8414).

        Raises `AuthError` or `ValueError` if the metadata is missing or belongs to a different issuer.
        """
        issuer = self._settings.issuer
        parts = urlsplit(issuer)
        plain = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{parts.path.rstrip('/')}"
        problem: Exception | None = None
        for url in (f"{issuer.rstrip('/')}/.well-known/openid-configuration", plain):
            try:
                metadata = decode_json(await self._fetch(url))
            except (AuthError, ValueError) as exc:
                problem = problem or exc
                continue
            named = metadata.get("issuer") if isinstance(metadata, dict) else None
            self.stated_issuer = named if isinstance(named, str) and named != issuer and _is_plain(named) else ""
            return _read_metadata(metadata, issuer)
        assert problem is not None
        raise problem


def _fetch_error(issuer: str, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot fetch the signing keys of the identity provider at {issuer}",
        detail=f"{reason}; known keys stay in use for a day, API keys work",
        hint="check toolway.gateway.login.issuer, the network, and toolway.addresses for a provider in your network",
        code="E-LOGIN-PROVIDER",
    )


def _is_plain(text: str) -> bool:
    """Return True if text from the provider is safe to show and to copy into a config file."""
    return text.isascii() and text.isprintable() and len(text) <= 200 and not {'"', "\\"} & set(text)


def _read_metadata(metadata: Any, issuer: str) -> str:
    """Return `jwks_uri` from a metadata document.

    Raises `ValueError` or `AuthError` if the document must not be used.
    """
    if not isinstance(metadata, dict) or metadata.get("issuer") != issuer:
        named = metadata.get("issuer") if isinstance(metadata, dict) else None
        stated = f"{named[:200]!r}" if isinstance(named, str) else "nothing"
        raise ValueError(f"the metadata of the identity provider names {stated} as issuer, not {issuer!r}")
    url = metadata.get("jwks_uri")
    if not isinstance(url, str):
        raise ValueError("the metadata of the identity provider names no jwks_uri")
    check_oauth_url(url)
    return url
