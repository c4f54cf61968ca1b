"""The bench notices what it is there to notice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from tests.faults import fault_lab as bench_module
from tests.faults import neighbour as neighbour_module
from tests.faults.effects_log import GRACE, Outcome, misdelivered, out_of_time, wrong_effects
from tests.faults.fault_lab import lab
from toolway import Hub, OutcomeUnknown, ServerUnavailable
from toolway.errors import Certainty
from toolway.testing import fake_server
from toolway.types import ToolResult

pytestmark = pytest.mark.anyio


def call(**facts: Any) -> Outcome:
    made = Outcome("bad.counter", "n", unsafe=True, has_effect=True, limit=1)
    made.ended = True
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def reply(nonce: str) -> ToolResult:
    return ToolResult("bad", "counter", {"structuredContent": {"nonce": nonce}})


def test_missing_or_late_outcome_is_noticed():
    assert list(out_of_time([call(seconds=0.9 + GRACE)])) == []
    assert len(list(out_of_time([call(seconds=1.1 + GRACE), call(ended=False)]))) == 2


def test_answer_of_another_call_is_noticed():
    assert list(misdelivered([call(reply=reply("n"))])) == []
    assert len(list(misdelivered([call(reply=reply("m"))]))) == 1


@pytest.mark.parametrize(
    ("ended", "count", "fits"),
    [
        (call(reply=reply("n")), 1, True),
        (call(reply=reply("n")), 0, False),
        (call(reply=reply("n")), 2, False),
        (call(error=OutcomeUnknown("lost", certainty=Certainty.UNKNOWN)), 0, True),
        (call(error=OutcomeUnknown("lost", certainty=Certainty.UNKNOWN)), 1, True),
        (call(error=OutcomeUnknown("lost", certainty=Certainty.UNKNOWN)), 2, False),
        (call(error=ServerUnavailable("away", certainty=Certainty.NOT_SENT)), 0, True),
        (call(error=ServerUnavailable("away", certainty=Certainty.NOT_SENT)), 1, False),
        (call(unsafe=False, reply=reply("n")), 2, True),
    ],
)
def test_effect_not_matching_its_outcome_is_noticed(ended: Outcome, count: int, fits: bool):
    assert (list(wrong_effects([ended], Counter({"n": count}))) == []) is fits


def test_effect_without_a_call_is_noticed():
    assert len(list(wrong_effects([], Counter({"n": 1})))) == 1


async def test_stalled_event_loop_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_module, "ALLOWED", 0.05)
    monkeypatch.setattr(neighbour_module, "ALLOWED", 0.05)
    with pytest.raises(AssertionError, match=r"I5: the neighbour's p99"):
        async with lab({}):
            time.sleep(2.0)  # noqa: ASYNC251  the fault: longer than a pause of a busy machine
    async with lab({}, calm=False):
        time.sleep(0.3)  # noqa: ASYNC251


async def test_failing_neighbor_is_noticed():
    with pytest.raises(AssertionError, match="I5: the neighbour failed"):
        async with lab({}) as bench:
            await bench.hub.remove_server("neighbour")


async def test_leftover_task_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_module, "LEAVE", 0.1)
    with pytest.raises(AssertionError, match=r"I6: left after .* tasks"):
        async with lab({}):
            left = asyncio.create_task(asyncio.sleep(5))
    left.cancel()


async def test_growing_memory_is_noticed():
    with pytest.raises(AssertionError, match="I7"):
        async with lab({}, memory=8):
            heap = b"x" * (16 * 2**20)
            await asyncio.sleep(0.2)
    assert heap


class Hung:
    """A hub whose calls never end."""

    def __init__(self, hub: Hub) -> None:
        self._core = hub._core
        self.known_tools = hub.known_tools

    async def call_tool(self, *_: Any, **__: Any) -> ToolResult:
        await asyncio.sleep(60)
        raise AssertionError("unreachable")


async def test_hanging_call_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_module, "GRACE", 1.0)
    with pytest.raises(AssertionError, match=r"I1: bad\.echo has no outcome"):
        async with lab({"bad": fake_server()}) as bench:
            bench.hub = Hung(bench.hub)  # type: ignore[assignment]
            await bench.call("bad.echo", timeout=0.2)
