"""Tokens that stand in plain text are offered for the store, and references take their place."""

from typing import Any

import pytest

from toolway.config.entries import entry
from toolway.config.moving import moved, plan, stuck, with_references
from toolway.config.secrets import filled, references
from toolway.errors import ConfigError
from toolway.secrets import open_store

CANARY = "ghp_" + "c" * 36
PLAIN: dict[str, dict[str, Any]] = {
    "gh": {"command": "npx", "env": {"GITHUB_TOKEN": CANARY, "LEVEL": "debug", "OTHER": "${OTHER_TOKEN}"}},
    "db": {"command": "x", "env": {"DATABASE_URL": f"postgres://me:{CANARY}@db.example/x"}},
    "web": {"url": "https://x.example/mcp", "headers": {"Authorization": f"Bearer {CANARY}", "Accept": "*/*"}},
    "query": {"url": f"https://x.example/mcp?api_key={CANARY}&v=1"},
    "oauth": {
        "url": "https://x.example/mcp",
        "auth": {"type": "oauth", "issuer": "https://as.example", "clientId": "me", "clientSecret": CANARY},
    },
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_token_moves_and_the_server_gets_the_same(name, tmp_path):
    before = entry(PLAIN[name], {"OTHER_TOKEN": "x"})
    moves = plan(name, before)
    assert len(moves) == 1
    assert CANARY not in repr(moves)
    store = open_store({"HOME": str(tmp_path), "TOOLWAY_SECRETS": "file"})
    after = moved(before, moves, store)
    assert CANARY not in repr((after, dict(after.env), dict(after.headers), after.auth and after.auth.client_secret))
    values = {reference: store.get(reference.what) or "" for reference in references(after)}
    assert list(values.values()) == [CANARY]
    assert filled(after, values) == before
    assert plan(name, after) == []


def test_what_is_offered_names_its_place():
    (move,) = plan("gh", entry(PLAIN["gh"], {"OTHER_TOKEN": "x"}))
    assert (move.place, move.name, move.reference) == (
        "env.GITHUB_TOKEN",
        "gh.GITHUB_TOKEN",
        "${keyring:gh.GITHUB_TOKEN}",
    )


def test_two_secrets_of_one_entry_get_two_names():
    address = "https://u:password-one@x.example/mcp?token=token-number-two"
    server = entry({"url": address, "headers": {"X-Api-Key": "key-number-three"}}, {})
    moves = plan("web", server)
    assert [move.name for move in moves] == ["web.X-Api-Key", "web.url", "web.url1"]
    after = with_references(server, moves)
    assert after.url == "https://u:${keyring:web.url}@x.example/mcp?token=${keyring:web.url1}"
    values = {reference: {m.name: m.secret for m in moves}[reference.what] for reference in references(after)}
    assert filled(after, values) == server


def test_a_value_that_is_written_in_its_own_way_moves_too():
    server = entry({"url": "https://x.example/mcp?token=a%2Fb%3Dcdefgh"}, {})
    (move,) = plan("web", server)
    assert move.secret == "a/b=cdefgh"
    after = with_references(server, [move])
    assert filled(after, dict.fromkeys(references(after), move.secret)) == server


def test_arguments_cannot_be_moved_and_that_is_told():
    assert stuck(entry({"command": "x", "args": ["--api-key", CANARY]}, {})) == ["args"]
    assert stuck(entry({"command": "x", "args": ["-e", f"TOKEN={CANARY}"]}, {})) == ["args"]
    assert stuck(entry({"command": "x", "args": ["--verbose", "yes"]}, {})) == []


class Forgetful:
    where = "nowhere"

    def get(self, name):
        return None

    def set(self, name, value): ...


def test_a_secret_that_the_store_did_not_keep_is_not_given_up():
    server = entry(PLAIN["gh"], {"OTHER_TOKEN": "x"})
    with pytest.raises(ConfigError, match="cannot be read back") as caught:
        moved(server, plan("gh", server), Forgetful())  # type: ignore[arg-type]
    assert CANARY not in str(caught.value)
