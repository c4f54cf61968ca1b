"""The order of the chain: whatever answers instead of a server comes after every gate."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from tests.middleware.chain_lab import a_call, a_reply
from toolway.hub.calls import HubCalls
from toolway.hub.core import HubCore
from toolway.middleware.chain import Answerers, Attempts, CallEntry, Chain, Gates, compose
from toolway.testing import FakeHttp
from toolway.types import Call, CallHandler, CallResult, Middleware

pytestmark = pytest.mark.anyio
KINDS: tuple[Any, ...] = (CallEntry, Gates, Answerers, Attempts)


class Refused(Exception):
    pass


class Stages:
    """A chain of stages that note when they are entered; one may answer, and one refuse."""

    def __init__(self, answers: str = "", refuses: str = "") -> None:
        self.entered: list[str] = []
        self._answers, self._refuses = answers, refuses
        kinds = (kind(*(self._stage(name) for name in kind._fields)) for kind in KINDS)
        entry, gates, answerers, attempts = kinds
        self.chain = Chain(entry._replace(user_middleware=(entry.user_middleware,)), gates, answerers, attempts)

    def _stage(self, name: str) -> Middleware:
        def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
            self.entered.append(name)
            if name == self._refuses:
                raise Refused(name)
            return _answer(call) if name == self._answers else next(call)

        return middleware


async def _answer(call: Call) -> CallResult:
    return a_reply()


@pytest.mark.attack("A2-F5")
@pytest.mark.parametrize("gate", Gates._fields)
@pytest.mark.parametrize("answerer", Answerers._fields)
async def test_no_answerer_runs_before_a_gate_rejects(gate: str, answerer: str) -> None:
    """For every stage that answers and every gate, also those that are added one day."""
    stages = Stages(answers=answerer, refuses=gate)
    with pytest.raises(Refused):
        await compose(stages.chain.stages, _answer)(a_call())
    assert answerer not in stages.entered


async def test_kinds_run_in_their_order() -> None:
    stages = Stages()
    await compose(stages.chain.stages, _answer)(a_call())
    assert stages.entered == [name for kind in KINDS for name in kind._fields]


@pytest.mark.attack("A2-F5")
async def test_only_answerers_answer_in_the_chain_of_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result leaves the real chain from a stage that is declared to answer, or from the server."""
    monkeypatch.setenv("TOOLWAY_PLANS", "off")
    ended: list[str] = []  # the innermost stage that a call reached
    build = HubCalls._build_middleware

    def build_noted(*arguments: Any) -> Chain:
        def noted(name: str, stage: Middleware) -> Middleware:
            def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
                ended[-1] = name
                return stage(call, next)

            return middleware

        def note(kind: Any) -> Any:
            plain = {name: each for name, each in kind._asdict().items() if callable(each)}
            return kind._replace(**{name: noted(name, each) for name, each in plain.items()})

        chain = build(*arguments)  # flights find the deadline and the attempts by their class
        entry = note(chain.entry)._replace(deadline=chain.entry.deadline)
        return Chain(entry, note(chain.gates), note(chain.answerers), chain.attempts)

    monkeypatch.setattr(HubCalls, "_build_middleware", build_noted)
    async with FakeHttp() as fake:
        tools = {"echo": {"effect": "read", "cache": 60}, "add": {"effect": "read"}}
        async with HubCore({"s": {"url": fake.url, "tools": tools}}) as hub:
            for name, key in (("add", "k"), ("add", "k"), ("echo", None), ("echo", None), ("echo", "k"), ("echo", "k")):
                ended.append("")
                arguments = {"text": "x"} if name == "echo" else {"a": 1, "b": 2}
                params = {"name": name, "arguments": arguments}
                call = Call(f"s.{name}", "tools/call", params, "s", name, idempotency_key=key, id=f"c{len(ended)}")
                await hub.calls.request(call)
    assert ended == ["single_flight", "replay", "single_flight", "cache", "single_flight", "replay"]
    assert set(ended) <= set(Answerers._fields)
