"""Arguments are checked against the tool's schema before anything is sent: library, over real servers."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit.log_reader import calls
from tests.audit.log_reader import records as audit_records
from toolway import ArgumentViolation, CallError, Hub, InvalidArguments, NotFound, Server, SyncHub
from toolway.events import CallFinished
from toolway.middleware import arguments as arguments_module
from toolway.protocol.json_schema import SchemaValidator
from toolway.testing import fake_server

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C13", "D10")]

both_eras = pytest.mark.parametrize("era", ["modern", "legacy"])

Json = dict[str, Any]
ISSUE: Json = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "state": {"enum": ["open", "closed"]},
        "when": {"type": "string"},
    },
    "required": ["title"],
    "additionalProperties": False,
}


class Files:
    """The tools that the server lists, and the calls that reached it."""

    def __init__(self, folder: Path) -> None:
        self.tools = folder / "tools.json"
        self.log = folder / "calls.log"
        self.write(create=ISSUE)

    def write(self, **schemas: Json) -> None:
        self.tools.write_text(json.dumps([{"name": name, "inputSchema": each} for name, each in schemas.items()]))

    def server(self, **more: Any) -> Server:
        program = str(Path(__file__).with_name("schema_server.py"))
        return Server(command=sys.executable, args=(program, str(self.tools), str(self.log)), era="legacy", **more)

    @property
    def received(self) -> list[Json]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def refused(hub: Hub, arguments: Json, tool: str = "s.create", **more: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        await hub.call_tool(tool, arguments, **more)
    return caught.value


async def test_every_violation_has_path_expectation_and_nearest_name(files: Files) -> None:
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        error = await refused(hub, {"titel": "secret-1", "count": "secret-2", "state": "opne"})
        assert (error.code, error.executed, error.attempts, error.omitted) == ("E-ARGUMENTS", "no", 0, 0)
        assert (error.server, error.tool, error.retryable) == ("s", "create", False)
        assert set(error.violations) == {
            ArgumentViolation("$.titel", "is unknown", "one of title, count, state, when", "title"),
            ArgumentViolation("$.title", "is missing", "a string", "titel"),
            ArgumentViolation("$.count", "is a string", "an integer or null"),
            ArgumentViolation("$.state", "is not an allowed value", 'one of "open", "closed"', "open"),
        }
        assert "$.titel is unknown" in str(error) and "did you mean 'title'?" in str(error)
        assert "secret" not in str(error)
        assert files.received == []
        assert (await hub.call_tool("s.create", {"title": "a"})).text == "done"
    assert files.received == [{"title": "a"}]


@both_eras
async def test_call_before_first_list_is_validated_after_it(era: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    server = {**fake_server(era=era, effects=str(effects)), "lazy": True}
    async with Hub({"s": server}, catalog_storage=None) as hub:
        error = await refused(hub, {"nonce": 5}, "s.counter")
        assert error.executed == "no"
        assert error.violations == (ArgumentViolation("$.nonce", "is an integer", "a string"),)
        assert not effects.exists()


async def test_cached_definition_rejects_nothing(files: Files, tmp_path: Path) -> None:
    stored = tmp_path / "catalog"
    files.write(create={"type": "object", "required": ["old"]})
    async with Hub({"s": files.server()}, catalog_storage=stored) as hub:
        await hub.wait_ready()
    files.write(create={"type": "object", "required": ["new"]})
    async with Hub({"s": files.server(lazy=True)}, catalog_storage=stored) as hub:
        assert [tool.stale for tool in hub.known_tools()] == [True]
        assert (await hub.call_tool("s.create", {"new": 1})).text == "done"
    async with Hub({"s": files.server(lazy=True)}, catalog_storage=stored) as hub:
        error = await refused(hub, {"old": 1})
        assert [each.path for each in error.violations] == ["$.new"]
    assert files.received == [{"new": 1}]


async def test_changed_definition_applies_after_its_list(files: Files) -> None:
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        await refused(hub, {"name": "x"})
        files.write(create={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
        hub.restart_server("s")
        await hub.list_tools(server="s")
        await _until_required(hub, "name")
        await hub.call_tool("s.create", {"name": "x"})
        await refused(hub, {"title": "x"})
    assert files.received == [{"name": "x"}]


async def _until_required(hub: Hub, name: str) -> None:
    async with asyncio.timeout(30):
        while hub.known_tools()[0].input_schema["required"] != [name]:
            await asyncio.sleep(0.02)


async def test_validation_can_be_turned_off_per_server(files: Files) -> None:
    entry = {"command": sys.executable, "args": list(files.server().args), "validateArguments": False}
    async with Hub({"s": entry}) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.create", {"nope": 1})
        assert hub.status()["s"].problems == ()
    assert files.received == [{"nope": 1}]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "$ref": "#/$defs/absent"},
        {"type": "object", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 3}}, "$ref": "#/$defs/a"},
    ],
    ids=["type", "reference", "recursion"],
)
async def test_invalid_schema_rejects_nothing_and_is_reported(files: Files, schema: Json) -> None:
    files.write(create=schema)
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        assert hub.status()["s"].problems == ()  # compiled at the first call, not when it is listed
        await hub.call_tool("s.create", {"a": 1})
        (problem,) = hub.status()["s"].problems
        assert problem.startswith("arguments of tool 'create' are not checked: ")
        hub_server = files.server(timeout=hub._core.servers.entries["s"].timeout, lazy=True)
        await hub.add_server("s", hub_server, replace=True)
        assert hub.status()["s"].problems == ()
    assert files.received == [{"a": 1}]


async def test_schemas_are_compiled_once_and_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Json] = []
    real = SchemaValidator

    def counted(schema: Json) -> Any:
        compiled.append(schema)
        return real(schema)

    monkeypatch.setattr(arguments_module, "SchemaValidator", counted)
    monkeypatch.setattr(arguments_module, "MAX_COMPILED", 3)
    files.write(**{f"t{number}": ISSUE for number in range(5)})
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        assert compiled == []
        for _ in range(4):
            await hub.call_tool("s.t0", {"title": "a"})
        assert len(compiled) == 1
        for number in range(5):
            await hub.call_tool(f"s.t{number}", {"title": "a"})
        assert len(compiled) == 5
        assert len(hub._core.calls.argument_validator._compiled) <= 3


async def test_values_are_validated_as_serialized(files: Files) -> None:
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.create", {"title": "a", "when": datetime.date(2026, 11, 16)})
        error = await refused(hub, {"title": datetime.date(2026, 11, 16), "count": datetime.date(2026, 11, 16)})
        assert [each.path for each in error.violations] == ["$.count"]
        with pytest.raises((CallError, TypeError)) as caught:
            await hub.call_tool("s.create", {"title": "a", "when": object()})
        assert not isinstance(caught.value, InvalidArguments)
    assert files.received == [{"title": "a", "when": "2026-11-16"}]


async def test_violations_are_capped_at_20_and_huge_value_summarized(files: Files) -> None:
    files.write(create={"type": "object", "properties": {"a": {"items": {"type": "integer"}}}})
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        error = await refused(hub, {"a": ["x"] * 50})
        assert (len(error.violations), error.omitted) == (20, 30)
        assert str(error.violations[3]) == "$.a[3] is a string, expected an integer"
        assert error.detail.endswith("and 30 more")
        error = await refused(hub, {"a": ["x"] * 50_000})
        assert [each.path for each in error.violations] == ["$"]
    assert files.received == []


async def test_rejected_calls_are_audited_and_open_no_breaker(files: Files, tmp_path: Path) -> None:
    log = tmp_path / "audit.sqlite"
    finished: list[CallFinished] = []
    async with Hub({"s": files.server()}, audit_log=log) as hub:
        await hub.wait_ready()
        watch = asyncio.create_task(_collect(hub, finished))
        await asyncio.sleep(0)
        for _ in range(20):
            await refused(hub, {})
        assert hub._core.servers.breaker_status() == {}
        await hub.call_tool("s.create", {"title": "a"})
        async with asyncio.timeout(10):
            while len(finished) < 21:
                await asyncio.sleep(0.01)
        watch.cancel()
    assert {(each.code, each.executed, each.attempts) for each in finished[:20]} == {("E-ARGUMENTS", "no", 0)}
    records = calls(log)
    rejected = [each for each in records if each.get("code") == "E-ARGUMENTS"]
    [rest] = audit_records(log, "call.rejected")  # the first ones are recorded one by one
    assert len(rejected) + rest["count"] == 20
    assert {(each["kind"], each["outcome"], each["certainty"]) for each in rejected} == {
        ("call.outcome", "rejected", "C0")
    }
    assert [each["kind"] for each in records if each not in rejected] == ["call.intent", "call.outcome"]


async def _collect(hub: Hub, found: list[CallFinished]) -> None:
    async for event in hub.events(CallFinished):
        assert isinstance(event, CallFinished)
        found.append(event)


async def test_rejected_call_does_not_use_idempotency_key(files: Files) -> None:
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        await refused(hub, {}, idempotency_key="k")
        await hub.call_tool("s.create", {"title": "a"}, idempotency_key="k")
        # The outcome of a key stays what it was, even if the definition has changed since.
        files.write(create={"type": "object", "required": ["other"]})
        hub.restart_server("s")
        await _until_required(hub, "other")
        again = await hub.call_tool("s.create", {"title": "a"}, idempotency_key="k")
        assert again.replayed
    assert files.received == [{"title": "a"}]


async def test_unknown_tool_is_still_not_found(files: Files) -> None:
    async with Hub({"s": files.server()}) as hub:
        await hub.wait_ready()
        with pytest.raises(NotFound):
            await hub.call_tool("s.creat", {"nope": 1})


def test_sync_hub_raises_invalid_arguments(files: Files) -> None:
    with SyncHub({"s": files.server()}) as hub, pytest.raises(InvalidArguments, match=r"\$\.title is missing"):
        hub.call_tool("s.create", {})
