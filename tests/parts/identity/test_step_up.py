"""Scopes that only some tools require: a client is asked for them when it calls such a tool, and not before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gateway.edge_lab import TOKEN, handshake, message_of, modern
from tests.parts.identity.issuer import SETTINGS, Issuer, guarded, login_at
from tests.parts.identity.test_login import ERAS, ask, text_of
from toolway.gateway.principals import Principal

pytestmark = pytest.mark.anyio
STEP_UP = replace(
    SETTINGS, scopes=("tools:read",), tool_scopes={"a.echo": ("tools:write",), "a.*": ("tools:a",), "b.add": ("pay",)}
)
ECHO = {"name": "a__echo", "arguments": {"text": "x"}}


@pytest.mark.parametrize("era", ERAS)
async def test_call_without_tool_scope_gets_challenge(tmp_path: Path, era: str):
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
        assert text_of(await ask(found, era, granted, ECHO)) == "x"
        plain = issuer.token(scope="tools:read")
        assert text_of(await ask(found, era, plain, {"name": "b__echo", "arguments": {"text": "y"}})) == "y"
        assert "a__echo" in await found.tools(token=plain)  # it is listed: a user can get the scope
        assert text_of(await ask(found, era, TOKEN, ECHO)) == "x"
        assert text_of(await ask(found, era, found.key(), ECHO)) == "x"


async def test_tool_scope_cannot_be_bypassed(tmp_path: Path):
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
        assert text_of(await found.ask("POST", "/mcp/search", body, fields, token=granted)) == "x"
        again = await found.ask("POST", "/mcp/search", body, fields, token=plain)  # after a plan was made
        assert b"tools:write" in again.body and again.status == 403
        person = login_at(found.gateway)
        principal = person.authenticate(plain).principal
        assert not found.gateway.router.may_call(principal, "a.echo") and found.gateway.router.may_call(
            principal, "b.echo"
        )


@pytest.mark.attack("A2-F1")
async def test_session_uses_rights_of_each_request(tmp_path: Path):
    """A user has two tokens. The rights of one in a session do not affect the other."""
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=STEP_UP) as found:
        plain, granted = issuer.token(scope="tools:read"), issuer.token(scope="tools:read tools:write tools:a", jti="2")
        for first in (plain, granted):
            session = await found.initialize(token=first)
            for token, status in ((first, None), (granted, 200), (plain, 403), (granted, 200)):
                fields = {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"}
                answer = await found.ask("POST", "/mcp", handshake("tools/call", ECHO), fields, token=token)
                assert status is None or answer.status == status, (first == plain, token == plain)
                assert status != 200 or text_of(answer) == "x"


@pytest.mark.attack("A2-F1")
async def test_stream_message_uses_rights_of_its_own_token(tmp_path: Path):
    """The stream was opened with a token that may call the tool; the message is posted with one that may not."""
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=STEP_UP) as found:
        plain, granted = issuer.token(scope="tools:read"), issuer.token(scope="tools:read tools:write tools:a", jti="2")
        async with found.connected() as stream:
            await stream.send(found.request("GET", "/sse", token=granted))
            await stream.head()
            opened = await stream.reader.readuntil(b"\n\n")
            path = next(line for line in opened.decode().splitlines() if line.startswith("data: ")).removeprefix(
                "data: "
            )
            before = found.calls("a")
            for token, word, calls in ((plain, b"tools:write", 0), (granted, b'"x"', 1), (plain, b"tools:write", 1)):
                await found.ask("POST", path.strip(), handshake("tools/call", ECHO), token=token)
                async with asyncio.timeout(60):
                    assert word in await stream.reader.readuntil(b"\n\n"), token == plain
                assert found.calls("a") - before == calls


async def test_all_scopes_are_in_metadata(tmp_path: Path):
    issuer = Issuer()
    async with guarded(tmp_path, issuer, settings=STEP_UP) as found:
        answer = await found.ask("GET", "/.well-known/oauth-protected-resource", token=None)
        assert b'"scopes_supported":["tools:read","pay","tools:a","tools:write"]' in answer.body
        login = login_at(found.gateway)
        assert login.missing_scopes(Principal("local", "", ""), "a.echo") == ()
