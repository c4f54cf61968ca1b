import base64
import json

import pytest

from toolway.config.schema import Server
from toolway.doctor.entry_checks import (
    CheckTarget,
    expired_tokens,
    extract_references,
    format_age,
    store_token_hint,
    token_expiry,
)


def jwt(claims):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'RS256'})}.{part(claims)}.c2ln"


def test_expired_token_is_found_in_headers_and_env():
    old, new = jwt({"exp": 900}), jwt({"exp": 1100})
    server = Server(url="http://x", headers={"Authorization": f"Bearer {old}", "X-Other": new}, env={"TOKEN": old})
    assert [tuple(each) for each in expired_tokens(server, 1000.0)] == [
        ("headers.Authorization", 100.0),
        ("env.TOKEN", 100.0),
    ]


@pytest.mark.parametrize(
    "text", ["", "ghp_abc", "a.b.c", jwt({}), jwt({"exp": "soon"}), jwt({"exp": True}), jwt([1]), "x" * 9 + ".!!!!.y"]
)
def test_value_without_expiry_is_not_judged(text):
    assert token_expiry(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (60, "1 minute"), (250, "4 minutes"), (7200, "2 hours"), (86400 * 3, "3 days")]
)
def test_format_age(seconds, text):
    assert format_age(seconds) == text


def test_only_references_of_a_value_are_repeated():
    assert extract_references("Bearer secret-${TOKEN}-more ${env:B}") == "${TOKEN} ${env:B}"


@pytest.mark.user_trial("20")
@pytest.mark.parametrize(
    ("value", "command"),
    [
        ("Bearer ${keyring:acme.TOKEN}", "toolway secrets set acme.TOKEN"),
        ("Bearer ${TOKEN}", "export TOKEN=NEW_TOKEN"),
        ("${TOKEN:-none}", "export TOKEN=NEW_TOKEN"),
        ("%TOKEN%", "export TOKEN=NEW_TOKEN"),
        ("Bearer eyJ", "toolway secrets set acme.Authorization"),
        ("${file:/run/token}", ""),
    ],
)
def test_new_token_hint_uses_store_of_the_old_token(value, command):
    target = CheckTarget("acme", None, raw_entry={"headers": {"Authorization": value}})
    hint, found = store_token_hint(target, "headers.Authorization")
    assert found == command
    assert command or "/run/token" in hint
