"""Several processes, one store of tokens, and a real authorization server that takes a second use for theft.

`make long-tests ARGS=logins` runs all of it: each way in which a token ends, and 50 kills at 50 moments.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import pytest

from tests.auth.authorization_server import RealIssuer, real_issuer
from tests.auth.callers import Caller, caller
from tests.auth.oauth_lab import Guarded, Issuer
from tests.faults.fault_lab import until
from toolway import AccessDenied, Hub
from toolway.errors import ToolwayError

pytestmark = pytest.mark.anyio

PROCESSES = 4
CALLS = 100  # of each process
MOMENTS = [*(number / 20 for number in range(40)), *[None] * 10]  # seconds; None = the worst one

long = pytest.mark.skipif(not os.environ.get("TOOLWAY_LONG"), reason="minutes: make long-tests ARGS=logins")


async def _logged_in(lab: RealIssuer) -> None:
    async with Hub({"guarded": lab.url}, login_callback=lab.login, catalog_storage=None) as hub:
        assert not (await hub.call_tool("guarded.echo")).is_error


async def _callers(stack: AsyncExitStack, lab: RealIssuer, number: int) -> list[Caller]:
    return await asyncio.gather(*(stack.enter_async_context(caller(lab.url)) for _ in range(number)))


async def _one_refresh(lab: RealIssuer, callers: list[Caller]) -> None:
    before = (await lab.command()).refreshes
    outcomes = await asyncio.gather(*(each.call(CALLS) for each in callers))
    facts = await lab.command()
    assert outcomes == [{"ok": CALLS}] * len(callers)
    assert (facts.logins, facts.refreshes - before, facts.reused) == (1, 1, 0)


async def _killed(lab: RealIssuer, first: Caller, others: list[Caller], moment: float | None) -> None:
    """At any moment, and at the worst one: the issuer has taken the token and has not answered yet."""
    before = (await lab.command("expire")).refreshes
    await lab.command("slow", "1")
    await first.begin(10)
    if moment is None:
        await lab.until(lambda facts: facts.refreshes > before)
    else:
        await asyncio.sleep(moment)
    first.kill()
    assert [await each.call(10) for each in others] == [{"ok": 10}] * len(others)
    facts = await lab.command()
    assert (facts.logins, facts.refreshes - before, facts.reused) == (1, 1, 0)


async def test_many_processes_refresh_once_despite_a_kill() -> None:
    async with real_issuer() as lab, AsyncExitStack() as stack:
        await _logged_in(lab)
        callers = await _callers(stack, lab, PROCESSES)
        await lab.command("expire")
        await _one_refresh(lab, callers)
        await _killed(lab, callers[0], callers[1:], None)


@long
@pytest.mark.parametrize("how", ["by its own word", "by the server's"])
async def test_expired_token_is_refreshed_once(how: str) -> None:
    async with real_issuer() as lab, AsyncExitStack() as stack:
        await lab.command("lifetime", "1" if how == "by its own word" else "3600")
        await _logged_in(lab)
        await lab.command("lifetime", "3600")
        callers = await _callers(stack, lab, PROCESSES)
        if how == "by its own word":
            await asyncio.sleep(1)
        else:
            await lab.command("expire")
        await _one_refresh(lab, callers)


@long
@pytest.mark.parametrize("moment", MOMENTS)
async def test_process_killed_during_refresh_locks_out_no_other(moment: float | None) -> None:
    async with real_issuer() as lab, AsyncExitStack() as stack:
        await _logged_in(lab)
        first, *others = await _callers(stack, lab, 3)
        await _killed(lab, first, others, moment)


# -- two hubs of one user, in one process ------------------------------------------------------------------------------


def _hub(guarded: Guarded, **options: object) -> Hub:
    return Hub({"guarded": guarded.url}, catalog_storage=None, **options)  # type: ignore[arg-type] # as a test wants it


async def _code(hub: Hub) -> str:
    try:
        return "ok" if not (await hub.call_tool("guarded.echo")).is_error else "failed"
    except ToolwayError as exc:
        return exc.code


async def _until_code(hub: Hub, code: str) -> None:
    async with asyncio.timeout(30):
        while await _code(hub) != code:
            await asyncio.sleep(0.1)


async def test_running_hub_follows_login_and_logout_elsewhere() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded, _hub(guarded) as hub, _hub(guarded) as other:
        with pytest.raises(AccessDenied) as caught:
            await hub.call_tool("guarded.echo")
        assert (caught.value.code, caught.value.hint) == ("E-AUTH-LOGIN", "toolway login guarded")
        await other.login("guarded", issuer.login)
        await until(lambda: hub.status()["guarded"].state == "ready", 15)
        assert await _code(hub) == "ok"
        assert await other.logout("guarded") and not await other.logout("guarded")
        await _until_code(hub, "E-AUTH-LOGIN")  # the other hub reads the token storage once a second
        await other.login("guarded", issuer.login)
        await until(lambda: hub.status()["guarded"].state == "ready", 15)
        assert await _code(hub) == "ok"


async def test_new_login_interrupts_no_call() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded, _hub(guarded) as hub:
        await hub.login("guarded", issuer.login)
        slow = asyncio.create_task(hub.call_tool("guarded.sleep", {"seconds": 0.5}))
        await until(lambda: len(guarded.sent) == 1, 15)
        await hub.login("guarded", issuer.login)
        assert await _code(hub) == "ok"
        assert not (await slow).is_error
        assert len(set(guarded.sent)) == 2


async def test_ended_login_is_reported_to_all_calls_after_one_refresh() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded, _hub(guarded) as one, _hub(guarded) as two:
        await one.login("guarded", issuer.login)
        assert await _code(one) == "ok"  # at once
        await until(lambda: two.status()["guarded"].state == "ready", 15)
        issuer.expire()
        issuer.refresh.clear()
        for hub in (one, two):
            assert await asyncio.gather(*(_code(hub) for _ in range(20))) == ["E-AUTH-LOGIN"] * 20
        assert issuer.made["refresh_token"] == 1
        assert {tool.qualified_name for tool in one.known_tools()} >= {"guarded.echo"}  # no tool has vanished


async def test_client_credentials_token_is_shared_by_hubs() -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        issuer.clients["mine"] = "secret"
        auth = {"grant": "client_credentials", "clientId": "mine", "clientSecret": "secret", "issuer": issuer.issuer}
        entry = {"guarded": {"url": guarded.url, "auth": {"type": "oauth", **auth}}}
        async with Hub(entry, catalog_storage=None) as one, Hub(entry, catalog_storage=None) as two:
            assert list(await asyncio.gather(_code(one), _code(two))) == ["ok", "ok"]
            issuer.expire()
            assert await asyncio.gather(*(_code(hub) for hub in (one, two) * 10)) == ["ok"] * 20
        assert issuer.made == {"client_credentials": 2}
