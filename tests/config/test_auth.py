from __future__ import annotations

from typing import Any

import pytest

from toolway import ConfigError, Server
from toolway.config.masking import build_masker
from toolway.config.schema import OAuth
from toolway.config.server_entry import parse_entry, parse_entry_with_issues

URL = "https://server.example/mcp"
ISSUER = "https://issuer.example"


def test_all_oauth_settings_are_parsed() -> None:
    auth = {
        "type": "oauth",
        "grant": "client_credentials",
        "issuer": ISSUER,
        "clientId": "me",
        "clientSecret": "${SECRET}",
        "scopes": ["a", "b"],
        "redirectUri": "http://127.0.0.1:1/back",
        "clientMetadataUrl": "https://me.example/client.json",
    }
    server, problems = parse_entry_with_issues({"url": URL, "auth": auth}, {"SECRET": "canary"})
    assert not problems and not server.extras
    assert server.auth == OAuth(
        grant="client_credentials",
        issuer=ISSUER,
        client_id="me",
        client_secret="canary",
        scopes=("a", "b"),
        redirect_uri="http://127.0.0.1:1/back",
        client_metadata_url="https://me.example/client.json",
    )
    assert "canary" not in repr(server)
    assert build_masker([server])("it is canary!") == "it is ***!"


@pytest.mark.parametrize("auth", ["oauth", {"type": "oauth"}])
def test_oauth_without_settings_uses_defaults(auth: Any) -> None:
    assert parse_entry({"url": URL, "auth": auth}).auth == OAuth()


@pytest.mark.parametrize("auth", ["bearer", 7, {"CLIENT_ID": "x"}, {"type": "basic"}, []])
def test_foreign_auth_value_is_kept_with_a_warning(auth: Any) -> None:
    server, problems = parse_entry_with_issues({"url": URL, "auth": auth}, {})
    assert server.auth is None and server.extras == {"auth": auth}
    assert [problem.severity for problem in problems] == ["warning"]


def test_scopes_may_be_one_string() -> None:
    found = parse_entry({"url": URL, "auth": {"type": "oauth", "scopes": "a b"}}).auth
    assert found is not None and found.scopes == ("a", "b")


def test_unknown_auth_key_is_reported() -> None:
    _, problems = parse_entry_with_issues({"url": URL, "auth": {"type": "oauth", "clientid": "x"}}, {})
    assert "auth.clientid" in problems[0].message


@pytest.mark.parametrize(
    "wrong",
    [
        {"clientId": "me", "clientSecret": "canary"},
        {"issuer": ISSUER, "clientSecret": "canary"},
        {"grant": "client_credentials", "clientId": "me"},
        {"issuer": ISSUER, "clientId": "me", "privateKey": "canary"},
        {"clientMetadataUrl": "http://me.example/client.json"},
        {"clientMetadataUrl": "https://me.example"},
        {"grant": "password"},
    ],
)
def test_invalid_auth_is_rejected_without_repeating_it(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_entry({"url": URL, "auth": {"type": "oauth", **wrong}})
    assert "canary" not in str(caught.value)


def test_oauth_needs_a_url_without_authorization_header() -> None:
    with pytest.raises(ConfigError):
        Server(command="x", auth=OAuth())
    with pytest.raises(ConfigError):
        Server(url=URL, auth=OAuth(), headers={"authorization": "Bearer x"})
