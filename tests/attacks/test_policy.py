"""Arguments and endpoints that try to pass a policy unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parts.policy.test_gateway import ruled
from toolway.catalog.catalog import Tool
from toolway.parts.policy.engine import PolicyEngine
from toolway.parts.policy.entities import Caller

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


def is_allowed(condition: str, schema: Json, arguments: Json, effect: str = "forbid") -> bool:
    """Return the decision about a call by one policy on its arguments, next to a permit if it is a forbid."""
    text = f'{effect} (principal, action == Action::"call", resource) when {{ {condition} }};'
    engine = PolicyEngine(f"permit (principal, action, resource); {text}" if effect == "forbid" else text)
    item = engine.reduce.item("Tool", Tool("bank", "transfer", {"name": "transfer", "inputSchema": schema}))
    return engine.decide(engine.subject_of(Caller("alice")), 12, item, arguments).allowed


@pytest.mark.attack("R4-1")
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"amount": {}}},
        {"properties": {"amount": True}},
        {"properties": {"amount": {"type": ["integer", "string"]}}},
        {"properties": {"amount": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}},
        {"properties": {"amount": {"allOf": [{"type": "integer"}]}}},
        {"properties": {"amount": {"enum": [5, 5000]}}},
        {"patternProperties": {"^am": {"type": "integer"}}},
        {"additionalProperties": {"type": "integer"}},
        {"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"amount": {"type": "integer"}}}}},
        {},
    ],
)
def test_untyped_argument_does_not_pass_a_forbid_policy(schema: Json) -> None:
    limit = "context.args has amount && context.args.amount > 1000"
    schema = {"type": "object", **schema}
    assert not is_allowed(limit, schema, {"amount": 5000})
    assert not is_allowed("context.args has amount", schema, {"amount": 5000})
    assert is_allowed(limit, schema, {}) and is_allowed(limit, schema, {"amount": None, "other": 1})
    typed = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    assert is_allowed(limit, typed, {"amount": 5}) and not is_allowed(limit, typed, {"amount": 5000})


@pytest.mark.attack("R4-1")
def test_undeclared_nested_argument_does_not_pass_a_policy() -> None:
    kind = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
    schema = {"type": "object", "properties": {"filter": kind}, "required": ["filter"]}
    deep = "context.args has filter && context.args.filter has amount && context.args.filter.amount > 1000"
    assert not is_allowed(deep, schema, {"filter": {"kind": "a", "amount": 5000}})
    assert is_allowed(deep, schema, {"filter": {"kind": "a", "other": 5000}}), "no policy reads it"
    same = 'context.args.filter == {"kind": "a"}'
    assert is_allowed(same, schema, {"filter": {"kind": "a"}}, "permit")
    assert not is_allowed(same, schema, {"filter": {"kind": "a", "all": True}}, "permit")


@pytest.mark.attack("R4-7")
async def test_endpoint_of_a_hidden_server_looks_unknown(tmp_path: Path) -> None:
    policy = 'permit (principal, action, resource in Server::"a");'
    async with ruled(tmp_path, policy) as (found, issuer, _):
        key = found.key()
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
        for token in (key, issuer.token()):
            asked = [await found.ask("POST", f"/mcp/server/{name}", hello, token=token) for name in ("b", "none")]
            assert [each.status for each in asked] == [404, 404] and asked[0].body == asked[1].body
            assert await found.tools(path="/mcp/server/a", token=token)
