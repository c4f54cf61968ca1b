"""Each caller of a gateway has separate logins: how they are made, and that they are never mixed up."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.auth.oauth_lab import Guarded, Issuer
from tests.gateway.bridge_lab import KEY, Answer, Json, Lab, made, until
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp import errors
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.hub.hub import Hub
from toolway.secrets import open_store

pytestmark = pytest.mark.anyio

OWNER = "tw_owner-of-this-gateway"
BACK = "http://127.0.0.1:33418/callback"


@pytest.fixture
def keyring(tmp_path: Path) -> FileApiKeyStore:
    return FileApiKeyStore(tmp_path / "keys.json", OWNER)


@asynccontextmanager
async def _lab(keyring: FileApiKeyStore, guarded: Guarded, **entry: Any) -> AsyncIterator[Lab]:
    async with HubCore({"guarded": {"url": guarded.url, **entry}}, callbacks=NoHubCallbacks()) as hub:
        gateway = Gateway(hub, KEY, keyring)
        found = Lab(hub, gateway, await gateway.listen("127.0.0.1", 0))
        hurry = asyncio.Event()
        hurry.set()
        try:
            yield found
        finally:
            await gateway.drain(hurry, 0, 0)


async def _call(lab: Lab, token: str) -> Answer:
    async with lab.raw("server/guarded", token) as raw:
        return await raw.call("echo", {"text": "hi"})


async def _ask(lab: Lab, token: str, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=30) as client:
        answer = await client.request(method, f"{lab.base}/login/{path}", json=body)
        return answer.status_code, answer.json()


async def _log_in(lab: Lab, token: str, issuer: Issuer) -> None:
    status, begun = await _ask(lab, token, "POST", "guarded", {"redirect_uri": BACK})
    assert status == 200, begun
    ended_at = await issuer.login("guarded", begun["url"])
    status, said = await _ask(lab, token, "POST", "guarded/end", {"id": begun["id"], "ended_at": ended_at})
    assert (status, said) == (200, {"logged_in": True})


def _sent(guarded: Guarded) -> set[str]:
    return {value.removeprefix("Bearer ") for value in guarded.sent if value}


async def test_each_key_has_its_own_login(keyring: FileApiKeyStore) -> None:
    one, two = made(keyring, "one"), made(keyring, "two")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        await _log_in(lab, OWNER, issuer)
        assert (await _call(lab, OWNER)).result
        [owners] = _sent(guarded)
        for key in (one, two):
            refused = (await _call(lab, key)).error
            assert refused["code"] == errors.UPSTREAM_AUTH
            assert refused["data"]["code"] == "E-AUTH-LOGIN" and "toolway login guarded" in refused["data"]["fix"]
        assert _sent(guarded) == {owners}
        guarded.sent.clear()
        await _log_in(lab, one, issuer)
        assert (await _call(lab, one)).result
        assert "error" in (await _call(lab, two)).last
        [ones] = _sent(guarded)
        assert ones != owners
        await _log_in(lab, two, issuer)
        answers = await asyncio.gather(*(_call(lab, key) for key in (OWNER, one, two) * 10))
        assert all(answer.result for answer in answers)
        assert len(_sent(guarded)) == 3 and issuer.made["login"] == 3


async def test_caller_can_log_in_without_a_login_of_the_owner(keyring: FileApiKeyStore) -> None:
    one = made(keyring, "one")
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        async with _lab(keyring, guarded) as lab:
            await _log_in(lab, OWNER, issuer)
            assert (await _call(lab, OWNER)).result
            assert (await _ask(lab, OWNER, "DELETE", "guarded")) == (200, {"had": True})
        async with _lab(keyring, guarded) as lab, lab.raw("server/guarded", one) as raw:
            assert "error" in (await _call(lab, one)).last
            tools = (await raw.ask("tools/list")).result["tools"]  # of the run before: no tool has vanished
            assert "echo" in {tool["name"] for tool in tools}
            await _log_in(lab, one, issuer)
            assert (await _call(lab, one)).result
            assert "error" in (await _call(lab, OWNER)).last


async def test_server_that_starts_requiring_login_uses_callers_only(keyring: FileApiKeyStore) -> None:
    one = made(keyring, "one")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        await _log_in(lab, OWNER, issuer)
        assert (await _call(lab, OWNER)).result
        guarded.open = True
        assert (await _call(lab, one)).result  # with no token at all
        guarded.open = False
        guarded.sent.clear()
        assert (await _call(lab, one)).error["data"]["code"] == "E-AUTH-LOGIN"
        assert not _sent(guarded)


async def test_shared_link_never_uses_the_owners_login(keyring: FileApiKeyStore) -> None:
    """The server was open to all when the link was made, so all share it; by now the owner has a login on disk."""
    one = made(keyring, "one")
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        guarded.open = True
        async with _lab(keyring, guarded) as lab:
            assert (await _call(lab, one)).result
            guarded.open = False
            async with Hub({"guarded": guarded.url}, login_callback=issuer.login, catalog_storage=None) as other:
                await other.call_tool("guarded.echo")
            guarded.sent.clear()
            assert (await _call(lab, one)).error["data"]["code"] == "E-AUTH-LOGIN"
            assert not _sent(guarded)
            assert (await _call(lab, OWNER)).result


async def test_share_connection_uses_the_owners_login_for_all(keyring: FileApiKeyStore) -> None:
    one = made(keyring, "one")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded, shareConnection=True) as lab:
        await _log_in(lab, OWNER, issuer)
        assert (await _call(lab, OWNER)).result and (await _call(lab, one)).result
        assert len(_sent(guarded)) == 1


@pytest.mark.advisory("42")
async def test_login_can_be_finished_only_by_its_caller(keyring: FileApiKeyStore) -> None:
    """security.md row 42: a callback that is not bound to its user hands his account to another."""
    one, two = made(keyring, "one"), made(keyring, "two")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        _, begun = await _ask(lab, one, "POST", "guarded", {"redirect_uri": BACK})
        ended_at = await issuer.login("guarded", begun["url"])
        status, said = await _ask(lab, two, "POST", "guarded/end", {"id": begun["id"], "ended_at": ended_at})
        assert status == 404 and issuer.made["authorization_code"] == 0, said
        _, other = await _ask(lab, two, "POST", "guarded", {"redirect_uri": BACK})
        status, said = await _ask(lab, two, "POST", "guarded/end", {"id": other["id"], "ended_at": ended_at})
        assert status == 502 and issuer.made["authorization_code"] == 0, said  # the state belongs to another login
        assert "error" in (await _call(lab, two)).last
        status, _ = await _ask(lab, one, "POST", "guarded/end", {"id": begun["id"], "ended_at": ended_at})
        assert status == 200
        await until(lambda: lab.hub.lists.catalog.has_list("guarded", "tools"))  # with the only login there is
        assert (await _call(lab, one)).result
        status, _ = await _ask(lab, one, "POST", "guarded/end", {"id": begun["id"], "ended_at": ended_at})
        assert status == 404  # it is over


async def test_callers_token_never_leaves_the_gateway(keyring: FileApiKeyStore) -> None:
    one = made(keyring, "one")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        await _log_in(lab, one, issuer)
        await _log_in(lab, OWNER, issuer)
        assert (await _call(lab, one)).result and (await _call(lab, OWNER)).result
        told = "\n".join([*issuer.seen, *guarded.sent])
        assert told and one not in told and OWNER not in told and "tw_" not in told


@pytest.mark.attack("R3-C-1")
async def test_logins_of_a_key_end_when_it_is_revoked(keyring: FileApiKeyStore, tmp_path: Path) -> None:
    one = made(keyring, "one")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        await _log_in(lab, OWNER, issuer)
        await _log_in(lab, one, issuer)
        folder = tmp_path / "data" / "toolway" / "tokens"
        assert len(list(folder.glob("*.token"))) == 2
        status, _ = await _ask(lab, one, "POST", "guarded", {"redirect_uri": BACK})
        assert status == 200
        [pending] = lab.gateway.router._logins._pending.values()
        keyring.revoke_key_sync(keyring.list_keys()[0].id)
        await until(lambda: len(list(folder.glob("*.token"))) == 1)
        assert pending.task is not None
        await until(pending.task.done)  # a login that was begun ends too
        assert pending.task.cancelled() and not lab.gateway.router._logins._pending
        assert (await _call(lab, one)).status == 401
        assert (await _call(lab, OWNER)).result


@pytest.mark.parametrize(
    "uri", ["https://evil.example/cb", "http://evil.example/cb", "http://127.0.0.1@evil.example/", "file:///x", 7, None]
)
async def test_login_redirect_must_lead_to_loopback(keyring: FileApiKeyStore, uri: object) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        status, _ = await _ask(lab, OWNER, "POST", "guarded", {"redirect_uri": uri})
        assert status == 400 and not issuer.seen


async def test_key_can_log_in_only_to_servers_it_sees(keyring: FileApiKeyStore) -> None:
    token, _ = keyring.create_key_sync("other", ("server/elsewhere",), False, 0.0)
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        for method, path in (("POST", "guarded"), ("DELETE", "guarded"), ("POST", "nobody"), ("GET", "guarded")):
            status, _ = await _ask(lab, token, method, path, {"redirect_uri": BACK})
            assert status == 404
        status, _ = await _ask(lab, "tw_wrong", "POST", "guarded", {"redirect_uri": BACK})
        assert status == 401 and not issuer.seen


@pytest.mark.advisory("52")
async def test_token_for_another_audience_gets_401(keyring: FileApiKeyStore) -> None:
    """security.md row 52: tokens of a server behind the gateway and of its issuer, and others that are not ours."""
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        await _log_in(lab, OWNER, issuer)
        assert (await _call(lab, OWNER)).result
        before = len(guarded.sent), len(issuer.seen)
        foreign = [*issuer.valid, *issuer.refresh, f"{unsigned}.{unsigned}.", "tw_", OWNER[:-1], f"{OWNER}x", "null"]
        for token in foreign:
            assert (await _call(lab, token)).status == 401
            assert (await _ask(lab, token, "POST", "guarded", {"redirect_uri": BACK}))[0] == 401
        assert (len(guarded.sent), len(issuer.seen)) == before


@pytest.mark.advisory("42")
async def test_admin_entry_cannot_reference_secrets(keyring: FileApiKeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """security.md row 42: a placeholder in a header is filled in from the operator's own entries alone."""
    monkeypatch.setenv("CANARY", "canary-of-the-environment")
    open_store(os.environ).set("guarded.TOKEN", "canary-of-the-store")
    async with Issuer() as issuer, Guarded(issuer) as guarded, _lab(keyring, guarded) as lab:
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {OWNER}"}) as client:
            for reference in ("${keyring:guarded.TOKEN}", "${CANARY}", "${env:CANARY}", "${command:env}"):
                entry = {"url": guarded.url, "headers": {"Authorization": f"Bearer {reference}"}}
                await client.put(f"{lab.base}/admin/servers/other", json=entry)
                async with lab.raw("server/other", OWNER) as raw:
                    await raw.call("echo", {})
        assert "canary" not in "\n".join([*guarded.sent, *issuer.seen])
