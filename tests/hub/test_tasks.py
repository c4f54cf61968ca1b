"""Tool calls that a server answers with a task: the hub waits until the task ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.gateway.bridge_lab import full, pipe_entry, until
from tests.gateway.full_server import TASKS_KEY, FullHttp
from toolway import Hub
from toolway.errors import CallError, CallTimeout, OutcomeUnknown, ProtocolError, ToolError
from toolway.types import Certainty, ToolResult
from toolway.upstream import tasks
from toolway.upstream.transport import TransportError

pytestmark = [pytest.mark.anyio, pytest.mark.user_trial("34")]

Json = dict[str, Any]
DONE: Json = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"n": 2**70}}


class TaskLab:
    """A hub, and a server whose tasks the test drives."""

    def __init__(self, hub: Hub, fake: FullHttp) -> None:
        self.hub = hub
        self.server = fake.server
        self.progress: list[tuple[float, float | None, str | None]] = []

    def start(self, **options: Any) -> asyncio.Task[ToolResult]:
        return asyncio.create_task(self.hub.call_tool("full.start_task", **options))

    def asked(self, method: str) -> int:
        return self.server.stats.requests.get(method, 0)

    async def begun(self) -> Json:
        """The task at the server, after it was asked for."""
        asked = self.asked("tasks/get")
        await until(lambda: self.server.tasks and self.asked("tasks/get") > asked)
        task: Json = next(reversed(self.server.tasks.values()))
        return task


@asynccontextmanager
async def lab(era: str = "modern", **options: Any) -> AsyncIterator[TaskLab]:
    fake = FullHttp(era)
    async with fake, Hub({"full": {"url": fake.url}}, catalog_storage=None, **options) as hub:
        await hub.wait_ready("full", timeout=60)
        yield TaskLab(hub, fake)


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_INTERVAL_S", 0.02)
    monkeypatch.setattr(tasks, "MAX_INTERVAL_S", 0.02)


@pytest.mark.parametrize("by_flight", [True, False])
async def test_call_waits_for_its_task_and_shows_progress(by_flight: bool) -> None:
    async with lab() as found:
        options: Json = {}
        if not by_flight:
            options["progress_callback"] = lambda *said: found.progress.append(said)
        for _ in range(3):  # the later ones could be flights
            call = found.start(**options)
            task = await found.begun()
            for text in ("one", "two"):
                task["statusMessage"] = text
                asked = found.asked("tasks/get")
                await until(lambda: found.asked("tasks/get") > asked + 1)  # noqa: B023
            task |= {"status": "completed", "result": DONE}
            result = await call
            assert (result.text, result.structured_content, result.is_error) == ("done", {"n": 2**70}, False)
        if not by_flight:
            assert found.progress == [(1, None, "one"), (2, None, "two")] * 3


async def test_tasks_are_declared_only_to_servers_that_have_them() -> None:
    async with lab() as found:
        declared = (await found.hub.call_tool("full.declared")).data["capabilities"]
        assert declared == {"extensions": {TASKS_KEY: {}}}
    async with lab("legacy") as found:
        assert "extensions" not in (await found.hub.call_tool("full.declared")).data["capabilities"]
        assert (await found.hub.call_tool("full.start_task")).text == "at once"


async def test_task_of_stdio_server_is_followed() -> None:
    async with Hub({"full": pipe_entry("modern")}, catalog_storage=None) as hub:
        await hub.wait_ready("full", timeout=60)
        call = asyncio.create_task(hub.call_tool("full.start_task"))
        async with asyncio.timeout(60):
            while not call.done():
                with suppress(CallError):  # it has not begun yet
                    await hub.call_tool("full.finish_task", {"task": "task-1"})
                await asyncio.sleep(0.05)
        assert (await call).raw == {"content": [], "big": 2**70}


async def test_cancelled_call_cancels_its_task() -> None:
    async with lab() as found:
        call = found.start()
        task = await found.begun()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: task["status"] == "cancelled")


async def test_deadline_cancels_task_and_is_unknown_outcome() -> None:
    async with lab() as found:
        call = found.start(timeout=1.0)
        task = await found.begun()
        with pytest.raises(CallTimeout) as caught:
            await call
        assert caught.value.executed == "unknown"
        await until(lambda: task["status"] == "cancelled")


async def test_failed_task_is_an_error_that_ran() -> None:
    async with lab() as found:
        call = found.start(idempotent=True)
        task = await found.begun()
        task |= {"status": "failed", "error": {"code": -32602, "message": "too late", "data": {"a": 1}}}
        with pytest.raises(ProtocolError) as caught:
            await call
        error = caught.value
        assert (error.rpc_code, error.executed, error.detail, error.data) == (-32602, "yes", "too late", {"a": 1})
        assert len(found.server.tasks) == 1, "it is not repeated"


async def test_task_with_error_result_is_a_tool_error() -> None:
    async with lab() as found:
        call = found.start()
        (await found.begun()).update(status="completed", result={**DONE, "isError": True})
        with pytest.raises(ToolError, match="done"):
            await call


@pytest.mark.parametrize("how", ["cancelled", "unknown", "odd"])
async def test_task_without_result_has_unknown_outcome(how: str) -> None:
    async with lab() as found:
        call = found.start()
        task = await found.begun()
        if how == "unknown":
            found.server.tasks.clear()
        else:
            task["status"] = how
        with pytest.raises(CallError) as caught:
            await call
        assert caught.value.executed == "unknown"
        assert (caught.value.code, isinstance(caught.value, OutcomeUnknown)) == (
            ("E-ANSWER", False) if how == "odd" else ("E-TASK", True)
        )


async def test_lost_task_status_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lab() as found:
        call = found.start()
        task = await found.begun()
        session = found.hub._core._upstreams.require_upstream("full")._supervisor.session
        assert session is not None
        request = session.transport.request
        lost: list[Any] = []

        async def lose_some(sent: Any) -> Json:
            if sent.method == "tasks/get" and len(lost) < 3:
                lost.append(sent)
                raise TransportError("cut", Certainty.UNKNOWN)
            return await request(sent)

        monkeypatch.setattr(session.transport, "request", lose_some)
        await until(lambda: len(lost) == 3)
        task |= {"status": "completed", "result": DONE}
        assert (await call).text == "done"


async def test_task_input_is_answered_once() -> None:
    asked: list[str] = []

    def answer(server: str, params: Json) -> Json:
        asked.append(params["message"])
        return {"action": "accept", "content": {"name": "Bo"}}

    question = {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": {}}}
    async with lab(elicitation_callback=answer) as found:
        call = found.start()
        task = await found.begun()
        task |= {"status": "input_required", "inputRequests": {"name": question}}
        await until(lambda: "answers" in task)
        before = found.asked("tasks/get")
        await until(lambda: found.asked("tasks/get") > before + 2)  # the server still shows it
        assert (asked, task["answers"]) == (["Your name?"], {"name": {"action": "accept", "content": {"name": "Bo"}}})
        task |= {"status": "completed", "result": DONE}
        assert (await call).text == "done"


async def test_task_input_without_callback_ends_the_call() -> None:
    question = {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": {}}}
    async with lab() as found:
        call = found.start()
        (await found.begun()).update(status="input_required", inputRequests={"name": question})
        with pytest.raises(CallError) as caught:
            await call
        assert (caught.value.code, caught.value.executed) == ("E-NO-ANSWER", "unknown")


@pytest.mark.parametrize(
    ("named", "seconds"), [(None, 5.0), (500, 0.5), (1, 0.1), (1e9, 60.0), (0, 5.0), (True, 5.0), ("1", 5.0)]
)
def test_poll_interval_from_server_is_bounded(named: object, seconds: float) -> None:
    assert tasks._named_interval({"pollIntervalMs": named}, 5.0) == seconds


@pytest.mark.parametrize("endpoint", ["", "server/full"])
async def test_task_behind_a_gateway_reaches_the_library(endpoint: str) -> None:
    async with full("modern", "http") as behind:
        server = behind.fakes["full"].server
        entry = {"url": behind.url(endpoint)}
        async with Hub({"gateway": entry}, catalog_storage=None) as hub:
            await hub.wait_ready("gateway", timeout=60)
            name = "gateway.start_task" if endpoint else "gateway.full__start_task"
            call = asyncio.create_task(hub.call_tool(name))
            await until(lambda: server.tasks)
            server.tasks["task-1"] |= {"status": "completed", "result": DONE}
            result = await call
            assert (result.text, result.structured_content) == ("done", {"n": 2**70})
            call = asyncio.create_task(hub.call_tool(name))
            await until(lambda: server.stats.requests.get("tasks/get", 0) > 1 and "task-2" in server.tasks)
            call.cancel()
            await until(lambda: server.tasks["task-2"]["status"] == "cancelled")
