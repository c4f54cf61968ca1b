"""The settings `toolway.gateway.login` and `toolway.access`: an identity provider, and the tools of its groups.

"toolway": {
  "gateway": {"login": {"issuer": "https://login.example/realms/acme", "audience": "https://tools.example/mcp"}},
  "access": {"eng": ["github.*", "!github.delete_*"], "sales": ["crm.*"], "*": ["docs.*"]}
}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from toolway.config.field_reader import CONFIG_KEY_CODE, FieldReader, field_error
from toolway.config.secret_refs import SecretTemplate
from toolway.errors import ConfigError
from toolway.network.policy import canonical_host, is_this_machine

if TYPE_CHECKING:
    from toolway.part_api import GatewaySettings

#: Signatures with a public key only. With a shared secret, the gateway itself could issue tokens.
SIGNATURE_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
EVERYONE: Final = "*"  # in `access`: all users whom the provider logs in
MAX_GROUPS: Final = 1000  # groups in `access`
MAX_EMA_CLIENTS: Final = 100
MIN_CLIENT_SECRET_CHARS: Final = 16
_SCOPE_NAME: Final = re.compile(r"[\x21\x23-\x5B\x5D-\x7E]{1,200}")  # RFC 6749, scope-token
_KNOWN_KEYS: Final = (
    "issuer, audience, resource, scopes, toolScopes, jwks, algorithms, groupsClaim, admins, introspection and ema"
)


@dataclass(frozen=True, slots=True)
class IntrospectionSettings:
    """How the gateway uses the provider's introspection endpoint (RFC 7662) to check opaque tokens."""

    url: str = ""  # URL of the endpoint
    client_id: str = ""  # client id of the gateway at the provider. In a file: clientId
    client_secret: str = field(default="", repr=False)  # ${keyring:NAME}, ${file:PATH} or ${VARIABLE}. clientSecret


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """User login with an identity provider (OpenID Connect, OAuth 2.1).

    The provider issues access tokens for the gateway, and the gateway verifies them with the provider's public keys.
    Changes need a restart of the gateway.
    """

    issuer: str = ""  # URL of the provider, exactly as in the claim `iss` of its tokens
    audience: str = ""  # claim `aud` of tokens for this gateway: its public URL, such as https://tools.example/mcp
    resource: str = ""  # public URL of the gateway, if `audience` is not a URL (such as api://…); default: the audience
    scopes: tuple[str, ...] = ()  # scopes that every token must have
    tool_scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # for calls: server.tool pattern → scopes
    jwks: str = ""  # URL of the provider's public keys; default: from its metadata
    algorithms: tuple[str, ...] = SIGNATURE_ALGORITHMS  # accepted signature algorithms
    groups_claim: str = ""  # claim with a user's groups; default: groups, else roles. In a file: groupsClaim
    admins: tuple[str, ...] = ()  # groups whose members are administrators of the gateway; default: none
    introspection: IntrospectionSettings | None = None  # accept opaque tokens too; None: JWTs only
    ema: Mapping[str, str] = field(default_factory=dict, repr=False)  # client id → secret; {"clients": {…}} in files

    @property
    def resource_url(self) -> str:
        """Public URL of the gateway that clients request tokens for (RFC 8707)."""
        return self.resource or self.audience


class IdentitySettings(msgspec.Struct, frozen=True):
    """User login with an identity provider, and the tools that each of its groups may use."""

    login: LoginSettings | None = None  # in `toolway.gateway`: the provider; None: API keys only
    access: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # group of the provider, or * → tools


def settings_of(gateway: GatewaySettings) -> IdentitySettings:
    """Return a gateway's login settings."""
    found: IdentitySettings = gateway.parts.get("identity", IdentitySettings())
    return found


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> IdentitySettings:
    """Return the settings `gateway.login` and `access` of a `toolway` block. Raises `ConfigError` if one is invalid."""
    gateway = block.get("gateway")
    login = parse_login(gateway.get("login") if isinstance(gateway, Mapping) else None, variables)
    return IdentitySettings(login, parse_access(block.get("access"), login, variables))


def parse_login(block: Any, variables: Mapping[str, str]) -> LoginSettings | None:
    """Return the settings in `toolway.gateway.login`, or None if the block is missing.

    Raises `ConfigError` if a setting is invalid or unknown, or if the issuer or audience is missing.
    """
    if block is None:
        return None
    if not isinstance(block, Mapping):
        raise field_error("toolway.gateway.login", "an object", block)
    fields = FieldReader(block, variables)
    settings = LoginSettings(
        issuer=_get_plain_text(fields, "issuer"),
        audience=_get_plain_text(fields, "audience"),
        resource=_get_plain_text(fields, "resource"),
        scopes=_get_scopes(fields, "scopes"),
        tool_scopes=_get_tool_scopes(fields, variables),
        jwks=_get_plain_text(fields, "jwks"),
        algorithms=_get_algorithms(fields),
        groups_claim=_get_plain_text(fields, "groupsClaim"),
        admins=_get_plain_texts(fields, "admins"),
        introspection=_parse_introspection(fields.remaining.pop("introspection", None), variables),
        ema=_parse_ema(fields.remaining.pop("ema", None), variables),
    )
    fields.reject_unknown("toolway.gateway.login", _KNOWN_KEYS)
    if not settings.issuer or not settings.audience:
        missing = "issuer" if not settings.issuer else "audience"
        raise ConfigError(
            f"toolway.gateway.login has no {missing}",
            detail="without it, tokens from other issuers or for other applications would be accepted",
            hint='set "login": {"issuer": "https://login.example", "audience": "https://tools.example/mcp"}',
            code=CONFIG_KEY_CODE,
        )
    _check_url("issuer", settings.issuer)
    _check_url("resource" if settings.resource else "audience", settings.resource_url)
    if settings.jwks:
        _check_url("jwks", settings.jwks, allow_query=True)
    if EVERYONE in settings.admins:
        raise ConfigError(
            "toolway.gateway.login.admins cannot include everyone",
            detail='"*" would make every user an administrator, who can start programs',
            hint="use a group of the identity provider",
            code=CONFIG_KEY_CODE,
        )
    return settings


def _parse_introspection(block: Any, variables: Mapping[str, str]) -> IntrospectionSettings | None:
    if block is None:
        return None
    if not isinstance(block, Mapping):
        raise field_error("toolway.gateway.login.introspection", "an object", block)
    fields = FieldReader(block, variables)
    settings = IntrospectionSettings(
        url=_get_plain_text(fields, "url"),
        client_id=_get_plain_text(fields, "clientId"),
        client_secret=fields.get_text("clientSecret") or "",
    )
    fields.reject_unknown("toolway.gateway.login.introspection", "url, clientId and clientSecret")
    _check_url("introspection.url", settings.url)
    if not settings.client_id or not settings.client_secret:
        raise ConfigError(
            "toolway.gateway.login.introspection needs clientId and clientSecret",
            detail="a provider only answers clients it knows",
            hint='set "clientSecret": "${keyring:NAME}" and store it with: toolway secrets set NAME',
            code=CONFIG_KEY_CODE,
        )
    return settings


def _parse_ema(block: Any, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the secrets of the clients that may exchange identity assertions for gateway tokens, by client id."""
    if block is None:
        return {}
    clients = block.get("clients") if isinstance(block, Mapping) and block.keys() <= {"clients"} else None
    if not isinstance(clients, Mapping) or not clients or len(clients) > MAX_EMA_CLIENTS:
        raise field_error("toolway.gateway.login.ema", "{'clients': {ID: '${keyring:NAME}'}}", block)
    fields = FieldReader(clients, variables)
    found = {str(name): fields.get_text(str(name)) or "" for name in clients}
    for name, secret in found.items():
        if not name or not secret or (not isinstance(secret, SecretTemplate) and len(secret) < MIN_CLIENT_SECRET_CHARS):
            raise ConfigError(
                f"the client {name!r} in toolway.gateway.login.ema needs a secret",
                detail=f"of at least {MIN_CLIENT_SECRET_CHARS} characters: whoever knows it can get users' tokens",
                hint='use "${keyring:NAME}" and store it with: toolway secrets set NAME',
                code=CONFIG_KEY_CODE,
            )
    return found


def parse_access(
    block: Any, login: LoginSettings | None, variables: Mapping[str, str]
) -> Mapping[str, tuple[str, ...]]:
    """Return each group's tool patterns from `toolway.access`. Raises `ConfigError` if they are invalid.

    The block is rejected if `toolway.gateway.login` is missing, because it would have no effect.
    """
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise field_error("toolway.access", "an object of lists, such as {'eng': ['github.*']}", block)
    if login is None:
        raise ConfigError(
            "toolway.access has no effect without toolway.gateway.login",
            detail="its groups come from an identity provider",
            hint="add toolway.gateway.login, or use API keys with --only and remove toolway.access",
            code=CONFIG_KEY_CODE,
        )
    if len(block) > MAX_GROUPS:
        raise ConfigError(
            "toolway.access has too many groups", detail=f"{len(block)} of at most {MAX_GROUPS}", code=CONFIG_KEY_CODE
        )
    reader = FieldReader(block, variables)
    access = {str(group): _get_plain_texts(reader, str(group)) for group in block}
    for group, patterns in access.items():
        for pattern in patterns:
            if not pattern.removeprefix("!") or (pattern != EVERYONE and "." not in pattern and "*" not in pattern):
                raise field_error(f"a pattern of toolway.access.{group}", "server.tool, such as github.*", pattern)
    return access


def _check_url(key: str, url: str, *, allow_query: bool = False) -> None:
    """Raise `ConfigError` unless `url` is an https URL, or an http URL on this machine.

    It must not have a user name or fragment, and it may only have a query if `allow_query` is True.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if not host or port == 0 or not url.isascii() or not url.isprintable() or " " in url or '"' in url:
        problem = "is not a URL"
    elif parts.scheme != "https" and not (parts.scheme == "http" and is_this_machine(canonical_host(host))):
        problem = "is not https: anyone on the network could replace what is read there"
    elif parts.username is not None or parts.password is not None:
        problem = "contains a user name"
    elif parts.fragment or url.endswith("#") or (parts.query and not allow_query):
        problem = "has a query or a fragment"
    else:
        return
    raise ConfigError(f"toolway.gateway.login.{key} {problem}", hint="use https://HOST/PATH", code=CONFIG_KEY_CODE)


def _get_algorithms(fields: FieldReader) -> tuple[str, ...]:
    if "algorithms" not in fields.remaining:
        return SIGNATURE_ALGORITHMS
    names = _get_plain_texts(fields, "algorithms")
    unknown = [name for name in names if name not in SIGNATURE_ALGORITHMS]
    if unknown or not names:
        raise ConfigError(
            "toolway.gateway.login.algorithms must list public-key signature algorithms",
            detail=f"not allowed: {', '.join(unknown)[:100]}" if unknown else "the list is empty",
            hint=f"pick from {', '.join(SIGNATURE_ALGORITHMS)}",
            code=CONFIG_KEY_CODE,
        )
    return names


def _get_scopes(fields: FieldReader, key: str) -> tuple[str, ...]:
    scopes = _get_plain_texts(fields, key)
    for scope in scopes:
        if _SCOPE_NAME.fullmatch(scope) is None:
            raise field_error(f"toolway.gateway.login.{key}", "a list of scopes without spaces", scope)
    return scopes


def _get_tool_scopes(fields: FieldReader, variables: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    block = fields.remaining.pop("toolScopes", None)
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise field_error("toolway.gateway.login.toolScopes", "an object, such as {'github.merge_*': 'write'}", block)
    lists = {str(pattern): scopes.split() if isinstance(scopes, str) else scopes for pattern, scopes in block.items()}
    reader = FieldReader(lists, variables)
    found = {pattern: _get_scopes(reader, pattern) for pattern in lists}
    for pattern, scopes in found.items():
        if not scopes or pattern.startswith("!") or ("." not in pattern and "*" not in pattern):
            raise field_error("toolway.gateway.login.toolScopes", "server.tool → scopes", pattern)
    return found


def _get_plain_texts(fields: FieldReader, key: str) -> tuple[str, ...]:
    texts = fields.get_texts(key)
    for text in texts:
        _require_plain(key, text)
    return texts


def _get_plain_text(fields: FieldReader, key: str) -> str:
    return _require_plain(key, fields.get_text(key) or "")


def _require_plain(key: str, text: str) -> str:
    """Check that the setting `key` is plain text, and return the text.

    Raises `ConfigError` if it refers to a secret or to a variable that is not set.
    """
    if isinstance(text, SecretTemplate):
        raise ConfigError(
            f"{key} cannot refer to a secret or to a variable that is not set",
            detail="it controls access, so it cannot come from a reference",
            hint="set its value in the file itself",
            code=CONFIG_KEY_CODE,
        )
    return text
