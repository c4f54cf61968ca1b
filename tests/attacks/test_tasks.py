"""Attacks on the tasks of another client, and by a server with invalid tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import full, lab, made
from tests.gateway.full_server import TASKS_KEY, FullHttp, FullServer
from tests.gateway.test_bridge_changes import listening
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.testing.faults import ActiveFaults
from toolway.testing.http_faults import HTTP_FAULTS
from toolway.testing.http_server import ENDPOINT_BY_TRANSPORT
from toolway.testing.server import FakeCall

pytestmark = pytest.mark.anyio
WITH_TASKS: dict[str, Any] = {"extensions": {TASKS_KEY: {}}}
METHODS = ("tasks/get", "tasks/update", "tasks/cancel")


@pytest.mark.attack("R3-B-1")
async def test_task_of_a_server_removed_from_the_toolset_is_unknown() -> None:
    """The id of a task is sealed for 30 days. What the toolset includes may change before."""
    toolsets = {"team": ToolFilter(("full.*",))}
    fake = FullHttp("modern")
    async with fake, lab({"full": {"url": fake.url}}, toolsets=toolsets) as found, found.raw("team") as raw:
        task = (await raw.call("full__start_task", capabilities=WITH_TASKS)).result["taskId"]
        assert (await raw.ask("tasks/get", {"taskId": task}, capabilities=WITH_TASKS)).result["status"] == "working"
        toolsets["team"] = ToolFilter(("other.*",))
        found.gateway.router.refresh_views()
        asked = dict(fake.stats.requests)
        for method in METHODS:
            refused = await raw.ask(method, {"taskId": task}, capabilities=WITH_TASKS)
            assert refused.error["code"] == -32602 and "Unknown task" in refused.error["message"], method
        async with listening(raw, {"taskIds": [task]}, WITH_TASKS) as heard:
            assert not heard.messages[0]["params"]["notifications"].get("taskIds")
        assert fake.stats.requests == asked
        toolsets["team"] = ToolFilter(("full.*",))
        found.gateway.router.refresh_views()
        assert (await raw.ask("tasks/get", {"taskId": task}, capabilities=WITH_TASKS)).result["status"] == "working"


@pytest.mark.attack("R3-held-1")
async def test_task_of_another_key_is_unknown(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_local")
    async with full("modern", "http", keyring=keyring) as found:
        owner, other = made(keyring, "owner"), made(keyring, "other")
        async with found.raw(token=owner) as raw:
            task = (await raw.call("start_task", capabilities=WITH_TASKS)).result["taskId"]
            await raw.initialize()
            session = raw.session
            for method in METHODS:  # a legacy session has no tasks
                assert (await raw.request(method, {"taskId": task})).error["code"] == -32601
        async with found.raw(token=other) as raw:
            for guess in (task, task[:-1], task + "A", "task-1", "", session, "A" * 6_000):
                for method in METHODS:
                    refused = await raw.ask(method, {"taskId": guess}, capabilities=WITH_TASKS)
                    assert "error" in refused.last, (method, guess)
            async with listening(raw, {"taskIds": [task, "task-1"]}, WITH_TASKS) as heard:
                assert not heard.messages[0]["params"]["notifications"].get("taskIds")
        assert not [method for method in METHODS if found.fakes["full"].stats.requests.get(method)]


class StrangeTasks(FullServer):
    """Server that answers each call with a task whose id is the next of these."""

    ids: list[Any] = [None, 5, {"a": 1}, [], True, "", "x" * 200_000, "é\n\x00", "task-1"]  # noqa: RUF012

    def _dispatch(self, call: FakeCall) -> Any:
        if call.method == "tools/call":
            return {"resultType": "task", "taskId": self.ids[call.params["arguments"]["n"]], "status": "working"}
        if call.method == "tasks/get":
            return {"taskId": "another", "status": "working", "resultType": "complete"}
        return super()._dispatch(call)


@pytest.mark.attack("R3-B-2")
async def test_strange_task_ids_are_rejected_or_mapped() -> None:
    fake = FullHttp("modern")
    fake.server = StrangeTasks("modern")
    fake.endpoint = ENDPOINT_BY_TRANSPORT["http"](fake.server, ActiveFaults(HTTP_FAULTS, ()), "json")
    async with fake, lab({"full": {"url": fake.url}}) as found, found.raw("") as raw:
        for number, id_ in enumerate(StrangeTasks.ids):
            begun = await raw.call("full__start_task", {"n": number}, capabilities=WITH_TASKS)
            if number < 7:
                assert begun.error["data"]["code"] == "E-ANSWER" and begun.error["data"]["executed"] == "yes", id_
                assert "task" in begun.error["message"]
                continue
            task = begun.result["taskId"]
            got = await raw.ask("tasks/get", {"taskId": task}, capabilities=WITH_TASKS)
            assert got.result["taskId"] == task, id_
