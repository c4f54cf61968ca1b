"""HTTP headers of modern requests: the same decisions as the SDK's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound as sdk

from toolway.protocol import headers as ours
from toolway.protocol.constants import CLIENT_CAPABILITIES_META_KEY as CAPABILITIES
from toolway.protocol.constants import PROTOCOL_VERSION_META_KEY as VERSION

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " a", "a b", "=?base64?", "=?base64?=", "=?base64??=", "=?base64?w6Q=?=", "=?base64?w6R=?="]),
    st.text("=?base64Aw6", max_size=14),
)
VALUES = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.integers(), max_size=1))
NAMES = st.sampled_from(["a", "b", "X-A", "x-a", "bad name", "", "ü", 5, None])


@given(TEXTS)
def test_header_values_are_encoded_like_the_sdk(value: str) -> None:
    encoded = ours.encode_header_value(value)
    assert encoded == sdk.encode_header_value(value)
    assert ours.decode_header_value(encoded) == value


@given(st.none() | TEXTS.filter(lambda text: text.isascii() and "\n" not in text))
def test_header_values_are_decoded_like_the_sdk(value: str | None) -> None:
    assert ours.decode_header_value(value) == sdk.decode_header_value(value)


def test_non_ascii_base64_value_is_ignored() -> None:
    assert ours.decode_header_value("=?base64?ä?=") is None


METHODS = st.sampled_from(["tools/call", "prompts/get", "resources/read", "tools/list", "other"])
META: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries(
        {}, optional={VERSION: st.sampled_from(["2026-07-28", "2025-11-25", "x", 5, None]), CAPABILITIES: st.just({})}
    ),
    st.sampled_from([None, [], "x"]),
)
PARAMS = st.fixed_dictionaries({}, optional={"_meta": META, "name": VALUES, "uri": VALUES})
HEADERS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "mcp-protocol-version": st.sampled_from(["2026-07-28", "2025-11-25", "x"]),
        "mcp-method": METHODS,
        "mcp-name": TEXTS.filter(str.isascii),
    },
)


@given(METHODS, PARAMS, HEADERS, st.booleans())
def test_requests_are_checked_like_the_sdk(
    method: str, params: dict[str, Any], headers: dict[str, str] | None, agreeing: bool
) -> None:
    if agreeing:  # else hardly any request would pass
        params = {**params, "_meta": {VERSION: "2026-07-28", CAPABILITIES: {}}}
        name = next((params[key] for key in ("name", "uri") if isinstance(params.get(key), str)), "")
        headers = {
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": method,
            "mcp-name": sdk.encode_header_value(name),
            **({} if headers is None else {k: v for k, v in headers.items() if k == "mcp-name"}),
        }
    expected = sdk.classify_inbound_request({"method": method, "params": params}, headers=headers)
    found = ours.check_request(method, params, headers)
    if isinstance(expected, sdk.InboundLadderRejection):
        assert found is not None
        assert (found.code, found.data) == (expected.code, expected.data)
    else:
        assert found is None


PROPERTY = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "boolean", "number", ["string"], None])},
    optional={"x-mcp-header": NAMES},
)
SCHEMAS = st.recursive(
    PROPERTY,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "$defs": st.dictionaries(st.sampled_from("pq"), inner, max_size=1),
            "default": inner,
        },
    ),
    max_leaves=6,
)
ARGUMENTS = st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from("pqr"), inner, max_size=3), max_leaves=6)
PARAM_HEADERS = st.dictionaries(
    st.sampled_from(["Mcp-Param-a", "mcp-param-A", "Mcp-Param-b", "mcp-param-x-a"]),
    st.one_of(TEXTS.filter(str.isascii), st.sampled_from(["true", "1", "1.0", "1.5", "-0", "1e3"])),
    max_size=3,
)


@given(SCHEMAS)
def test_header_schemas_are_rejected_like_the_sdk(schema: Any) -> None:
    assert (ours.check_header_schema(schema) is None) == (sdk.find_invalid_x_mcp_header(schema) is None)


VALID = {
    "type": "object",
    "properties": {
        "p": {"type": "integer", "x-mcp-header": "a"},
        "q": {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "b"}}},
        "r": {"type": "boolean", "x-mcp-header": "X-A"},
    },
}


@given(st.just(VALID) | SCHEMAS, ARGUMENTS.filter(lambda value: isinstance(value, dict)), PARAM_HEADERS)
def test_argument_headers_are_sent_and_checked_like_the_sdk(
    schema: Any, arguments: Any, headers: dict[str, str]
) -> None:
    assert (ours.check_param_headers(schema, arguments, headers) is None) == (
        sdk.validate_mcp_param_headers(schema, arguments, headers) is None
    )
    if sdk.find_invalid_x_mcp_header(schema) is None:
        sent = sdk.mcp_param_headers(sdk.x_mcp_header_map(schema), arguments)
        made = ours.request_headers("2026-07-28", "tools/call", {"name": "t", "arguments": arguments}, schema)
        assert {name: value for name, value in made.items() if name.startswith("Mcp-Param-")} == sent
        assert ours.check_param_headers(schema, arguments, sent) is None


@pytest.mark.parametrize(("argument", "header", "agrees"), [(42, "42.0", True), (42, "42.5", False), (4.0, "4", True)])
def test_integers_are_compared_by_value(argument: float, header: str, agrees: bool) -> None:
    found = ours.check_param_headers(VALID, {"p": argument}, {"Mcp-Param-a": header})
    assert (found is None) == agrees
