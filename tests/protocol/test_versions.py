"""What a request carries in each era, and what an answer to the probe means."""

from __future__ import annotations

from toolway.protocol import versions

VERSION = "2026-07-28"


def test_a_modern_request_says_who_asks_and_keeps_what_the_caller_put_there() -> None:
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


def test_only_a_version_we_share_is_spoken() -> None:
    assert versions.select_modern_version({"supportedVersions": [VERSION, "2099-01-01"]}) == VERSION
    assert versions.select_modern_version({"supportedVersions": ["2025-11-25"]}) is None
    assert versions.select_modern_version({"supportedVersions": "yes"}) is None
    assert versions.agreed_legacy_version({"protocolVersion": "2024-11-05"}) == "2024-11-05"
    assert versions.agreed_legacy_version({"protocolVersion": "1.0"}) is None


def test_a_refusal_of_our_version_names_the_one_to_use() -> None:
    assert versions.version_from_error(-32022, {"supported": [VERSION]}) == VERSION
    assert versions.version_from_error(-32022, {"supported": ["2099-01-01"]}) is None
    assert versions.version_from_error(-32601, {"supported": [VERSION]}) is None
    assert versions.accepts_legacy({"supported": ["2025-11-25"]})
    assert not versions.accepts_legacy(None)


def test_a_server_is_asked_only_for_changes_it_can_notice() -> None:
    assert versions.listen_filter(
        {"tools": {"listChanged": True}, "prompts": {}, "resources": {"listChanged": False}}
    ) == {"toolsListChanged": True}
