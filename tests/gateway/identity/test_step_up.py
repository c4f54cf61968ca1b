"""Scopes that only some tools require: a client is asked for them when it calls such a tool, and not before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.gateway.edge_lab import TOKEN, message_of, modern
from tests.gateway.identity.issuer import SETTINGS, Issuer, guarded
from tests.gateway.identity.test_login import ERAS, ask, said
from toolway.gateway.principals import Principal

pytestmark = pytest.mark.anyio
STEP_UP = replace(
    SETTINGS, scopes=("tools:read",), tool_scopes={"a.echo": ("tools:write",), "a.*": ("tools:a",), "b.add": ("pay",)}
)
ECHO = {"name": "a__echo", "arguments": {"text": "x"}}


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_without_the_scope_of_its_tool_is_answered_with_a_challenge(tmp_path: Path, era: str):
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=STEP_UP) as found:
        before = found.contacts()
        for scopes, wanted in (
            ("tools:read", "tools:a tools:read tools:write"),
            ("tools:read tools:write", "tools:a tools:read tools:write"),
        ):
            answer = await ask(found, era, issuer.token(scope=scopes), ECHO)
            assert answer.status == 403
            challenge = answer.headers["www-authenticate"]
            assert 'error="insufficient_scope"' in challenge and f'scope="{wanted}"' in challenge
            assert "resource_metadata=" in challenge and message_of(answer)["error"]["data"]["executed"] == "no"
        assert found.contacts() == before
        granted = issuer.token(scope="tools:a tools:read tools:write")
        assert said(await ask(found, era, granted, ECHO)) == "x"
        plain = issuer.token(scope="tools:read")
        assert said(await ask(found, era, plain, {"name": "b__echo", "arguments": {"text": "y"}})) == "y"
        assert "a__echo" in await found.tools(token=plain)  # it is listed: a person can get the scope
        assert said(await ask(found, era, TOKEN, ECHO)) == "x" and said(await ask(found, era, found.key(), ECHO)) == "x"


async def test_no_other_way_leads_around_the_scope(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=STEP_UP) as found:
        plain, granted = issuer.token(scope="tools:read"), issuer.token(scope="tools:read tools:write tools:a")
        before = found.contacts()
        by_search = {"name": "call_tool", "arguments": {"name": "a__echo", "arguments": {"text": "x"}}}
        for _ in range(2):
            body, fields = modern("tools/call", by_search)
            answer = await found.ask("POST", "/mcp/search", body, fields, token=plain)
            assert b"tools:write" in answer.body and b'"isError":false' not in answer.body
            challenge = answer.headers["www-authenticate"]
            assert answer.status == 403 and 'scope="tools:a tools:read tools:write"' in challenge
            single, fields = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
            assert (await found.ask("POST", "/mcp/server/a", single, fields, token=plain)).status == 403
        assert found.contacts() == before
        body, fields = modern("tools/call", by_search)
        assert said(await found.ask("POST", "/mcp/search", body, fields, token=granted)) == "x"
        again = await found.ask("POST", "/mcp/search", body, fields, token=plain)  # after a plan was made
        assert b"tools:write" in again.body and again.status == 403
        person = found.gateway.login
        assert person is not None
        principal = person.authenticate(plain).principal
        assert not found.gateway.router.may_call(principal, "a.echo") and found.gateway.router.may_call(
            principal, "b.echo"
        )


async def test_all_scopes_are_in_the_metadata(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=STEP_UP) as found:
        answer = await found.ask("GET", "/.well-known/oauth-protected-resource", token=None)
        assert b'"scopes_supported":["tools:read","pay","tools:a","tools:write"]' in answer.body
        login = found.gateway.login
        assert login is not None and login.missing_scopes(Principal("local", "", ""), "a.echo") == ()
