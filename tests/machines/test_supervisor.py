"""One upstream under any conditions: its state is legal, every waiter is answered, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.machines.clock import LoopMachine
from tests.machines.upstreams import PLAIN, FakeHub, SimulatedLink, Weather, a_call, send_notifications
from tests.upstream.scripted_transport import MODERN
from toolway.config.schema import Server
from toolway.errors import CallError
from toolway.types import Certainty
from toolway.upstream.state import TRANSITIONS, State
from toolway.upstream.transport import Disconnect, JSONRPCError, TransportError
from toolway.upstream.upstream import Upstream

CRASH = Disconnect("the process ended", "E-STDIO-EXIT", exit_code=1)


class SupervisorMachine(LoopMachine):
    def __init__(self) -> None:
        super().__init__()
        self.weather = Weather()
        self.callers: list[asyncio.Task[Any]] = []
        self.stopped = False

    @initialize(lazy=st.booleans(), idle_stop=st.sampled_from([0.0, 0.0, 5.0]))
    def begins(self, lazy: bool, idle_stop: float) -> None:
        self.loop.run(self.make(replace(PLAIN, lazy=lazy, idle_timeout=idle_stop)))
        self.loop.turn()

    async def make(self, server: Server) -> None:
        self.around = FakeHub(self.weather)
        self.upstream = Upstream("s", server, self.around)
        self.upstream.start()

    @property
    def link(self) -> SimulatedLink | None:
        return self.around.open_links[-1] if self.around.open_links else None

    @property
    def waiting(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.callers if not task.done()]

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.callers.append(self.loop.create_task(work))
        self.loop.turn(2)

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(how=st.sampled_from(["call", "call", "call", "wait_ready", "sign_of_life", "wait_listed", "fetch_now"]))
    def caller_arrives(self, how: str) -> None:
        upstream = self.upstream
        ways: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "call": lambda: upstream.call(a_call()),
            "wait_ready": upstream.wait_ready,
            "sign_of_life": upstream.ping,
            "wait_listed": lambda: upstream.wait_list_fetched("prompts"),
            "fetch_now": lambda: upstream.refresh_now("tools"),
        }
        self.begin(ways[how]())

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def caller_leaves(self, which: int) -> None:
        self.waiting[which % len(self.waiting)].cancel()
        self.loop.turn(2)

    @precondition(lambda self: self.link is not None and self.link.calls)
    @rule(outcome=st.sampled_from(["ok", "not sent", "lost", "refused"]))
    def an_answer_comes(self, outcome: str) -> None:
        assert self.link is not None
        answer = self.link.calls[0]
        if answer.done():
            return
        if outcome == "ok":
            answer.set_result(MODERN | {"tools": []})
        elif outcome == "refused":
            answer.set_exception(JSONRPCError(-32602, "no"))
        else:
            certainty = Certainty.NOT_SENT if outcome == "not sent" else Certainty.UNKNOWN
            answer.set_exception(TransportError("reset", certainty, code="E-STDIO-PIPE"))
        self.loop.turn(3)

    @precondition(lambda self: self.link is not None)
    @rule()
    def the_link_is_lost(self) -> None:
        assert self.link is not None
        self.link.lose(CRASH)
        self.loop.turn(3)

    @rule(times=st.integers(2, 7), asked=st.booleans())
    def it_crashes_again_and_again(self, times: int, asked: bool) -> None:
        for _ in range(times):
            if self.link is not None:
                self.link.lose(CRASH)
                self.loop.turn(3)
            if asked:
                self.begin(self.upstream.call(a_call()))
            self.loop.wait(2.5)
        self.loop.wait(1.0)
        self.check_no_call_waits()

    @precondition(lambda self: self.link is not None and self.link.opened)
    @rule(what=st.sampled_from(["tools", "resources"]), count=st.sampled_from([1, 50]))
    def lists_change(self, what: str, count: int) -> None:
        assert self.link is not None
        self.loop.run(send_notifications(self.link.inbound, f"notifications/{what}/list_changed", count))

    @rule(
        opening=st.sampled_from(["well", "well", "refused", "never"]),
        answering=st.sampled_from(["well", "well", "refused", "never"]),
        closing=st.sampled_from([0.0, 2.0]),
        roll=st.sampled_from([0.0, 0.5, 0.999]),
    )
    def the_weather_changes(self, opening: str, answering: str, closing: float, roll: float) -> None:
        weather = self.weather
        weather.opening, weather.answering, weather.closing, weather.roll = opening, answering, closing, roll

    @rule()
    def a_person_restarts_it(self) -> None:
        self.upstream.restart()
        self.loop.turn(2)

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.6, 1.5, 6.0, 31.0, 70.0, 301.0]))
    def time_passes(self, seconds: float) -> None:
        before = len(self.around.moves)
        self.loop.wait(seconds)
        if seconds > 1 and len(self.around.moves) == before:
            self.check_no_call_waits()

    def check_no_call_waits(self) -> None:
        """In these states nothing is running that a caller could be waiting for."""
        if self.upstream.state in (State.IDLE, State.FAILED, State.STOPPED):
            assert self.waiting == []

    @rule()
    def a_status_is_asked_for(self) -> None:
        status = self.upstream.status()
        assert status.lifecycle == self.upstream.state.value and status.state == self.upstream.state_word
        assert status.why

    @precondition(lambda self: not self.stopped)
    @rule(chance=st.integers(0, 9))
    def it_is_stopped(self, chance: int) -> None:
        if chance == 0:
            self.stop()

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def every_transition_is_in_the_table(self) -> None:
        moves = self.around.moves if hasattr(self, "around") else []
        state = State.IDLE.value
        for old, new in moves:
            assert old == state
            assert State(new) in TRANSITIONS[State(old)].values()
            state = new
        assert not moves or self.upstream.state.value == state

    @invariant()
    def one_link_at_a_time(self) -> None:
        links = self.around.links if hasattr(self, "around") else []
        assert all(link.opened <= 1 and link.closed <= 1 for link in links)
        assert sum(not link.closed for link in links) <= 1

    def stop(self) -> None:
        self.stopped = True
        began = self.loop.time()
        self.loop.run(self.upstream.stop())
        assert self.loop.time() - began <= 6
        assert self.upstream.state is State.STOPPED

    def finish(self) -> None:
        if not hasattr(self, "around"):
            return
        if not self.stopped:
            self.stop()
        self.loop.wait(1.0)
        assert self.waiting == []
        for task in self.callers:
            assert task.cancelled() or task.exception() is None or isinstance(task.exception(), CallError)
        assert [link.closed for link in self.around.links] == [1] * len(self.around.links)
        assert asyncio.all_tasks(self.loop) == set()


def test_upstream_survives_any_conditions() -> None:
    run_state_machine_as_test(SupervisorMachine)
