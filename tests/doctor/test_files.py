"""What is said about files as a whole, and what is not."""

import json

import pytest

from tests.doctor.doctor_lab import small
from toolway.doctor.file_checks import ReaderRules, check_file

CURSOR = ReaderRules("Cursor", ("mcpServers",), allows_comments=False, allows_bom=False, allows_top_level=False)
ZED = ReaderRules("Zed", ("context_servers",), allows_bom=False, allows_top_level=False)


def states(path, reader):
    return [check.state for check in check_file(path, reader).checks]


def test_valid_file_reports_its_servers(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": small(), "b": small()}}))
    file = check_file(path, CURSOR)
    assert [check.message for check in file.checks] == ["2 servers"]
    assert file.line_of("b") == 1
    assert file.root == ("mcpServers",)


def test_settings_that_look_like_servers_are_ignored(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"agent_servers": {"x": {"command": "x"}}, "lsp": {"y": {"command": "y"}}}))
    file = check_file(path, ZED)
    assert [check.state for check in file.checks] == ["ok"]
    assert file.entries == {}


@pytest.mark.parametrize("key", ["servers", "mcp_servers", "mcpServer", "McpServers", "context_servers"])
def test_servers_under_wrong_key_are_found_and_renamed(tmp_path, key):
    path = tmp_path / "mcp.json"
    text = json.dumps({"other": {key: 1}, key: {"a": small()}}, indent=2)
    path.write_text(text)
    [check] = check_file(path, CURSOR).checks
    assert check.state == "fail"
    assert check.auto_fix is not None
    check.auto_fix.apply()
    renamed = json.loads(text)
    renamed = {"mcpServers" if name == key else name: value for name, value in renamed.items()}
    assert json.loads(path.read_text()) == renamed
    assert states(path, CURSOR) == ["ok"]


def test_top_level_servers_are_accepted_only_in_own_file(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"a": small()}))
    assert states(path, ReaderRules()) == ["ok"]
    assert states(path, CURSOR) == ["fail"]


@pytest.mark.parametrize("data", [b"[]", b"5", b"null", b'"text"'])
def test_file_without_an_object_fails(tmp_path, data):
    path = tmp_path / "mcp.json"
    path.write_bytes(data)
    assert states(path, CURSOR) == ["fail"]


def test_unreadable_file_gives_the_reason(tmp_path):
    [check] = check_file(tmp_path / "gone.json", CURSOR).checks
    assert (check.state, check.detail) == ("fail", "No such file or directory")
    path = tmp_path / "latin.json"
    path.write_bytes('{"ä": 1}'.encode("latin-1"))
    [check] = check_file(path, CURSOR).checks
    assert "byte 2 is invalid" in check.message
