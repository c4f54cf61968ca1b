"""What a request carries in each era, and what an answer to the probe means."""

from __future__ import annotations

import json

import pytest

from toolway.protocol import versions
from toolway.types import Json

VERSION = "2026-07-28"


def test_modern_request_has_client_meta_and_keeps_own_meta() -> None:
    params = versions.add_protocol_meta(
        {"name": "x", "_meta": {"vendor/key": None}}, VERSION, {"name": "toolway"}, {"roots": {}}
    )
    assert params == {
        "name": "x",
        "_meta": {
            "vendor/key": None,
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "toolway"},
            "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
        },
    }


def test_only_a_shared_version_is_selected() -> None:
    assert versions.select_modern_version({"supportedVersions": [VERSION, "2099-01-01"]}) == VERSION
    assert versions.select_modern_version({"supportedVersions": ["2025-11-25"]}) is None
    assert versions.select_modern_version({"supportedVersions": "yes"}) is None
    assert versions.agreed_legacy_version({"protocolVersion": "2024-11-05"}) == "2024-11-05"
    assert versions.agreed_legacy_version({"protocolVersion": "1.0"}) is None


def test_version_rejection_names_the_one_to_use() -> None:
    assert versions.version_from_error(-32022, {"supported": [VERSION]}) == VERSION
    assert versions.version_from_error(-32022, {"supported": ["2099-01-01"]}) is None
    assert versions.version_from_error(-32601, {"supported": [VERSION]}) is None
    assert versions.accepts_legacy({"supported": ["2025-11-25"]})
    assert not versions.accepts_legacy(None)


def test_only_supported_notifications_are_requested() -> None:
    assert versions.listen_filter(
        {"tools": {"listChanged": True}, "prompts": {}, "resources": {"listChanged": False}}
    ) == {"toolsListChanged": True}


# -- results of tools --------------------------------------------------------------------------------------------------

RESULT = {"content": [{"type": "text", "text": "x"}]}


def wrapped(value: Json) -> Json:
    return {"content": [{"type": "text", "text": json.dumps(value, separators=(",", ":"))}], "structuredContent": value}


@pytest.mark.promise("A2")
@pytest.mark.parametrize("value", [{"url": "https://x", "number": 123}, {"contents": []}, {"a": None}, {"text": "é"}])
@pytest.mark.parametrize("bare", [True, False])
def test_plain_object_becomes_structured_content(value, bare) -> None:
    normalized = versions.normalize_tool_result(value, bare=bare)
    assert normalized["structuredContent"] == value
    assert [block["type"] for block in normalized["content"]] == ["text"]
    assert json.loads(normalized["content"][0]["text"]) == value


@pytest.mark.parametrize(
    "result",
    [
        {},
        RESULT,
        {"content": "text"},
        {"structuredContent": {"a": 1}},
        {"isError": True},
        {"resultType": "input_required", "inputRequests": {}},
        {"resultType": "complete", "a": 1},
        {"task": {"taskId": "t"}},
        {"toolResult": 7},
    ],
)
def test_result_with_mcp_fields_is_unchanged(result) -> None:
    assert versions.normalize_tool_result(result, bare=False) is result


def test_meta_stays_next_to_structured_content() -> None:
    normalized = versions.normalize_tool_result({"a": 1, "_meta": {"x": 2}}, bare=False)
    assert normalized == {**wrapped({"a": 1}), "_meta": {"x": 2}}


@pytest.mark.parametrize(
    "value", [{}, {"content": "text"}, {"content": [7]}, {"structuredContent": {}}, {"resultType": "input_required"}]
)
def test_bare_result_needs_content_blocks(value) -> None:
    assert versions.normalize_tool_result(value, bare=True) == wrapped(value)
    assert versions.normalize_tool_result({**RESULT, "resultType": "input_required"}, bare=True) == RESULT
    assert versions.normalize_tool_result({"isError": True}, bare=True) == {
        **wrapped({"isError": True}),
        "isError": True,
    }


@pytest.mark.parametrize("params", [{"name": "t"}, {"name": "t", "arguments": {"a": 1}}])
def test_bare_call_sends_tool_name_twice(params) -> None:
    assert versions.bare_call_params(params) == {"arguments": {}, **params, "tool": "t"}
