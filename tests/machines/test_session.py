"""A session whose server forgets it: one new handshake per loss, and every request is sent twice at most."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.machines.clock import LoopMachine
from tests.machines.upstreams import RejectingCallbacks
from tests.sim.loop import run
from tests.upstream.scripted_transport import HANDSHAKE, MODERN, ScriptedLink
from toolway.types import Call, CallState, Certainty, Json
from toolway.upstream.session import SESSION_LOST_CODE, Session
from toolway.upstream.transport import JSONRPCError, Request, TransportError


@dataclass(eq=False)
class Pending:
    """A request at the server, and the session that it named."""

    request: Request
    session: int | None
    answer: asyncio.Future[Json]


class ForgetfulLink(ScriptedLink):
    """An HTTP server with sessions, which answers on request."""

    def __init__(self) -> None:
        super().__init__(self._hold)
        self.session: int | None = None  # what our side names
        self.remembered: int | None = None  # what the server knows
        self.pending: list[Pending] = []
        self.handshakes = self.most_at_once = 0

    async def _hold(self, request: Request) -> Json:
        pending = Pending(request, self.session, asyncio.get_running_loop().create_future())
        self.pending.append(pending)
        request.call_state.certainty = Certainty.UNKNOWN
        greeting = [each for each in self.pending if each.request.method == "initialize"]
        self.most_at_once = max(self.most_at_once, len(greeting))
        try:
            return await pending.answer
        finally:
            if pending in self.pending:
                self.pending.remove(pending)

    def reset_session(self) -> None:
        super().reset_session()
        self.session = None

    def handle(self, pending: Pending, *, refuse: bool = False) -> None:
        """What the server does with a request, by what it remembers now."""
        self.pending.remove(pending)
        if pending.request.method == "initialize":
            self._greet(pending, refuse)
        elif pending.session is None:
            pending.answer.set_exception(JSONRPCError(-32600, "Bad Request: Missing session ID", status=400))
        elif pending.session != self.remembered:
            gone = TransportError(
                "the server no longer knows the session", Certainty.REJECTED, code=SESSION_LOST_CODE, status=404
            )
            pending.answer.set_exception(gone)
        else:
            pending.answer.set_result({"tag": pending.request.params["tag"]})

    def _greet(self, pending: Pending, refuse: bool) -> None:
        if refuse:
            pending.answer.set_exception(
                TransportError("overloaded", Certainty.UNKNOWN, code="E-HTTP-STATUS", status=503)
            )
            return
        self.handshakes += 1
        self.session = self.remembered = self.handshakes
        pending.answer.set_result(HANDSHAKE)


@dataclass(eq=False)
class Asked:
    tag: int
    attempt: CallState = field(default_factory=CallState)
    task: asyncio.Task[Json] = field(init=False)


class SessionMachine(LoopMachine):
    """In troubled times handshakes fail, and their callers may leave."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = self.excuses = self.tag = 0
        self.asked: list[Asked] = []
        self.troubled = False
        self.loop.run(self.open())

    @initialize(troubled=st.booleans())
    def times_are_quiet_or_troubled(self, troubled: bool) -> None:
        self.troubled = troubled

    async def open(self) -> None:
        self.link = ForgetfulLink()
        self.session = Session("s", self.link, RejectingCallbacks(), lambda *_: None)
        opening = asyncio.ensure_future(self.session.open("legacy", None))
        await asyncio.sleep(0)
        self.link.handle(self.link.pending[0])
        await opening
        assert self.link.handshakes == 1

    @property
    def waiting(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.task.done()]

    def at_the_server(self, asked: Asked) -> bool:
        return any(each.request.params.get("tag") == asked.tag for each in self.link.pending)

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 2, 5]))
    def requests_are_made(self, count: int) -> None:
        for _ in range(count):
            self.ask()
        self.loop.turn(1)

    def ask(self) -> Asked:
        self.tag += 1
        asked = Asked(self.tag)
        asked.task = self.loop.create_task(self.session.request("tools/list", {"tag": asked.tag}, asked.attempt))
        self.asked.append(asked)
        return asked

    @rule()
    def the_server_forgets(self) -> None:
        if self.link.remembered is not None:
            self.losses += 1
        self.link.remembered = None

    @precondition(lambda self: self.link.pending)
    @rule(which=st.integers(0, 100), turns=st.integers(0, 4))
    def the_server_handles_one(self, which: int, turns: int) -> None:
        self.link.handle(self.link.pending[which % len(self.link.pending)])
        self.loop.turn(turns)

    @precondition(lambda self: self.link.pending)
    @rule()
    def the_server_handles_all(self) -> None:
        for pending in list(self.link.pending):
            self.link.handle(pending)
        self.loop.turn(5)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def one_leaves(self, which: int) -> None:
        asked = self.waiting[which % len(self.waiting)]
        if self.troubled or self.at_the_server(asked):
            self.excuses += not self.at_the_server(asked)
            asked.task.cancel()
            self.loop.turn(2)

    @precondition(lambda self: self.troubled and self.link.pending)
    @rule()
    def a_handshake_fails(self) -> None:
        for pending in list(self.link.pending):
            if pending.request.method == "initialize":
                self.link.handle(pending, refuse=True)
                self.excuses += 1
        self.loop.turn(3)

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def one_handshake_per_loss(self) -> None:
        begun = self.link.methods.count("initialize") - 1
        assert self.link.most_at_once == 1
        assert self.link.handshakes - 1 <= self.losses
        assert begun <= self.losses + self.excuses

    @invariant()
    def every_request_is_sent_twice_at_most(self) -> None:
        sent = Counter(request.params["tag"] for request in self.link.asked if "tag" in request.params)
        assert max(sent.values(), default=0) <= 2

    @invariant()
    def every_request_gets_its_own_answer(self) -> None:
        for asked in [each for each in self.asked if each.task.done()]:
            self.asked.remove(asked)
            if not asked.task.cancelled():
                self.check(asked)

    def check(self, asked: Asked) -> None:
        error = asked.task.exception()
        if error is None:
            assert asked.task.result() == {"tag": asked.tag}
            assert asked.attempt.certainty is Certainty.UNKNOWN
            return
        assert isinstance(error, TransportError), f"sent without a session: {error!r}"
        assert error.certainty <= Certainty.REJECTED, "it was never processed, and may be told so"
        assert self.losses >= (1 if self.troubled else 2)

    def finish(self) -> None:
        self.settle()
        assert self.waiting == []
        last = self.ask()
        self.settle()
        self.every_request_gets_its_own_answer()
        assert last.task.done() and last.task.exception() is None

    def settle(self) -> None:
        self.loop.turn(5)
        for _ in range(10 + len(self.waiting)):
            for pending in list(self.link.pending):
                self.link.handle(pending)
            self.loop.turn(5)


def test_forgotten_session_is_renewed_once_for_all_requests() -> None:
    run_state_machine_as_test(SessionMachine)


@pytest.mark.parametrize("certainty", [Certainty.NOT_SENT, Certainty.REJECTED])
def test_call_with_an_answered_first_round_is_never_not_executed(certainty) -> None:
    async def answer(request: Request) -> Json:
        if request.method == "server/discover":
            return MODERN
        if "inputResponses" in request.params:
            raise TransportError("refused", certainty)
        return {"resultType": "input_required", "inputRequests": {}}

    async def main() -> Certainty:
        session = Session("s", ScriptedLink(answer), RejectingCallbacks(), lambda *_: None)
        await session.open("auto", None)
        with pytest.raises(TransportError) as caught:
            await session.call(Call("s.t", "tools/call", {"name": "t"}))
        return caught.value.certainty

    assert run(main()) >= Certainty.UNKNOWN
