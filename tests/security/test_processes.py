"""Several processes, one store of tokens, and a real authorization server that takes a second use for theft."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import pytest

from tests.security.authorization_server import RealIssuer, real_issuer
from tests.security.callers import Caller, caller
from toolway import Denied, Hub, Unavailable

pytestmark = pytest.mark.anyio

LONG = bool(os.environ.get("TOOLWAY_LONG"))
PROCESSES = 4
CALLS = 100  # of each process


async def _logged_in(lab: RealIssuer) -> None:
    async with Hub({"guarded": lab.url}, login=lab.login, catalog_dir=None) as hub:
        assert not (await hub.call_tool("guarded.echo")).is_error


async def _callers(stack: AsyncExitStack, lab: RealIssuer, number: int) -> list[Caller]:
    return await asyncio.gather(*(stack.enter_async_context(caller(lab.url)) for _ in range(number)))


@pytest.mark.parametrize("how", ["by its own word", "by the server's"])
async def test_100_calls_in_each_of_4_processes_with_an_expired_token_make_one_refresh(how: str) -> None:
    async with real_issuer() as lab, AsyncExitStack() as stack:
        if how == "by its own word":
            await lab.tell("lifetime", "1")
        await _logged_in(lab)
        await lab.tell("lifetime", "3600")
        callers = await _callers(stack, lab, PROCESSES)
        if how == "by its own word":
            await asyncio.sleep(1)
        else:
            await lab.tell("expire")
        outcomes = await asyncio.gather(*(each.call(CALLS) for each in callers))
        facts = await lab.tell()
        assert outcomes == [{"ok": CALLS}] * PROCESSES
        assert (facts.logins, facts.refreshes, facts.reused) == (1, 1, 0)
        assert len(set(facts.seen)) == 2


@pytest.mark.parametrize("moment", [0.0, 0.15, None] if not LONG else [*(n / 20 for n in range(40)), *[None] * 10])
async def test_who_is_killed_while_renewing_locks_nobody_out(moment: float | None) -> None:
    """At any moment, and at the worst one: the issuer has taken the token and has not answered yet."""
    async with real_issuer() as lab, AsyncExitStack() as stack:
        await _logged_in(lab)
        first, *others = await _callers(stack, lab, 3)
        await lab.tell("expire")
        await lab.tell("slow", "1")
        await first.begin(10)
        if moment is None:
            await lab.until(lambda facts: facts.refreshes == 1)
        else:
            await asyncio.sleep(moment)
        first.kill()
        assert [await each.call(10) for each in others] == [{"ok": 10}] * 2
        facts = await lab.tell()
        assert (facts.logins, facts.refreshes, facts.reused) == (1, 1, 0)


async def test_a_login_that_has_ended_is_told_once_by_its_issuer_and_by_us_to_everybody() -> None:
    async with real_issuer() as lab, AsyncExitStack() as stack:
        await _logged_in(lab)
        callers = await _callers(stack, lab, 2)
        await lab.tell("end")
        assert await callers[0].call(20) == {"E-AUTH-LOGIN": 20}
        assert await callers[1].call(20) == {"E-AUTH-LOGIN": 20}
        assert (await lab.tell()).refused == 1


async def test_after_a_login_elsewhere_a_process_that_runs_has_the_token() -> None:
    async with real_issuer() as lab, Hub({"guarded": lab.url}, catalog_dir=None) as hub:
        with pytest.raises((Denied, Unavailable)) as caught:
            await hub.call_tool("guarded.echo")
        assert caught.value.fix.startswith("toolway login guarded")
        await _logged_in(lab)
        async with asyncio.timeout(10):
            while hub.status()["guarded"].state != "ready":
                await asyncio.sleep(0.05)
        assert not (await hub.call_tool("guarded.echo")).is_error


async def test_after_a_logout_elsewhere_a_process_that_runs_has_no_token() -> None:
    async with real_issuer() as lab, AsyncExitStack() as stack:
        await _logged_in(lab)
        [one] = await _callers(stack, lab, 1)
        assert await one.call(1) == {"ok": 1}
        async with Hub({"guarded": {"url": lab.url, "lazy": True}}, catalog_dir=None) as hub:
            assert await hub.log_out("guarded")
            assert not await hub.log_out("guarded")
        await asyncio.sleep(1.1)  # a process looks once a second
        assert await one.call(1) == {"E-AUTH-LOGIN": 1}
        assert (await lab.tell()).revoked == 1
