"""`toolway doctor` checks of the identity provider: its documents, keys, and clock, and a token."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from toolway.cli.exit_codes import UsageError
from toolway.errors import ConfigError
from toolway.network import NetworkPolicy
from toolway.part_api import Check, SubjectReport, split_hint
from toolway.parts.identity.access_tokens import (
    CLOCK_SKEW_S,
    InvalidToken,
    ParsedToken,
    TokenRules,
    is_jwt,
    parse_token,
    read_scopes,
)
from toolway.parts.identity.provider import clock_error, create_fetch
from toolway.parts.identity.settings import LoginSettings, settings_of
from toolway.parts.identity.signing_keys import ProviderKeys, SigningKeys, require_joserfc
from toolway.types import AuthError

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig

PROVIDER_CODE: Final = "E-LOGIN-PROVIDER"
TOKEN_CODE: Final = "E-LOGIN-TOKEN"


async def check_credentials(config: LoadedConfig | None, read: Callable[[], str] | None) -> list[SubjectReport]:
    """Return the report about the configured identity provider, if there is one.

    `read` returns the access token that the user wants checked, or None if they gave none. Raises `UsageError` if there
    is a token but no provider.
    """
    login = settings_of(config.gateway).login if config is not None else None
    if config is None or login is None:
        if read is not None:
            raise UsageError("toolway.gateway.login is not configured", hint="toolway explain E-LOGIN-NONE")
        return []
    token = read() if read is not None else ""
    return [await check_login(login, config.network_policy, token.strip().removeprefix("Bearer "))]


async def check_login(
    settings: LoginSettings,
    network_policy: NetworkPolicy,
    token: str = "",
    now: Callable[[], float] = time.time,
) -> SubjectReport:
    """Return the doctor's report about an identity provider: its documents, keys and clock.

    With `token`, the report also says whether the gateway would accept this access token, and if not, why.
    """
    try:
        require_joserfc()
    except ConfigError as exc:
        check = Check("login", "fail", exc.message, exc.detail, *split_hint(exc.hint), exc.code)
        return SubjectReport("machine", "login", (check,), location=settings.issuer)
    failed: dict[str, str] = {}  # URL → why it was not fetched
    offsets: list[float] = []
    real_fetch = create_fetch(settings, lambda: network_policy, now, offsets.append)

    async def fetch(url: str) -> bytes:
        try:
            return await real_fetch(url)
        except AuthError as exc:
            failed[url] = str(exc)
            raise

    keys = ProviderKeys(settings, fetch, lambda: None, now=now, logs=False)
    await keys.refresh()
    checks = [_check_keys(settings, keys, failed)]
    if offsets:
        checks.append(_check_clock(offsets[-1]))
    if token:
        checks.append(check_token(settings, keys.current, token, now()))
    return SubjectReport("machine", "login", tuple(checks), location=settings.issuer)


def _check_keys(settings: LoginSettings, keys: ProviderKeys, failed: dict[str, str]) -> Check:
    """Return the check `provider`: whether the metadata and the keys can be fetched and used."""
    if keys.current is not None:
        count = len(keys.current)
        return Check("provider", "ok", f"{settings.issuer} publishes {count} usable {'key' if count == 1 else 'keys'}")
    if keys.problem in failed.values():
        url = next(iter(failed))
        return Check(
            "provider",
            "fail",
            f"cannot fetch the documents of the identity provider at {settings.issuer}",
            "\n".join(f"{each}: {reason}" for each, reason in failed.items()),
            "check the issuer, the network, and for a provider in your network toolway.addresses",
            f"curl -sS {url}",
            PROVIDER_CODE,
        )
    stated = keys.stated_issuer
    if stated:
        hint = "use the issuer exactly as the provider spells it"
        return Check("provider", "fail", keys.problem, "", hint, f'"issuer": "{stated}"', PROVIDER_CODE)
    hint = "add a public key for signatures to the provider's JWKS: RSA with 2048 bits or more, P-256, or Ed25519"
    message = f"the identity provider at {settings.issuer} publishes no keys that can verify a token"
    return Check("provider", "fail", message, keys.problem, hint, "", PROVIDER_CODE)


def _check_clock(offset: float) -> Check:
    if abs(offset) <= CLOCK_SKEW_S:
        return Check("clock", "ok", f"the provider's clock is off by {abs(offset):.0f} s")
    problem = clock_error(offset)
    return Check("clock", "fail", problem.message, problem.detail, *split_hint(problem.hint), problem.code)


def check_token(settings: LoginSettings, keys: SigningKeys | None, token: str, now: float) -> Check:
    """Return the check `token`: whether the gateway would accept this access token, and if not, what has to change."""
    if not is_jwt(token):
        if settings.introspection is not None:
            return Check("token", "skip", "the token is opaque: only the running gateway can ask the provider about it")
        hint = "set the provider to issue JWTs for this audience, or set up toolway.gateway.login.introspection"
        message = "the token is not a JWT, and opaque tokens are not accepted"
        return Check("token", "fail", message, "", hint, "", TOKEN_CODE)
    try:
        parsed = parse_token(token)
        identity = TokenRules(settings).check(parsed, now)
        key = keys.find(parsed.key_id, parsed.algorithm) if keys is not None else None
        if key is None:
            raise InvalidToken("the identity provider has no such key")
        key.verify(token, parsed.algorithm)
    except InvalidToken as exc:
        return _explain_refusal(settings, token, str(exc), now)
    missing = [scope for scope in settings.scopes if scope not in identity.scopes]
    if missing:
        hint = f"make clients request the scope {' '.join(missing)}, or remove it from toolway.gateway.login.scopes"
        found = f"the token has {' '.join(sorted(identity.scopes)) or 'no scopes'}"
        return Check("token", "fail", f"the token lacks the scope {' '.join(missing)}", found, hint, "", TOKEN_CODE)
    groups = ", ".join(identity.groups) or "no groups"
    return Check("token", "ok", f"the token is accepted: {identity.name}, {groups}")


def _explain_refusal(settings: LoginSettings, token: str, reason: str, now: float) -> Check:
    """Return the failed check for a rejected token: why it was rejected, what it contains, and what was expected."""
    try:
        parsed = parse_token(token)
    except InvalidToken:
        return Check("token", "fail", reason, "", "copy the whole access token, without `Bearer`", "", TOKEN_CODE)
    detail, hint, copy = _advice(settings, parsed, reason, now)
    return Check("token", "fail", reason, detail, hint, copy, TOKEN_CODE)


def _advice(settings: LoginSettings, parsed: ParsedToken, reason: str, now: float) -> tuple[str, str, str]:
    """Return three strings about a rejected token: what it contains, how to fix it, and a line to copy."""
    claims = parsed.claims
    if "audience" in reason:
        found = claims.get("aud")
        only = found if isinstance(found, str) else ""
        hint = (
            "make clients request a token for this resource (RFC 8707), or register the gateway under this identifier; "
            "if the provider has another identifier for the gateway, use that"
        )
        return _compare("aud", found, settings.audience), hint, f'"audience": "{_plain(only)}"' if only else ""
    if "issuer" in reason:
        found = claims.get("iss")
        copy = f'"issuer": "{_plain(found)}"' if isinstance(found, str) else ""
        return _compare("iss", found, settings.issuer), "use the issuer exactly as in the token", copy
    if "expired" in reason or "not valid yet" in reason:
        times = ", ".join(f"{name} {_date(claims.get(name))}" for name in ("iat", "nbf", "exp") if name in claims)
        return f"{times}; now {_date(now)}", "get a new token; if it is new, compare the clocks", "date -u"
    if "not an access token" in reason:
        said = f"typ {parsed.type or 'missing'}, claims {', '.join(sorted(map(_plain, claims))[:20])}"
        return said, "send the access token, not the ID token or the refresh token", ""
    if "algorithm" in reason:
        known = ", ".join(settings.algorithms)
        return _compare("alg", parsed.algorithm, known), "sign access tokens with one of these", ""
    if "no such key" in reason:
        hint = "the token is from another provider, or its key was withdrawn"
        return f"kid {_plain(parsed.key_id) or 'missing'}", hint, ""
    scopes = " ".join(sorted(read_scopes(claims)))
    return f"alg {parsed.algorithm}, scope {_plain(scopes)}", "get a new token from the provider", ""


def _compare(name: str, found: Any, expected: str) -> str:
    return f"{name} of the token: {_plain(found)}\nexpected: {expected}"


def _plain(value: Any) -> str:
    """Return a claim's value for display: printable, on one line, without quotes and backslashes."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(each for each in text if each.isprintable() and each not in '"\\')[:200]


def _date(value: Any) -> str:
    if not isinstance(value, int | float) or not 0 <= value < 1e11:
        return "no time"
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
