"""Bearer credentials that are not API keys: rejected without a part that verifies them, and verified by one at most."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.edge_lab import edge, modern
from tests.parts.identity.issuer import ACCESS, SETTINGS, Issuer, connect_login, guarded
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.gateway.authenticator import ProvenIdentity
from toolway.gateway.credentials import Credentials
from toolway.gateway.principals import ACCESS_PREFIX, USER_PREFIX, Principal
from toolway.part_api import registry

LOGIN = {"issuer": "https://login.example", "audience": "https://tools.example/mcp"}
pytestmark = pytest.mark.anyio


async def test_without_the_identity_part_its_tokens_and_paths_get_401(tmp_path: Path) -> None:
    issuer = Issuer()
    body, fields = modern("tools/list", {})
    async with edge(tmp_path) as found:
        for token in (issuer.token(), "ema_sealed", "opaque"):
            answer = await found.ask("POST", "/mcp", body, fields, token=token)
            assert answer.status == 401 and answer.headers["www-authenticate"] == 'Bearer realm="toolway"'
            assert b"API key" in answer.body and b"log in" not in answer.body
        assert (await found.ask("GET", "/.well-known/oauth-protected-resource", token=None)).status == 401
        assert (await found.ask("POST", "/oauth/token", b"{}", token=None)).status == 401
        person = Principal(f"{USER_PREFIX}1", "alice", f"{USER_PREFIX}1", access=(f"{ACCESS_PREFIX}eng",))
        assert not found.gateway.router.may_call(person, "a.echo") and not found.gateway.router.may_see(
            person, "a.echo"
        )
        assert found.gateway.parts.credentials.find_principal(person.id) is None


async def test_settings_of_a_missing_part_are_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: path for name, path in registry.BUILT_IN.items() if name != "identity"}
    monkeypatch.setattr(registry, "BUILT_IN", others)
    with pytest.raises(ConfigError, match=r"unknown key in toolway\.gateway"):
        parse_gateway({"gateway": {"login": LOGIN}}, {})


async def test_at_most_one_part_verifies_credentials(tmp_path: Path) -> None:
    issuer = Issuer()
    async with guarded(tmp_path, issuer) as found:
        first = found.gateway.parts.credentials.verifier
        with pytest.raises(LookupError):
            connect_login(found.gateway, SETTINGS, ACCESS, issuer.fetch)
        assert found.gateway.parts.credentials.verifier is first


def test_without_a_verifier_no_credential_is_known() -> None:
    alone = Credentials()
    person = Principal(f"{USER_PREFIX}1", "alice", f"{USER_PREFIX}1", access=())
    assert (*alone.tools_of("eng"), *alone.names(), alone.find_principal(person.id)) == (None,)
    assert alone.describe(person, None)["kind"] == "user"


async def test_verifier_that_accepts_any_token_stops_the_start(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        found.gateway.check_refusals()  # nothing to check
        person = Principal(f"{USER_PREFIX}1", "alice", f"{USER_PREFIX}1")
        verifier: Any = SimpleNamespace(
            setting="toolway.door",
            hint="",
            resource_host="t.example",
            asks_elsewhere=False,
            authenticate=lambda token: ProvenIdentity(person),
            challenge=lambda: ("www-authenticate", "Bearer"),
            document=lambda request: None,
            is_exchange=lambda request: False,
        )
        found.gateway.parts.credentials.verify_by(verifier)
        with pytest.raises(ConfigError) as failed:
            found.gateway.check_refusals()
        assert failed.value.code == "E-LOGIN-OPEN" and "toolway.door" in failed.value.detail
