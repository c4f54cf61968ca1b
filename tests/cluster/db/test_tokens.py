"""Logins in the record: sealed, seen by all nodes, renewed once for all of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.auth.oauth_lab import Guarded, Issuer
from tests.cluster.db.encryption_keys import a_sealer, an_integrity
from toolway import Hub
from toolway.auth.token_store import MAX_ISSUERS, Credential, OAuthClient, TokenKey
from toolway.cluster.db import tokens
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.tables import CredentialRow
from toolway.cluster.db.tokens import DbTokenSlot, DbTokenStore, DecryptionError
from toolway.network import NetworkPolicy
from toolway.types import AuthError

pytestmark = pytest.mark.anyio

UPSTREAM = "guarded https://guarded.example/mcp"
KEY = TokenKey("https://issuer.example", UPSTREAM, "ann")
CREDENTIAL = Credential(
    KEY.issuer, "https://issuer.example/token", OAuthClient("me", "s3cret-s3cret"), "access-0", "refresh-0"
)
HERE = NetworkPolicy(("127.0.0.1",))


def _node(engine: AsyncEngine) -> DbTokenStore:
    return DbTokenStore(engine, a_sealer(), "acme", an_integrity())


@asynccontextmanager
async def _login(engine: AsyncEngine) -> AsyncIterator[tuple[Issuer, Credential]]:
    """An issuer, and what it gave, in the record."""
    async with Issuer() as issuer:
        issuer.clients["me"] = "secret"
        given = issuer.tokens("one", "me")
        held = Credential(
            issuer.issuer,
            f"{issuer.issuer}/token",
            OAuthClient("me", "secret", "client_secret_basic"),
            given["access_token"],
            given["refresh_token"],
            "one",
        )
        await _node(engine).put(TokenKey(issuer.issuer, UPSTREAM, ""), held)
        yield issuer, held


# -- as a store -------------------------------------------------------------------------------------------------------


async def test_stored_login_is_visible_to_all_nodes(engine: AsyncEngine) -> None:
    a, b = _node(engine), _node(engine)
    assert await a.get(KEY) is None and await a.issuers(UPSTREAM, "ann") == []
    await a.put(KEY, CREDENTIAL)
    assert await b.get(KEY) == CREDENTIAL
    assert await b.issuers(UPSTREAM, "ann") == [KEY.issuer]
    assert (await ChangeReader(engine).fetch_since(0))[1] == {("logins", "acme")}
    await b.remove(KEY)
    assert await a.get(KEY) is None and await a.issuers(UPSTREAM, "ann") == []


async def test_logins_of_others_are_separate(engine: AsyncEngine) -> None:
    await _node(engine).put(KEY, CREDENTIAL)
    assert await _node(engine).get(KEY._replace(principal="bob")) is None
    assert await _node(engine).get(KEY._replace(upstream="guarded https://elsewhere.example/mcp")) is None
    assert await DbTokenStore(engine, a_sealer(), "other", an_integrity()).get(KEY) is None


async def test_latest_issuer_is_first_and_the_oldest_is_forgotten(engine: AsyncEngine) -> None:
    tokens = _node(engine)
    for number in range(MAX_ISSUERS + 1):
        issuer = f"https://{number}.example"
        await tokens.put(KEY._replace(issuer=issuer), replace(CREDENTIAL, issuer=issuer))
    await tokens.put(KEY._replace(issuer="https://5.example"), CREDENTIAL)
    found = await tokens.issuers(UPSTREAM, "ann")
    assert found[0] == "https://5.example" and len(found) == MAX_ISSUERS and "https://0.example" not in found


async def test_concurrent_puts_lose_nothing(engine: AsyncEngine) -> None:
    issuers = [f"https://{number}.example" for number in range(5)]
    await asyncio.gather(*(_node(engine).put(KEY._replace(issuer=issuer), CREDENTIAL) for issuer in issuers))
    assert set(await _node(engine).issuers(UPSTREAM, "ann")) == set(issuers)


async def test_secrets_are_not_stored_in_plain_text(engine: AsyncEngine) -> None:
    await _node(engine).put(KEY, CREDENTIAL)
    async with engine.connect() as db:
        rows = str((await db.execute(text("SELECT * FROM credentials"))).all())
    assert not [secret for secret in ("access-0", "refresh-0", "s3cret", "ann", "guarded") if secret in rows]


async def test_moved_login_is_rejected_and_can_be_replaced(engine: AsyncEngine) -> None:
    tokens = _node(engine)
    await tokens.put(KEY, CREDENTIAL)
    await tokens.put(KEY._replace(principal="bob"), replace(CREDENTIAL, access="of bob"))
    async with engine.begin() as db:
        sealed = (await db.execute(select(CredentialRow.sealed))).scalars().first()
        await db.execute(update(CredentialRow).values(sealed=sealed))
    opened = 0
    for principal in ("ann", "bob"):
        try:
            await tokens.get(KEY._replace(principal=principal))
            opened += 1
        except DecryptionError:
            await tokens.put(KEY._replace(principal=principal), CREDENTIAL)
            assert await tokens.get(KEY._replace(principal=principal)) == CREDENTIAL
    assert opened == 1


async def test_token_slot_knows_changes_of_other_nodes_without_waiting(engine: AsyncEngine) -> None:
    a, b = _node(engine), _node(engine)
    shelf = b.token_slot(UPSTREAM, "ann")
    assert shelf.may_have_token  # revisions are not loaded yet
    await b.load_revisions()
    assert not shelf.may_have_token and await shelf.load() is None and not shelf.has_changed()
    await a.put(KEY, CREDENTIAL)
    assert not shelf.has_changed()
    await b.load_revisions()
    assert shelf.may_have_token and shelf.has_changed()
    assert await shelf.load() == CREDENTIAL and not shelf.has_changed()
    await shelf.save(replace(CREDENTIAL, access="access-1"))
    assert not shelf.has_changed()
    await b.load_revisions()
    assert not shelf.has_changed()
    await a.remove(KEY)
    await b.load_revisions()
    assert shelf.has_changed() and await shelf.load() is None


# -- renewing ---------------------------------------------------------------------------------------------------------


async def test_concurrent_refreshes_ask_the_issuer_once(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        shelves = [_node(engine).token_slot(UPSTREAM, "") for _ in range(5)]
        new = await asyncio.gather(*(shelf.refresh(held, HERE) for shelf in shelves))
        assert issuer.made["refresh_token"] == 1
        assert {each.access for each in new} == {new[0].access} and new[0].access in issuer.valid


async def test_cancelled_refresh_completes_and_close_waits_for_it(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        tokens = _node(engine)
        leaving = asyncio.create_task(tokens.token_slot(UPSTREAM, "").refresh(held, HERE))
        while not issuer.made["refresh_token"]:
            await asyncio.sleep(0.005)
        leaving.cancel()
        await tokens.close()
        found = await _node(engine).get(TokenKey(issuer.issuer, UPSTREAM, ""))
        assert found is not None and found.access in issuer.valid and found.access != held.access


async def test_node_dying_during_refresh_does_not_block_others(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _login(engine) as (issuer, held):
        assert await _node(engine).reserve_refresh(UPSTREAM, "", 1.0) is not None  # and the node disappears
        assert await _node(engine).reserve_refresh(UPSTREAM, "", 1.0) is None
        new = await _node(engine).token_slot(UPSTREAM, "").refresh(held, HERE)
        assert new.access in issuer.valid and issuer.made["refresh_token"] == 1
        monkeypatch.setattr(tokens, "REFRESH_RESERVATION_S", 0.2)
        monkeypatch.setattr(tokens, "DATABASE_MARGIN_S", 0.1)
        assert await _node(engine).reserve_refresh(UPSTREAM, "", 60.0) is not None
        with pytest.raises(AuthError, match="other nodes have been refreshing"):
            await _node(engine).token_slot(UPSTREAM, "").refresh(new, HERE)


PROGRAM = """
import asyncio, sys
from tests.cluster.db.encryption_keys import a_sealer, an_integrity
from toolway.cluster.db import tokens
from toolway.cluster.db.engine import open_engine
from toolway.network.policy import NetworkPolicy

tokens.REFRESH_RESERVATION_S, tokens.REFRESH_TIMEOUT_S, tokens.DATABASE_MARGIN_S = 2.0, 0.5, 0.2

async def main() -> None:
    slot = tokens.DbTokenStore(open_engine(sys.argv[1]), a_sealer(), "acme", an_integrity()).token_slot(sys.argv[2], "")
    await slot.refresh(await slot.load(), NetworkPolicy(("127.0.0.1",)))

asyncio.run(main())
"""


async def test_killed_process_delays_refresh_of_others_briefly(engine: AsyncEngine, url: str) -> None:
    async with _login(engine) as (issuer, held):
        issuer.fault = "slow"
        command = (sys.executable, "-c", PROGRAM, url, UPSTREAM)
        killed = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[3])
        while not issuer.made["refresh_token"]:
            assert killed.returncode is None
            await asyncio.sleep(0.01)
        killed.kill()
        await killed.wait()
        issuer.fault = ""
        async with asyncio.timeout(60):
            new = await _node(engine).token_slot(UPSTREAM, "").refresh(held, HERE)
        assert new.access in issuer.valid


async def test_node_suspended_during_refresh_sends_nothing(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        times = iter([0.0, 0.0, 5.0])  # when it gave itself a limit, when it asked, and when it is about to send
        stopped = DbTokenSlot(_node(engine), UPSTREAM, "", clock=lambda: next(times))
        with pytest.raises(AuthError, match="was suspended"):
            await stopped.refresh(held, HERE)
        assert not issuer.made["refresh_token"]
        new = await _node(engine).token_slot(UPSTREAM, "").refresh(held, HERE)  # at once: it has let go
        assert new.access in issuer.valid


async def test_new_login_wins_over_a_running_refresh(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        shelf = _node(engine).token_slot(UPSTREAM, "")
        renewing = asyncio.create_task(shelf.refresh(held, HERE))
        while not issuer.made["refresh_token"]:
            await asyncio.sleep(0)
        login = replace(held, access="of the new login", refresh="its own")
        await _node(engine).put(TokenKey(held.issuer, UPSTREAM, ""), login)
        await renewing
        found = await shelf.load()
        assert found is not None and found.access == "of the new login"


async def test_expired_login_is_refreshed_only_once(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        issuer.refresh.clear()
        for _ in range(3):
            with pytest.raises(AuthError) as caught:
                await _node(engine).token_slot(UPSTREAM, "").refresh(held, HERE)
            assert caught.value.code == "E-AUTH-LOGIN"
        assert issuer.made["refresh_token"] == 1


async def test_failing_issuer_does_not_lose_the_login(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        issuer.fault = "status=503"
        with pytest.raises(AuthError):
            await _node(engine).token_slot(UPSTREAM, "").refresh(held, HERE)
        issuer.fault = ""
        assert (await _node(engine).token_slot(UPSTREAM, "").refresh(held, HERE)).access in issuer.valid


async def test_hubs_of_two_nodes_share_a_login(engine: AsyncEngine) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        servers = {"guarded": guarded.url}
        a, b = _node(engine), _node(engine)
        async with Hub(servers, login_callback=issuer.login, token_store=a, catalog_storage=None) as hub:
            await hub.call_tool("guarded.echo", {"text": "one"})
        await b.load_revisions()
        async with Hub(servers, token_store=b, catalog_storage=None) as hub:
            await hub.call_tool("guarded.echo", {"text": "two"})
        assert issuer.made["login"] == 1
