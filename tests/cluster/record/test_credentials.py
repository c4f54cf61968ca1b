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

from tests.cluster.record.sealing import a_sealer
from tests.security.oauth_lab import Guarded, Issuer
from toolway import Hub
from toolway.addresses import Addresses
from toolway.cluster.record import record_shelf
from toolway.cluster.record.changes import Changes
from toolway.cluster.record.envelopes import Unsealable
from toolway.cluster.record.record_shelf import RecordShelf, RecordTokens
from toolway.cluster.record.tables import CredentialRow
from toolway.model import NotAuthorized
from toolway.security.kept import ISSUERS
from toolway.security.tokens import Client, Credential, Key

pytestmark = pytest.mark.anyio

UPSTREAM = "guarded https://guarded.example/mcp"
KEY = Key("https://issuer.example", UPSTREAM, "ann")
CREDENTIAL = Credential(
    KEY.issuer, "https://issuer.example/token", Client("me", "s3cret-s3cret"), "access-0", "refresh-0"
)
HERE = Addresses(("127.0.0.1",))


def _node(engine: AsyncEngine) -> RecordTokens:
    return RecordTokens(engine, a_sealer(), "acme")


@asynccontextmanager
async def _login(engine: AsyncEngine) -> AsyncIterator[tuple[Issuer, Credential]]:
    """An issuer, and what it gave, in the record."""
    async with Issuer() as issuer:
        issuer.clients["me"] = "secret"
        given = issuer.tokens("one", "me")
        held = Credential(
            issuer.issuer,
            f"{issuer.issuer}/token",
            Client("me", "secret", "client_secret_basic"),
            given["access_token"],
            given["refresh_token"],
            "one",
        )
        await _node(engine).put(Key(issuer.issuer, UPSTREAM, ""), held)
        yield issuer, held


# -- as a store -------------------------------------------------------------------------------------------------------


async def test_what_one_node_keeps_all_have(engine: AsyncEngine) -> None:
    a, b = _node(engine), _node(engine)
    assert await a.get(KEY) is None and await a.issuers(UPSTREAM, "ann") == []
    await a.put(KEY, CREDENTIAL)
    assert await b.get(KEY) == CREDENTIAL
    assert await b.issuers(UPSTREAM, "ann") == [KEY.issuer]
    assert (await Changes(engine).since(0))[1] == {("logins", "acme")}
    await b.remove(KEY)
    assert await a.get(KEY) is None and await a.issuers(UPSTREAM, "ann") == []


async def test_logins_of_others_are_other_logins(engine: AsyncEngine) -> None:
    await _node(engine).put(KEY, CREDENTIAL)
    assert await _node(engine).get(KEY._replace(principal="bob")) is None
    assert await _node(engine).get(KEY._replace(upstream="guarded https://elsewhere.example/mcp")) is None
    assert await RecordTokens(engine, a_sealer(), "other").get(KEY) is None


async def test_the_last_one_put_is_the_first_and_the_oldest_is_forgotten(engine: AsyncEngine) -> None:
    tokens = _node(engine)
    for number in range(ISSUERS + 1):
        issuer = f"https://{number}.example"
        await tokens.put(KEY._replace(issuer=issuer), replace(CREDENTIAL, issuer=issuer))
    await tokens.put(KEY._replace(issuer="https://5.example"), CREDENTIAL)
    found = await tokens.issuers(UPSTREAM, "ann")
    assert found[0] == "https://5.example" and len(found) == ISSUERS and "https://0.example" not in found


async def test_those_who_put_at_once_lose_nothing(engine: AsyncEngine) -> None:
    issuers = [f"https://{number}.example" for number in range(5)]
    await asyncio.gather(*(_node(engine).put(KEY._replace(issuer=issuer), CREDENTIAL) for issuer in issuers))
    assert set(await _node(engine).issuers(UPSTREAM, "ann")) == set(issuers)


async def test_nothing_secret_lies_open_in_the_record(engine: AsyncEngine) -> None:
    await _node(engine).put(KEY, CREDENTIAL)
    async with engine.connect() as db:
        rows = str((await db.execute(text("SELECT * FROM credentials"))).all())
    assert not [secret for secret in ("access-0", "refresh-0", "s3cret", "ann", "guarded") if secret in rows]


async def test_a_login_opens_only_where_it_belongs_and_a_new_one_takes_its_place(engine: AsyncEngine) -> None:
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
        except Unsealable:
            await tokens.put(KEY._replace(principal=principal), CREDENTIAL)
            assert await tokens.get(KEY._replace(principal=principal)) == CREDENTIAL
    assert opened == 1


async def test_who_looks_knows_without_waiting_what_others_changed(engine: AsyncEngine) -> None:
    a, b = _node(engine), _node(engine)
    shelf = b.shelf(UPSTREAM, "ann")
    assert shelf.may_hold  # nobody has looked yet
    await b.look()
    assert not shelf.may_hold and await shelf.load() is None and not shelf.changed()
    await a.put(KEY, CREDENTIAL)
    assert not shelf.changed()
    await b.look()
    assert shelf.may_hold and shelf.changed()
    assert await shelf.load() == CREDENTIAL and not shelf.changed()
    await shelf.keep(replace(CREDENTIAL, access="access-1"))
    assert not shelf.changed()
    await b.look()
    assert not shelf.changed()
    await a.remove(KEY)
    await b.look()
    assert shelf.changed() and await shelf.load() is None


# -- renewing ---------------------------------------------------------------------------------------------------------


async def test_nodes_that_renew_at_once_ask_the_issuer_once(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        shelves = [_node(engine).shelf(UPSTREAM, "") for _ in range(5)]
        new = await asyncio.gather(*(shelf.renew(held, HERE) for shelf in shelves))
        assert issuer.made["refresh_token"] == 1
        assert {each.access for each in new} == {new[0].access} and new[0].access in issuer.valid


async def test_who_leaves_does_not_end_the_renewal_and_closing_waits_for_it(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        tokens = _node(engine)
        leaving = asyncio.create_task(tokens.shelf(UPSTREAM, "").renew(held, HERE))
        while not issuer.made["refresh_token"]:
            await asyncio.sleep(0.005)
        leaving.cancel()
        await tokens.close()
        found = await _node(engine).get(Key(issuer.issuer, UPSTREAM, ""))
        assert found is not None and found.access in issuer.valid and found.access != held.access


async def test_a_node_that_died_while_it_renewed_locks_nobody_out(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _login(engine) as (issuer, held):
        assert await _node(engine).reserve(UPSTREAM, "", 1.0) is not None  # and is never heard of again
        assert await _node(engine).reserve(UPSTREAM, "", 1.0) is None
        new = await _node(engine).shelf(UPSTREAM, "").renew(held, HERE)
        assert new.access in issuer.valid and issuer.made["refresh_token"] == 1
        monkeypatch.setattr(record_shelf, "RESERVED", 0.2)
        monkeypatch.setattr(record_shelf, "MARGIN", 0.1)
        assert await _node(engine).reserve(UPSTREAM, "", 60.0) is not None
        with pytest.raises(NotAuthorized, match="other nodes have been renewing"):
            await _node(engine).shelf(UPSTREAM, "").renew(new, HERE)


PROGRAM = """
import asyncio, sys
from tests.cluster.record.sealing import a_sealer
from toolway.addresses import Addresses
from toolway.cluster.record import record_shelf
from toolway.cluster.record.record_shelf import RecordTokens
from toolway.cluster.record.engine import open_engine

record_shelf.RESERVED, record_shelf.RENEW_LIMIT, record_shelf.MARGIN = 2.0, 0.5, 0.2

async def main() -> None:
    shelf = RecordTokens(open_engine(sys.argv[1]), a_sealer(), "acme").shelf(sys.argv[2], "")
    await shelf.renew(await shelf.load(), Addresses(("127.0.0.1",)))

asyncio.run(main())
"""


async def test_a_process_that_is_killed_while_it_renews_costs_the_others_a_moment(
    engine: AsyncEngine, url: str
) -> None:
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
        async with asyncio.timeout(10):
            new = await _node(engine).shelf(UPSTREAM, "").renew(held, HERE)
        assert new.access in issuer.valid


async def test_a_node_that_was_stopped_while_it_renewed_sends_nothing(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        times = iter([0.0, 0.0, 5.0])  # when it gave itself a limit, when it asked, and when it is about to send
        stopped = RecordShelf(_node(engine), UPSTREAM, "", clock=lambda: next(times))
        with pytest.raises(NotAuthorized, match="held up"):
            await stopped.renew(held, HERE)
        assert not issuer.made["refresh_token"]
        new = await _node(engine).shelf(UPSTREAM, "").renew(held, HERE)  # at once: it has let go
        assert new.access in issuer.valid


async def test_a_new_login_goes_before_a_renewal_that_was_under_way(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        shelf = _node(engine).shelf(UPSTREAM, "")
        renewing = asyncio.create_task(shelf.renew(held, HERE))
        while not issuer.made["refresh_token"]:
            await asyncio.sleep(0)
        login = replace(held, access="of the new login", refresh="its own")
        await _node(engine).put(Key(held.issuer, UPSTREAM, ""), login)
        await renewing
        found = await shelf.load()
        assert found is not None and found.access == "of the new login"


async def test_a_login_that_is_over_is_asked_about_once(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        issuer.refresh.clear()
        for _ in range(3):
            with pytest.raises(NotAuthorized) as caught:
                await _node(engine).shelf(UPSTREAM, "").renew(held, HERE)
            assert caught.value.code == "E-AUTH-LOGIN"
        assert issuer.made["refresh_token"] == 1


async def test_an_issuer_that_is_down_costs_nobody_the_login(engine: AsyncEngine) -> None:
    async with _login(engine) as (issuer, held):
        issuer.fault = "status=503"
        with pytest.raises(NotAuthorized):
            await _node(engine).shelf(UPSTREAM, "").renew(held, HERE)
        issuer.fault = ""
        assert (await _node(engine).shelf(UPSTREAM, "").renew(held, HERE)).access in issuer.valid


async def test_hubs_of_two_nodes_share_a_login(engine: AsyncEngine) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        servers = {"guarded": guarded.url}
        a, b = _node(engine), _node(engine)
        async with Hub(servers, login=issuer.login, tokens=a, catalog_dir=None) as hub:
            await hub.call_tool("guarded.echo", {"text": "one"})
        await b.look()
        async with Hub(servers, tokens=b, catalog_dir=None) as hub:
            await hub.call_tool("guarded.echo", {"text": "two"})
        assert issuer.made["login"] == 1
