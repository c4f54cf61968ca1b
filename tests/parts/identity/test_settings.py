"""`toolway.gateway.login` and `toolway.access`: what is accepted, and what would open more than was meant."""

from __future__ import annotations

from typing import Any

import pytest

from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.parts.identity.settings import SIGNATURE_ALGORITHMS, IntrospectionSettings, LoginSettings, settings_of

LOGIN = {"issuer": "https://login.example/realms/acme", "audience": "https://tools.example/mcp"}


def parse(login: Any, access: Any = None, **variables: str) -> Any:
    block = {"gateway": {"login": login} if login is not None else {}}
    return settings_of(parse_gateway(block | ({"access": access} if access is not None else {}), variables))


def test_issuer_and_audience_are_enough():
    found = parse(LOGIN, {"eng": ["github.*", "!github.delete_*"], "*": ["docs.*"]})
    assert found.login == LoginSettings(LOGIN["issuer"], LOGIN["audience"])
    assert found.login.algorithms == SIGNATURE_ALGORITHMS and found.login.resource_url == LOGIN["audience"]
    assert found.access == {"eng": ("github.*", "!github.delete_*"), "*": ("docs.*",)}
    assert parse(None).login is None and parse(None).access == {}


def test_all_settings_are_parsed():
    found = parse(
        {
            **LOGIN,
            "audience": "api://1234",
            "resource": "https://tools.example/mcp",
            "scopes": ["tools:read"],
            "toolScopes": {"github.merge_*": "tools:write tools:merge", "bank.*": ["pay"]},
            "jwks": "https://keys.example/jwks?tenant=1",
            "algorithms": ["ES256"],
            "groupsClaim": "realm_access.roles",
            "admins": ["${TEAM}"],
            "introspection": {
                "url": "https://login.example/introspect",
                "clientId": "gateway",
                "clientSecret": "${keyring:introspection}",
            },
        },
        TEAM="platform",
    ).login
    assert found == LoginSettings(
        issuer=LOGIN["issuer"],
        audience="api://1234",
        resource="https://tools.example/mcp",
        scopes=("tools:read",),
        tool_scopes={"github.merge_*": ("tools:write", "tools:merge"), "bank.*": ("pay",)},
        jwks="https://keys.example/jwks?tenant=1",
        algorithms=("ES256",),
        groups_claim="realm_access.roles",
        admins=("platform",),
        introspection=IntrospectionSettings("https://login.example/introspect", "gateway", "${keyring:introspection}"),
    )
    assert "keyring" not in repr(found)


@pytest.mark.parametrize(
    ("login", "text"),
    [
        ({}, "no issuer"),
        ({"issuer": LOGIN["issuer"]}, "no audience"),
        ({"audience": LOGIN["audience"]}, "no issuer"),
        (LOGIN | {"issuer": ""}, "no issuer"),
        (LOGIN | {"issuer": "http://login.example"}, "not https"),
        (LOGIN | {"issuer": "https://login.example?x=1"}, "query"),
        (LOGIN | {"issuer": "https://login.example#x"}, "fragment"),
        (LOGIN | {"issuer": "https://user:pass@login.example"}, "user name"),
        (LOGIN | {"issuer": "file:///etc/passwd"}, "not a URL"),
        (LOGIN | {"issuer": "https://[::1"}, "not a URL"),
        (LOGIN | {"audience": "api://1234"}, "not https"),
        (LOGIN | {"audience": 'https://tools.example/"x'}, "not a URL"),
        (LOGIN | {"resource": "http://tools.example/mcp"}, "not https"),
        (LOGIN | {"jwks": "http://keys.example"}, "not https"),
        (LOGIN | {"algorithms": ["HS256"]}, "public-key"),
        (LOGIN | {"algorithms": ["none"]}, "public-key"),
        (LOGIN | {"algorithms": []}, "public-key"),
        (LOGIN | {"scopes": ["a b"]}, "without spaces"),
        (LOGIN | {"scopes": ['a"']}, "without spaces"),
        (LOGIN | {"toolScopes": ["x"]}, "an object"),
        (LOGIN | {"toolScopes": {"github.*": []}}, "server.tool"),
        (LOGIN | {"toolScopes": {"github": "x"}}, "server.tool"),
        (LOGIN | {"toolScopes": {"!github.*": "x"}}, "server.tool"),
        (LOGIN | {"admins": ["*"]}, "everyone"),
        (LOGIN | {"admin": ["x"]}, "unknown key"),
        (LOGIN | {"introspection": True}, "an object"),
        (LOGIN | {"introspection": {"url": "http://login.example", "clientId": "a", "clientSecret": "b"}}, "not https"),
        (LOGIN | {"introspection": {"url": "https://login.example", "clientId": "a"}}, "clientSecret"),
        (LOGIN | {"introspection": {"url": "https://login.example", "secret": "b"}}, "unknown key"),
        (LOGIN | {"issuer": "${UNSET}"}, "not set"),
        (LOGIN | {"audience": "${keyring:audience}"}, "secret"),
        (LOGIN | {"admins": ["${UNSET}"]}, "not set"),
        (True, "an object"),
        ([], "an object"),
    ],
)
def test_unsafe_login_setting_is_rejected(login: Any, text: str):
    with pytest.raises(ConfigError, match=text):
        parse(login)


def test_local_provider_does_not_need_tls():
    found = parse({"issuer": "http://127.0.0.1:3000", "audience": "http://localhost:8765/mcp"})
    assert found.login.issuer == "http://127.0.0.1:3000"


@pytest.mark.parametrize(
    ("access", "text"),
    [
        (["github.*"], "an object"),
        ({"eng": "github.*"}, "a list"),
        ({"eng": [""]}, "server.tool"),
        ({"eng": ["!"]}, "server.tool"),
        ({"eng": ["github"]}, "server.tool"),
        ({"eng": ["${keyring:x}"]}, "secret"),
        ({f"g{n}": [] for n in range(1001)}, "too many"),
    ],
)
def test_invalid_access_is_rejected(access: Any, text: str):
    with pytest.raises(ConfigError, match=text):
        parse(LOGIN, access)


def test_access_without_login_is_rejected():
    with pytest.raises(ConfigError, match="no effect"):
        parse(None, {"eng": ["github.*"]})
