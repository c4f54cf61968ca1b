"""A blocked loop is reported once, with its location; nothing else is."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable

import pytest

from toolway.events import Event, LoopResumed, LoopStalled
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.hub.event_stream import Watchdog

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A watchdog whose clock stands, and whose thread is this one: the test looks and beats."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threading.Thread, "start", lambda _: None)
        self.clock = Clock()
        self.told: list[Event] = []
        self.next_round: Callable[[], None] = lambda: None
        self.dog = Watchdog(self.told.append, 5.0, self.clock)
        self.dog.start()
        self.dog.stop()  # no beats but ours

    async def look(self, *, late: bool = False) -> float:
        pause = self.dog.check(late=late)
        await asyncio.sleep(0)
        return pause

    def later(self, _: float, callback: Callable[..., None], *arguments: int) -> asyncio.TimerHandle:
        """Keep what the dog wants to do in the next round, for `turn`."""
        timer = asyncio.get_running_loop().call_at(math.inf, callback, *arguments)
        if arguments:
            self.next_round = lambda: None if timer.cancelled() else callback(*arguments)
        return timer

    def turn(self) -> None:
        self.next_round()

    def kinds(self) -> list[type[Event]]:
        return [type(fact) for fact in self.told]


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def test_running_loop_is_not_reported(watched: Watched) -> None:
    for _ in range(100):
        watched.clock.now += 4.9
        assert await watched.look() == pytest.approx(0.1)
        watched.dog._beat()
    assert watched.told == []


async def test_blocked_loop_is_reported_once_and_again_on_resume(watched: Watched) -> None:
    for _ in range(20):
        watched.clock.now += 1
        await watched.look()
    watched.dog._beat()
    watched.dog._beat()
    assert watched.kinds() == [LoopStalled, LoopResumed]
    stalled, resumed = watched.told
    assert isinstance(stalled, LoopStalled) and isinstance(resumed, LoopResumed)
    assert (stalled.seconds, resumed.seconds) == (5, 20)
    assert "in look" in stalled.stack
    assert "5.0 s" in stalled.summary and "thread" in stalled.summary
    watched.clock.now += 6
    await watched.look()
    assert watched.kinds() == [LoopStalled, LoopResumed, LoopStalled]


async def test_suspended_process_is_reported_later_without_stack(watched: Watched) -> None:
    watched.clock.now += 60
    assert await watched.look(late=True) == 0.5
    assert watched.told == []
    watched.dog._beat()
    assert watched.kinds() == [LoopStalled, LoopResumed]
    assert isinstance(watched.told[0], LoopStalled)
    assert "no stack" in watched.told[0].stack


async def test_stopped_loop_is_not_reported(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.clock.now += 60
    with monkeypatch.context() as patch:
        patch.setattr(type(watched.dog._loop), "is_running", lambda _: False)
        watched.dog.check()
    watched.dog._beat()
    assert watched.told == []


def dogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "toolway watchdog"]


async def test_thread_reports_blocked_loop_and_ends_with_hub(caplog: pytest.LogCaptureFixture) -> None:
    before = dogs()
    async with HubCore({}, environment=HubEnvironment(stall_threshold=0.3)):
        (mine,) = set(dogs()) - set(before)
        await asyncio.sleep(0.05)
        time.sleep(2)  # noqa: ASYNC251  this is what must be noticed
        assert "the event loop has been blocked for " in caplog.text
        assert "test_thread_reports_blocked_loop" in caplog.text
        async with asyncio.timeout(30):
            while "runs again" not in caplog.text:
                await asyncio.sleep(0.02)
    await asyncio.to_thread(mine.join, 30)
    assert not mine.is_alive()


async def test_zero_threshold_starts_no_watchdog() -> None:
    before = dogs()
    async with HubCore({}, environment=HubEnvironment(stall_threshold=0)):
        assert dogs() == before


@pytest.fixture
async def paused(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A watchdog and an event loop with the same clock."""
    watched = Watched(monkeypatch)
    monkeypatch.setattr(watched.dog._loop, "time", watched.clock)
    monkeypatch.setattr(watched.dog._loop, "call_later", watched.later)
    watched.dog._beat()
    return watched


@pytest.mark.attack("A2-S3")
async def test_request_read_after_a_pause_counts_from_its_start(paused: Watched) -> None:
    clock, dog = paused.clock, paused.dog
    clock.now += 2.9
    assert dog.pause_before(clock.now) == pytest.approx(2.9)  # before the beat
    dog._beat()
    for _ in range(9):  # however long the rounds take, because many requests are read in them
        clock.now += 0.2
        paused.turn()
        assert dog.pause_before(clock.now) >= 2.9
    paused.turn()
    assert dog.pause_before(clock.now) == 0.0
    assert paused.told == []


@pytest.mark.attack("A2-S3")
async def test_second_pause_counts_separately(paused: Watched) -> None:
    clock, dog = paused.clock, paused.dog
    clock.now += 30
    dog._beat()
    paused.turn()
    clock.now += 4
    assert dog.pause_before(clock.now) >= 4
    dog._beat()
    assert dog.pause_before(clock.now) == pytest.approx(4)
    for _ in range(9):
        paused.turn()
    assert dog.pause_before(clock.now) == pytest.approx(4)
    paused.turn()
    assert dog.pause_before(clock.now) == 0.0


async def test_busy_loop_is_not_paused(paused: Watched) -> None:
    for _ in range(20):
        paused.clock.now += 2.4  # beats are late
        assert paused.dog.pause_before(paused.clock.now) == 0.0
        paused.dog._beat()


async def test_stopped_watchdog_reports_no_pause(paused: Watched) -> None:
    paused.dog.stop()
    assert paused.dog.pause_before(paused.clock.now + 1000) == 0.0
    assert Watchdog(paused.told.append, 0).pause_before(1000) == 0.0
