"""A client of the handshake era whose connection broke in mid-call gets the rest on another one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.bridge_lab import Json, Lab, Raw, events, full, until
from toolway.gateway.mcp import replay_buffer, responses

pytestmark = pytest.mark.anyio


async def break_off(raw: Raw, name: str, arguments: Json) -> tuple[str, Json]:
    """Call, and leave after the first event; its id and what it said."""
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": "mine"}}
    body = {"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": params}
    async with raw.http.stream("POST", raw.url, content=json.dumps(body), headers=raw.headers()) as response:
        async for id_, message in events(response):
            assert id_ is not None
            return id_, message
    raise AssertionError("nothing came")


async def resume(raw: Raw, last: str, on_message: Any = None) -> list[tuple[str | None, Json]]:
    fields = {**raw.headers(), "last-event-id": last}
    found = []
    async with asyncio.timeout(30), raw.http.stream("GET", raw.url, headers=fields) as response:
        assert response.status_code == 200
        async for id_, message in events(response):
            found.append((id_, message))
            if on_message is not None:
                await on_message(message)
    return found


def progress(found: list[tuple[str | None, Json]]) -> list[float]:
    return [message["params"]["progress"] for _, message in found if "method" in message]


async def over(lab: Lab) -> None:
    await until(lambda: not any(session.active_requests for session in lab.gateway.legacy_sessions._sessions.values()))


@pytest.mark.parametrize("when", ["while it runs", "after its end"])
async def test_resumed_stream_delivers_the_rest_once_in_order(when: str) -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        await raw.initialize()
        last, first = await break_off(raw, "progress", {"n": 4, "seconds": 0.2})
        assert first["params"]["progress"] == 1
        if when == "after its end":
            await over(lab)
        rest = await resume(raw, last)
        assert progress(rest) == [2, 3, 4]
        assert rest[-1][1]["id"] == "call" and rest[-1][1]["result"]["content"][0]["text"] == "4 steps"
        assert lab.fakes["full"].stats.calls["progress"] == 1
        if when == "after its end":
            second = rest[0][0]
            assert second is not None
            assert progress(await resume(raw, second)) == [3, 4]  # and once more, from another place


async def test_elicitation_waits_for_a_resumed_client() -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        await raw.initialize()
        last, asked = await break_off(raw, "elicit", {"rounds": 2})

        async def answer(message: Json) -> None:
            if message.get("method") == "elicitation/create":
                reply = {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    "result": {"action": "accept", "content": {"name": "A"}},
                }
                assert (await raw.post(reply, raw.headers())).status == 202

        await answer(asked)
        rest = await resume(raw, last, answer)
        assert [message.get("method") for _, message in rest] == ["elicitation/create", None]
        assert rest[-1][1]["result"]["content"][0]["text"].count('"A"') == 2


async def test_long_silence_sends_an_event_id_to_resume_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "KEEPALIVE_INTERVAL_S", 0.1)
    async with full("legacy", "http") as lab, lab.raw() as raw:
        await raw.initialize()
        params = {"name": "sleep", "arguments": {"seconds": 3.0}}
        body = {"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": params}
        async with raw.http.stream("POST", raw.url, content=json.dumps(body), headers=raw.headers()) as response:
            line = await anext(response.aiter_lines())
        assert line.startswith("id: ")
        rest = await resume(raw, line.removeprefix("id: "))
        assert rest[-1][1]["result"]["content"][0]["text"] == "slept 3.0 s"


async def test_stream_of_another_session_cannot_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw, lab.raw() as other:
        await raw.initialize()
        await other.initialize()
        last, _ = await break_off(raw, "progress", {"n": 2, "seconds": 0.1})
        await over(lab)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await resume(other, last)  # it is an ordinary stream, on which nothing is said


async def test_replay_buffers_are_bounded_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_buffer, "MAX_BUFFER_BYTES", 1000)
    monkeypatch.setattr(replay_buffer, "RETENTION_S", 0.1)
    monkeypatch.setattr(replay_buffer, "MAX_FINISHED_BUFFERS", 2)
    every = replay_buffer.ReplayBuffers()
    tape = every.create()
    for number in range(100):
        tape.append(b"x" * 100, last=number == 99)
    assert sum(len(data) for _, data in tape._events) <= 1000
    every.release(tape, delivered=False)
    for _ in range(5):
        another = every.create()
        another.append(b"x", last=True)
        every.release(another, delivered=False)
    assert every.find("1-1") is None and every.find("6-1") is not None and every.find("6-x") is None
    await until(lambda: every.find("6-1") is None)
    arrived = every.create()
    every.release(arrived, delivered=True)
    assert every.find(f"{arrived.name}-0") is None
