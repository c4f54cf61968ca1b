from __future__ import annotations

from typing import Any

import pytest

from toolway import ConfigError, Server
from toolway.config.masking import build_masker
from toolway.config.schema import OAuth
from toolway.config.server_entry import parse_entry, parse_entry_with_issues

URL = "https://server.example/mcp"
ISSUER = "https://issuer.example"


def test_all_of_it() -> None:
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
def test_the_word_alone_is_enough(auth: Any) -> None:
    assert parse_entry({"url": URL, "auth": auth}).auth == OAuth()


@pytest.mark.parametrize("auth", ["bearer", 7, {"CLIENT_ID": "x"}, {"type": "basic"}, []])
def test_what_another_host_means_by_it_is_kept_and_told(auth: Any) -> None:
    server, problems = parse_entry_with_issues({"url": URL, "auth": auth}, {})
    assert server.auth is None and server.extras == {"auth": auth}
    assert [problem.severity for problem in problems] == ["warning"]


def test_scopes_may_be_one_text() -> None:
    found = parse_entry({"url": URL, "auth": {"type": "oauth", "scopes": "a b"}}).auth
    assert found is not None and found.scopes == ("a", "b")


def test_a_key_that_is_not_known_is_told() -> None:
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
def test_what_cannot_work_is_refused_without_repeating_it(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_entry({"url": URL, "auth": {"type": "oauth", **wrong}})
    assert "canary" not in str(caught.value)


def test_it_is_for_addresses_that_have_no_token_yet() -> None:
    with pytest.raises(ConfigError):
        Server(command="x", auth=OAuth())
    with pytest.raises(ConfigError):
        Server(url=URL, auth=OAuth(), headers={"authorization": "Bearer x"})
