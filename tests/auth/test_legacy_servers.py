"""Logins to servers of HTTP+SSE: the stream and every message carry the token, and a new one is had once for all."""

from __future__ import annotations

import asyncio

import pytest

from tests.auth.oauth_lab import Guarded, Issuer
from toolway import AccessDenied, Hub

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("entry", [{}, {"type": "sse"}], ids=["found", "named"])
async def test_legacy_server_login_happens_automatically(entry: dict[str, str]) -> None:
    async with Issuer() as issuer, Guarded(issuer, transport="sse") as guarded:
        async with Hub(
            {"old": {"url": guarded.url, **entry}}, login_callback=issuer.login, catalog_storage=None
        ) as hub:
            assert (await hub.call_tool("old.echo", {"text": "hi"})).text == "hi"
            assert hub.status()["old"].transport == "sse"
        assert issuer.made == {"registration": 1, "login": 1, "authorization_code": 1}
        assert len(set(guarded.sent)) == 1 and guarded.sent[0].startswith("Bearer ")


async def test_rejected_token_is_refreshed_once_for_all_calls() -> None:
    async with Issuer() as issuer, Guarded(issuer, transport="sse") as guarded:
        async with Hub({"old": guarded.url}, login_callback=issuer.login, catalog_storage=None) as hub:
            await hub.call_tool("old.counter")
            issuer.valid.clear()
            done = await asyncio.gather(*(hub.call_tool("old.counter") for _ in range(50)))
            assert not any(reply.is_error for reply in done)
            assert (hub.status()["old"].restarts, guarded.stats.requests["GET"]) == (0, 1)
        assert issuer.made["refresh_token"] == 1
        assert guarded.stats.calls["counter"] == 51


async def test_legacy_server_without_login_callback_hints_at_login() -> None:
    async with Issuer() as issuer, Guarded(issuer, transport="sse") as guarded:
        async with Hub({"old": {"url": guarded.url, "type": "sse"}}, catalog_storage=None) as hub:
            with pytest.raises(AccessDenied) as caught:
                await hub.call_tool("old.echo")
        assert (caught.value.code, caught.value.executed) == ("E-AUTH-LOGIN", "no")
        assert caught.value.hint == "toolway login old"
