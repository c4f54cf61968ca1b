"""Output schemas that are not objects: the official client of both eras lists and calls all tools at the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.edge_lab import TOKEN, edge
from toolway.doctor.lint import lint_tools
from toolway.gateway.legacy_schemas import adapt_definition, adapt_result, wrap_schema
from toolway.testing import FakeHttp
from toolway.types import Json

pytestmark = [pytest.mark.user_trial("7")]

TREE: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "anyOf": [{"type": "number"}, {"type": "array", "items": {"$ref": "#"}}, {"$ref": "#/$defs/leaf"}],
    "$defs": {"leaf": {"type": "object", "properties": {"of": {"$ref": "#/anyOf/1"}}, "required": ["of"]}},
}
VALUES: list[tuple[Json, Any, Any]] = [  # schema, a value that matches it, and one that does not
    ({"type": "array", "items": {"type": "string"}}, ["a"], [1]),
    ({"type": "number"}, 3.5, "x"),
    ({"type": "boolean"}, False, 1),
    ({"type": "null"}, None, 0),
    ({"type": ["object", "null"]}, {"a": 1}, 5),
    ({"anyOf": [{"type": "object"}, {"type": "string"}]}, {"a": 1}, 5),
    ({"enum": ["a", {"$ref": "#"}]}, {"$ref": "#"}, {"$ref": "#/properties/result"}),
    ({"type": "array", "prefixItems": [{"type": "string"}, {"$ref": "#/prefixItems/0"}]}, ["a", "b"], ["a", 1]),
    ({"$id": "https://x.example/s", "type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "null"}}},
     [None], [1]),
    ({"type": "array", "items": {"$ref": "#/definitions/n"}, "definitions": {"n": {"type": "null"}}}, [None], [1]),
    (TREE, [1, [2, {"of": [3]}]], [1, {"of": 2}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), VALUES)
def test_wrapped_schema_accepts_only_the_wrapped_value(schema: Json, good: Any, bad: Any) -> None:
    wrapped = wrap_schema(schema)
    check = jsonschema_rs.validator_for(wrapped)
    assert wrapped["type"] == "object"
    assert check.is_valid({"result": good})
    assert not check.is_valid({"result": bad}) and not check.is_valid(good)


@pytest.mark.parametrize("invalid", [True, [], "x", None, {"type": "objekt"}, {"type": "object", "properties": 5}])
def test_invalid_output_schema_is_removed(invalid: Any) -> None:
    definition = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": invalid}
    for era in ("legacy", "modern"):
        assert adapt_definition(definition, era) == {"name": "t", "inputSchema": {"type": "object"}}
    assert adapt_result({"structuredContent": [1]}, definition, "legacy") == {"structuredContent": {"result": [1]}}
    assert adapt_result({"structuredContent": {"a": 1}}, definition, "legacy") == {"structuredContent": {"a": 1}}
    assert [each.tool for each in lint_tools("s", [definition]).findings] == ["t"]


def test_other_definitions_and_results_are_unchanged() -> None:
    plain: Json = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}
    assert adapt_definition(plain, "legacy") is plain
    listed: Json = {**plain, "outputSchema": {"type": "array"}}
    assert adapt_definition(listed, "modern") is listed
    for result, era in (({"structuredContent": [1]}, "modern"), ({"structuredContent": {}}, "legacy"), ({}, "legacy")):
        assert adapt_result(result, plain, era) is result  # type: ignore[arg-type]
    assert lint_tools("s", [plain]).findings == ()


def test_linter_reports_a_non_object_output_schema() -> None:
    (found,) = lint_tools(
        "s", [{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}}]
    ).findings
    assert (found.severity, found.tool) == ("warning", "t") and "before 2026-07-28" in found.message


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_official_client_lists_and_calls_all_tools(
    mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolway.testing import tools

    def respond(server: Any, call: Any) -> Json:
        _, value, _ = VALUES[int(call.params["name"].removeprefix("value"))]
        return {"content": [], "structuredContent": value}

    given = {}
    for number, (schema, _, _) in enumerate(VALUES):
        given[f"value{number}"] = tool = tools.FakeTool(f"value{number}", respond, False, {})
        tool.definition["outputSchema"] = schema
    given["broken"] = tools.FakeTool("broken", lambda server, call: {"content": []}, False, {})
    given["broken"].definition["outputSchema"] = "no schema"
    monkeypatch.setattr(tools, "TOOLS", {**tools.TOOLS, **given})
    async with edge(tmp_path, servers={"a": FakeHttp(name="a")}) as lab:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(
                streamable_http_client(f"http://127.0.0.1:{lab.port}/mcp", http_client=http),
                mode=mode,
                raise_exceptions=True,
            ) as client,
        ):
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {f"a__{name}" for name in given} | {"a__echo"} <= names
            assert not (await client.call_tool("a__broken", {})).is_error
            for _ in range(2):  # the second call of a tool may take the shorter way
                for number, (_, value, _) in enumerate(VALUES):
                    result = await client.call_tool(f"a__value{number}", {})
                    assert result.structured_content == (value if mode != "legacy" else {"result": value})
