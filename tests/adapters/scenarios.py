"""What every framework must do with tools of a hub, shown through its own agent loop.

A loop asks a `FakeLLM` through the real SDK, with the tools of a hub, until the model answers without a call. The
scenarios are the same for all: ok, error, denied, unknown, cancelled, parallel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolway import Hub
from toolway.adapters.toolset import CallToApprove
from toolway.testing import FakeLLM, ToolOutput, ToolUse, Turn, fake_server

#: (provider, hub, options of `tools`) → the final text of the model
Loop = Callable[[FakeLLM, Hub, dict[str, Any]], Awaitable[str]]
PROMPT = "Do it."
DONE = "All is done."


def make_hub(effects: Path) -> Hub:
    return Hub({"demo": fake_server(effects=str(effects))}, catalog_storage=None)


def effects_in(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


#: Turns that end a run, of loops in which a text is not enough.
FINAL_TURNS = {"smolagents_agent": Turn(calls=[ToolUse("final_answer", {"answer": DONE})])}


def results_of(llm: FakeLLM) -> list[ToolOutput]:
    """Return the results that the model got; those of smolagents are lines in a message of the user."""
    if llm.results:
        return llm.results
    parts = [part for message in llm.requests[-1].body["messages"] for part in message["content"] if "text" in part]
    shown = [part["text"] for part in parts if part["text"].startswith("Observation:")]
    return [ToolOutput("", line) for text in shown for line in text.splitlines()[1:]]


async def run_loop(loop: Loop, effects: Path, *calls: ToolUse, **options: Any) -> tuple[str, list[ToolOutput]]:
    """Run a loop in which the model makes these calls in one turn; return its final text and the results it got."""
    with FakeLLM([Turn(calls=calls), FINAL_TURNS.get(loop.__name__, DONE)]) as llm:
        async with make_hub(effects) as hub:
            said = await loop(llm, hub, options)
    assert len(llm.requests) == 2
    return said, results_of(llm)


async def check_ok(loop: Loop, effects: Path) -> None:
    said, results = await run_loop(loop, effects, ToolUse("demo__add", {"a": 1, "b": 2}))
    assert said == DONE
    assert [each.text for each in results] == ["3"]


async def check_error(loop: Loop, effects: Path) -> None:
    said, results = await run_loop(loop, effects, ToolUse("demo__fail", {"text": "the disk is full"}))
    assert said == DONE
    assert len(results) == 1
    assert "the disk is full" in results[0].text


async def check_denied(loop: Loop, effects: Path) -> None:
    asked: list[CallToApprove] = []

    def ask(call: CallToApprove) -> bool:
        asked.append(call)
        return False

    calls = ToolUse("demo__counter", {"call": "a"}), ToolUse("demo__add", {"a": 1, "b": 2})
    said, results = await run_loop(loop, effects, *calls, approve="unsafe", ask=ask)
    assert said == DONE
    assert [(each.tool, each.arguments) for each in asked] == [("demo.counter", {"call": "a"})]
    refused, added = sorted((each.text for each in results), key=len, reverse=True)
    assert "not approved. It did not run." in refused
    assert added == "3"
    assert effects_in(effects) == 0


async def check_unknown(loop: Loop, effects: Path) -> None:
    call = ToolUse("demo__bad", {"mode": "exit_mid_call", "effect": True})
    said, results = await run_loop(loop, effects, call)
    assert said == DONE
    assert "It may have run. Do not call it again until you have checked" in results[0].text
    assert "[E-STDIO-EXIT]" in results[0].text
    assert effects_in(effects) == 1


async def check_parallel(loop: Loop, effects: Path) -> None:
    calls = [ToolUse("demo__add", {"a": number, "b": 10}) for number in range(5)]
    said, results = await run_loop(loop, effects, *calls, ToolUse("demo__counter", {"call": "x"}))
    assert said == DONE
    assert sorted(each.text for each in results) == sorted(["10", "11", "12", "13", "14", "1"])
    ids = [each.call_id for each in results]
    if all(ids):
        assert len(set(ids)) == 6
    assert effects_in(effects) == 1


async def check_cancelled(loop: Loop, effects: Path) -> None:
    """A run that is cancelled in the middle of a call ends; the call is not repeated, and no answer is made up."""
    turn = Turn(calls=[ToolUse("demo__counter", {"call": "a", "seconds": 60})])
    with FakeLLM([turn, DONE]) as llm:
        async with make_hub(effects) as hub:
            run = asyncio.ensure_future(loop(llm, hub, {}))
            while effects_in(effects) == 0:
                await asyncio.sleep(0.02)
                assert not run.done(), run.exception()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert hub._core.servers.load("demo")[0] == 0  # the call has ended, and its slot is free
    assert len(llm.requests) == 1
    assert effects_in(effects) == 1


SCENARIOS = [check_ok, check_error, check_denied, check_unknown, check_parallel, check_cancelled]
