"""Tokens that stand in plain text are offered for the store, and references take their place."""

import json
from typing import Any

import pytest

from toolway.config.secrets import (
    find_unmovable_secrets,
    list_secret_refs,
    migrate_secrets,
    plan_secret_moves,
    replace_with_references,
    substitute_secrets,
)
from toolway.config.server_entry import parse_entry as server_of
from toolway.errors import ConfigError
from toolway.secrets import open_store

CANARY = "ghp_" + "c" * 36
OAUTH = {"type": "oauth", "issuer": "https://as.example", "clientId": "me"}
PLAIN: dict[str, dict[str, Any]] = {
    "gh": {"command": "npx", "env": {"GITHUB_TOKEN": CANARY, "LEVEL": "debug", "OTHER": "${OTHER_TOKEN}"}},
    "db": {"command": "x", "env": {"DATABASE_URL": f"postgres://me:{CANARY}@db.example/x"}},
    "web": {"url": "https://x.example/mcp", "headers": {"Authorization": f"Bearer {CANARY}", "Accept": "*/*"}},
    "query": {"url": f"https://x.example/mcp?api_key={CANARY}&v=1"},
    "oauth": {"url": "https://x.example/mcp", "auth": {**OAUTH, "clientSecret": CANARY}},
    "key": {
        "url": "https://x.example/mcp",
        "auth": {
            **OAUTH,
            "grant": "client_credentials",
            "privateKey": f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
        },
    },
}


@pytest.mark.parametrize("name", PLAIN)
def test_moved_secret_resolves_to_the_same_server(name, tmp_path):
    before = PLAIN[name]
    moves = plan_secret_moves(name, before)
    assert len(moves) == 1
    assert CANARY not in repr(moves)
    store = open_store({"HOME": str(tmp_path), "TOOLWAY_SECRETS": "file"})
    after = migrate_secrets(before, moves, store)
    assert CANARY not in json.dumps(after)
    server = server_of(after, {"OTHER_TOKEN": "x"})
    values = {reference: store.get(reference.target) or "" for reference in list_secret_refs(server)}
    assert len(values) == 1
    assert substitute_secrets(server, values) == server_of(before, {"OTHER_TOKEN": "x"})
    assert plan_secret_moves(name, after) == []


def test_planned_move_has_location_and_name():
    (move,) = plan_secret_moves("gh", PLAIN["gh"])
    assert (move.location, move.name) == ("env.GITHUB_TOKEN", "gh.GITHUB_TOKEN")
    assert move.reference == "${keyring:gh.GITHUB_TOKEN}"


def test_secret_under_unknown_key_is_found():
    entry = {"httpUrl": "https://x.example", "oauth": {"clientId": "me", "client secret": CANARY}, "note": "no token"}
    (move,) = plan_secret_moves("gemini", entry)
    assert (move.location, move.name) == ("oauth.client secret", "gemini.oauth.client-secret")
    assert CANARY not in json.dumps(replace_with_references(entry, [move]))


def test_two_secrets_of_one_entry_get_two_names():
    address = "https://u:password-one@x.example/mcp?token=token-number-two"
    entry = {"url": address, "headers": {"X-Api-Key": "key-number-three"}}
    moves = plan_secret_moves("web", entry)
    assert [move.name for move in moves] == ["web.url", "web.url1", "web.X-Api-Key"]
    after = replace_with_references(entry, moves)
    assert after["url"] == "https://u:${keyring:web.url}@x.example/mcp?token=${keyring:web.url1}"
    server = server_of(after, {})
    values = {reference: {m.name: m.secret for m in moves}[reference.target] for reference in list_secret_refs(server)}
    assert substitute_secrets(server, values) == server_of(entry, {})


def test_url_encoded_secret_is_moved():
    entry = {"url": "https://x.example/mcp?token=a%2Fb%3Dcdefgh"}
    (move,) = plan_secret_moves("web", entry)
    assert move.secret == "a/b=cdefgh"
    server = server_of(replace_with_references(entry, [move]), {})
    assert substitute_secrets(server, dict.fromkeys(list_secret_refs(server), move.secret)) == server_of(entry, {})


def test_secrets_in_arguments_are_reported_but_not_moved():
    for args in (["--api-key", CANARY], ["-e", f"TOKEN={CANARY}"], [f"--token={CANARY}"]):
        assert CANARY in find_unmovable_secrets({"command": "x", "args": args})
        assert plan_secret_moves("x", {"command": "x", "args": args}) == []
    assert find_unmovable_secrets({"command": "x", "args": ["--verbose", "yes"]}) == []


def test_original_entry_is_not_changed():
    before = json.dumps(PLAIN)
    for name, entry in PLAIN.items():
        replace_with_references(entry, plan_secret_moves(name, entry))
    assert json.dumps(PLAIN) == before


class ForgetfulSecretStore:
    location = "nowhere"

    def get(self, name):
        return None

    def set(self, name, value): ...


def test_unsaved_secret_stays_in_the_entry():
    with pytest.raises(ConfigError, match="cannot be read back") as caught:
        migrate_secrets(PLAIN["gh"], plan_secret_moves("gh", PLAIN["gh"]), ForgetfulSecretStore())  # type: ignore[arg-type]
    assert CANARY not in str(caught.value)
