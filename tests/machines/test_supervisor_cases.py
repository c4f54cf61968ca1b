"""What the machine of the supervisor found, and what it would take too long to find, one by one, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.machines.upstreams import PLAIN, FakeHub, Weather, a_call
from tests.sim.loop import VirtualLoop, run
from toolway.config.schema import Server, Timeout
from toolway.errors import ServerUnavailable
from toolway.upstream.start_policy import RestartBackoff
from toolway.upstream.state import State
from toolway.upstream.transport import Disconnect
from toolway.upstream.upstream import Upstream

CRASH = Disconnect("the process ended", "E-STDIO-EXIT", exit_code=1)


def begun(weather: Weather, server: Server = PLAIN) -> tuple[Upstream, FakeHub]:
    around = FakeHub(weather)
    upstream = Upstream("s", server, around)
    upstream.start()
    return upstream, around


def entered(around: FakeHub, state: State) -> int:
    return sum(new == state.value for _, new in around.moves)


async def crash(upstream: Upstream, around: FakeHub, times: int) -> None:
    for _ in range(times):
        await upstream.wait_ready()
        around.links[-1].lose(CRASH)
        await asyncio.sleep(0.01)


async def over(upstream: Upstream, *tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await upstream.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_waiting_call_fails_at_once_when_its_server_fails() -> None:
    async def main() -> None:
        upstream, around = begun(Weather(roll=0.0))
        await crash(upstream, around, 5)
        await upstream.wait_ready()
        around.weather.closing = 2.0
        around.links[-1].lose(CRASH)
        await asyncio.sleep(1.0)
        late = asyncio.ensure_future(upstream.call(a_call()))
        await asyncio.sleep(2.0)
        told = late.done() and isinstance(late.exception(), ServerUnavailable)
        assert upstream.state is State.FAILED
        await over(upstream, late)
        assert told

    run(main())


def test_unused_server_is_stopped_and_stays_stopped() -> None:
    async def main() -> None:
        upstream, around = begun(Weather(opening="never"), replace(PLAIN, lazy=True, idle_timeout=5.0))
        first = asyncio.ensure_future(upstream.wait_ready())
        await asyncio.sleep(1)
        second = asyncio.ensure_future(upstream.wait_ready())
        await asyncio.sleep(1)
        around.links[0].calls[0].set_result({})
        await asyncio.gather(first, second)
        around.weather.opening = "well"
        await asyncio.sleep(8)
        state, starts = upstream.state, entered(around, State.STARTING)
        await over(upstream)
        assert (state, starts) == (State.IDLE, 1)

    run(main())


def test_slowly_started_server_is_not_stopped_when_ready() -> None:
    async def main() -> None:
        upstream, around = begun(Weather(opening="never"), replace(PLAIN, idle_timeout=5.0))
        await asyncio.sleep(10)
        around.links[-1].calls[0].set_result({})
        await upstream.wait_ready()
        await asyncio.sleep(4)
        state = upstream.state
        await over(upstream)
        assert state is State.READY

    run(main())


def test_stopping_server_is_not_started_again() -> None:
    async def main() -> None:
        upstream, around = begun(Weather(opening="refused", closing=2.0, roll=0.0))
        await asyncio.sleep(1.0)
        await upstream.stop()
        assert len(around.links) == 1

    run(main())


def test_health_check_error_is_repeated_once_per_interval() -> None:
    async def main() -> int:
        upstream, around = begun(Weather())
        await upstream.wait_ready()
        around.weather.answering = "refused"
        await asyncio.sleep(95)
        asked = around.links[0].methods.count("server/discover") - 1
        state = upstream.state
        await over(upstream)
        assert state is State.READY
        return asked

    assert run(main(), VirtualLoop(1000.0)) == 4  # every 20 s: a process must answer within 30 s


def test_restart_delays_stay_at_their_cap() -> None:
    restarts = RestartBackoff(PLAIN.restart, random=lambda: 0.999)
    for n in range(3000):
        wait, failed = restarts.next_delay(now=n * 20.0, ready_for=0.0)
        assert wait <= 30.0 and not failed


def test_silent_server_is_still_tried_after_two_days() -> None:
    async def main() -> tuple[bool, int]:
        server = replace(
            PLAIN,
            timeout=Timeout(start=30.0),
            restart=msgspec.structs.replace(PLAIN.restart, max_restarts=1000, max_backoff=1.0),
        )
        upstream, around = begun(Weather(opening="never"), server)
        await asyncio.sleep(2 * 86_400)
        alive, tries = upstream._task is not None and not upstream._task.done(), len(around.links)
        await asyncio.gather(upstream.stop(), return_exceptions=True)
        return alive, tries

    alive, tries = run(main())
    assert alive
    assert tries > 5000


def test_call_waits_for_the_start_and_is_made() -> None:
    async def main() -> None:
        upstream, around = begun(Weather(), replace(PLAIN, lazy=True))
        calling = asyncio.ensure_future(upstream.call(a_call()))
        await asyncio.sleep(1.0)
        around.links[0].calls[0].set_result({"content": []})
        assert await calling == {"content": []}
        await over(upstream)

    run(main())


def test_call_to_a_server_that_failed_to_start_gets_the_cause() -> None:
    async def main() -> None:
        upstream, _ = begun(Weather(opening="refused"))
        with pytest.raises(ServerUnavailable) as caught:
            await upstream.call(a_call())
        assert "connection refused" in caught.value.detail
        await over(upstream)

    run(main())


def test_six_exits_in_a_minute_pause_restarts_for_five_minutes() -> None:
    async def main() -> None:
        upstream, around = begun(Weather(roll=0.0))
        await crash(upstream, around, 6)
        assert upstream.status().lifecycle == "failed"
        await asyncio.sleep(299)
        assert len(around.links) == 6
        await asyncio.sleep(2)
        assert upstream.status().state == "ready"
        await over(upstream)
        assert [link.closed for link in around.links] == [1] * 7

    run(main())
