"""Middleware of the program: hooks before and after a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolway import (
    AccessDenied,
    Call,
    CallError,
    CallHandler,
    CallResult,
    CallTimeout,
    Hub,
    Middleware,
    NotFound,
    SyncHub,
    ToolResult,
)
from toolway.testing import fake_server

pytestmark = [pytest.mark.anyio, pytest.mark.promise("A23")]


async def pass_on(call: Call, next: CallHandler) -> CallResult:
    return await next(call)


async def test_hooks_run_around_a_call_the_first_outermost() -> None:
    seen: list[Any] = []

    def named(name: str) -> Middleware:
        async def hook(call: Call, next: CallHandler) -> CallResult:
            seen.append((name, call.server, call.tool, call.method, call.arguments))
            result = await next(call)
            seen.append((name, result.text))
            return result

        return hook

    async with Hub({"s": fake_server()}, middleware=[named("a"), named("b")]) as hub:
        result = await hub.call_tool("s.echo", {"text": "x"})
    about = ("s", "echo", "tools/call", {"text": "x"})
    assert seen == [("a", *about), ("b", *about), ("b", result.text), ("a", result.text)]


async def test_hook_changes_arguments() -> None:
    async def shout(call: Call, next: CallHandler) -> CallResult:
        return await next(call.with_arguments({"text": call.arguments["text"].upper()}))

    async with Hub({"s": fake_server()}, middleware=[shout]) as hub:
        assert "HELLO" in (await hub.call_tool("s.echo", {"text": "hello"})).text


async def test_answering_hook_prevents_sending(tmp_path: Path) -> None:
    async def answer(call: Call, next: CallHandler) -> CallResult:
        return ToolResult(call.server, call.tool, {"content": [{"type": "text", "text": "mine"}]})

    effects = tmp_path / "effects"
    async with Hub({"s": fake_server(effects=str(effects))}, middleware=[answer]) as hub:
        assert (await hub.call_tool("s.effect", {"call": "1"})).text == "mine"
    assert not effects.exists() or not effects.read_text()


async def test_hook_rejects_with_its_own_error() -> None:
    async def refuse(call: Call, next: CallHandler) -> CallResult:
        raise AccessDenied("not on Sundays", server=call.server, tool=call.tool)

    async with Hub({"s": fake_server()}, middleware=[refuse]) as hub:
        with pytest.raises(AccessDenied, match="not on Sundays"):
            await hub.call_tool("s.echo", {"text": "x"})


async def fail_before(call: Call, next: CallHandler) -> CallResult:
    raise ValueError("broken before")


async def fail_after(call: Call, next: CallHandler) -> CallResult:
    await next(call)
    raise ValueError("broken after")


async def return_nothing(call: Call, next: CallHandler) -> CallResult:
    await next(call)
    return None  # type: ignore[return-value]


async def call_another(call: Call, next: CallHandler) -> CallResult:
    return await next(msgspec.structs.replace(call, name="add", params={**call.params, "name": "add"}))


async def abandon(call: Call, next: CallHandler) -> CallResult:
    sent = asyncio.ensure_future(next(call))
    while call.state.certainty.executed == "no":
        await asyncio.sleep(0.01)
    sent.cancel()
    raise ValueError("broken during")


@pytest.mark.parametrize(
    ("hook", "executed", "detail"),
    [
        (fail_before, "no", "ValueError: broken before"),
        (fail_after, "yes", "ValueError: broken after"),
        (return_nothing, "yes", "it returned NoneType instead of a result"),
        (call_another, "no", "it passed on another tool than the one called"),
        (abandon, "unknown", "ValueError: broken during"),
    ],
)
async def test_failed_hook_is_named_with_whether_the_call_ran(hook: Middleware, executed: str, detail: str) -> None:
    async with Hub({"s": fake_server()}, middleware=[pass_on, hook]) as hub:
        with pytest.raises(CallError) as caught:
            await hub.call_tool("s.sleep" if hook is abandon else "s.echo", {"seconds": 5, "text": "x"})
    error = caught.value
    assert (error.code, error.executed, error.detail) == ("E-MIDDLEWARE", executed, detail)
    assert getattr(hook, "__name__", "?") in error.message


async def test_hanging_hook_ends_at_the_deadline() -> None:
    ended: list[str] = []

    async def hang(call: Call, next: CallHandler) -> CallResult:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call.tool)
        return await next(call)

    async with Hub({"s": fake_server()}, middleware=[hang]) as hub:
        with pytest.raises(CallTimeout) as caught:
            await hub.call_tool("s.echo", {"text": "x"}, timeout=0.2)
    assert (caught.value.executed, ended) == ("no", ["echo"])


async def test_unknown_tool_skips_hooks_and_server_errors_reach_them() -> None:
    seen: list[str] = []

    async def record(call: Call, next: CallHandler) -> CallResult:
        try:
            return await next(call)
        except CallError as error:
            seen.append(error.code)
            raise

    async with Hub({"s": fake_server("exit_mid_call")}, middleware=[record]) as hub:
        await hub.list_tools(server="s")
        with pytest.raises(NotFound):
            await hub.call_tool("s.nothing")
        with pytest.raises(CallError):
            await hub.call_tool("s.bad")
    assert len(seen) == 1 and seen[0] != "E-NOT-FOUND"


def test_callable_object_is_a_hook_in_a_sync_hub() -> None:
    class Counter:
        calls = 0

        def __call__(self, call: Call, next: CallHandler, /) -> Awaitable[CallResult]:
            self.calls += 1
            return next(call)

    counter = Counter()
    with SyncHub({"s": fake_server()}, middleware=[counter]) as hub:
        hub.call_tool("s.echo", {"text": "x"})
    assert counter.calls == 1
    with pytest.raises(TypeError, match="function of"):
        Hub({}, middleware=["no function"])  # type: ignore[list-item]
