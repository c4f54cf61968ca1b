import json

import pytest

from toolway.config.loader import load_file, parse_config
from toolway.config.schema import Server
from toolway.errors import ConfigError

GOOD = {"command": "x"}


def loaded(value, **variables):
    return parse_config(json.dumps(value), "mcp.json", variables)


@pytest.mark.parametrize("root", ["mcpServers", "servers", "mcp_servers"])
def test_servers_are_found_under_every_root_key(root):
    assert loaded({root: {"a": GOOD}, "inputs": []}).servers == {"a": Server(command="x")}


def test_bare_map_of_entries_is_accepted():
    found = loaded({"$schema": "https://x", "a": GOOD, "b": {"url": "https://b"}, "c": 5})
    assert list(found.servers) == ["a", "b"]
    assert [p.server for p in found.issues] == ["c"]


def test_empty_object_has_no_servers():
    assert loaded({}).servers == {}
    assert loaded({"mcpServers": {}}).servers == {}


@pytest.mark.parametrize("value", [[], "x", {"mcpServers": []}, {"mcpServers": None}, {"theme": "dark", "a": {"b": 1}}])
def test_file_without_servers_is_an_error_with_hint(value):
    with pytest.raises(ConfigError) as caught:
        loaded(value)
    assert caught.value.code == "E-CONFIG-SHAPE"
    assert caught.value.file == "mcp.json"
    assert "mcpServers" in caught.value.hint


def test_invalid_entry_does_not_hide_others():
    found = parse_config(
        '{"mcpServers": {\n"a": {"command": 12},\n"b": {"command": "x"},\n"c": {"type": "ws", "url": "u"}}}', "f"
    )
    assert list(found.servers) == ["b"]
    assert [(p.server, p.line, p.code, p.severity) for p in found.issues] == [
        ("a", 2, "E-CONFIG-KEY", "error"),
        ("c", 4, "E-CONFIG-URL", "error"),
    ]
    assert str(found.issues[0]) == "f:2: command must be text: found a number [E-CONFIG-KEY]"


def test_invalid_name_is_normalized_with_a_note():
    found = loaded({"mcpServers": {"My Server_2!": GOOD}})
    assert list(found.servers) == ["my-server-2"]
    assert [(p.server, p.severity, p.code) for p in found.issues] == [("My Server_2!", "note", "E-CONFIG-NAME")]
    assert "'my-server-2'" in found.issues[0].message


def test_correctly_spelled_name_wins_over_duplicate():
    found = loaded(
        {"mcpServers": {"GitHub": {"command": "loses"}, "github": GOOD, "a b": GOOD, "A-B": {"command": "y"}}}
    )
    assert {name: server.command for name, server in found.servers.items()} == {"github": "x", "a-b": "x"}
    assert [(p.server, p.severity) for p in found.issues] == [("GitHub", "error"), ("a b", "note"), ("A-B", "error")]


@pytest.mark.attack("held-62")
def test_entry_with_duplicate_key_is_left_out():
    found = parse_config('{"mcpServers": {\n"a": {"command": "x",\n"command": "y"},\n"b": {"command": "z"}}}')
    assert list(found.servers) == ["b"]
    assert found.issues[0].code == "E-CONFIG-TWICE"
    assert found.issues[0].detail == "lines 2 and 3"


@pytest.mark.attack("held-62")
def test_duplicate_server_is_left_out():
    found = parse_config('{"mcpServers": {\n"a": {"command": "x"},\n"a": {"command": "y"},\n"b": {"command": "z"}}}')
    assert list(found.servers) == ["b"]
    assert "duplicate key 'a'" in found.issues[0].message


def test_comments_and_trailing_commas_are_accepted():
    found = parse_config('{"servers": { // VS Code\n"a": {"type": "stdio", "command": "x",}, /* b */ }}')
    assert found.servers == {"a": Server(command="x")}


def test_default_timeout_applies_to_servers_without_one():
    found = loaded({"mcpServers": {"a": GOOD, "b": {"command": "x", "timeout": "5s"}}, "toolway": {"timeout": "20s"}})
    assert {name: server.timeout.total for name, server in found.servers.items()} == {"a": 20.0, "b": 5.0}
    assert found.issues == ()


def test_unknown_toolway_key_is_a_warning():
    found = loaded({"mcpServers": {"a": GOOD}, "toolway": {"//": "a comment", "color": 1}})
    assert [(each.message, each.severity) for each in found.issues] == [("unknown key toolway.color", "warning")]
    assert "approve" in found.issues[0].hint


@pytest.mark.parametrize(("key", "meant"), [("acess", "access"), ("approvals", "approve"), ("escalations", "alerts")])
def test_misspelled_or_old_toolway_key_is_an_error(key: str, meant: str):
    with pytest.raises(ConfigError) as caught:
        loaded({"mcpServers": {"a": GOOD}, "toolway": {key: {}}})
    assert meant in caught.value.hint


def test_invalid_toolway_value_is_an_issue_of_the_file():
    found = loaded({"mcpServers": {"a": GOOD}, "toolway": {"timeout": "soon"}})
    assert list(found.servers) == ["a"]
    assert [(p.server, p.line, p.code) for p in found.issues] == [("", 1, "E-CONFIG-KEY")]


def test_unset_variable_is_reported_with_line():
    found = parse_config('{"mcpServers": {\n\n"a": {"command": "x", "env": {"T": "${NOPE}"}}}}', "f", {})
    assert [(p.server, p.line, p.severity) for p in found.issues] == [("a", 3, "warning")]


def test_entry_may_be_a_string():
    found = loaded({"mcpServers": {"a": "npx -y pkg", "b": "https://b/mcp"}})
    assert (found.servers["a"].command, found.servers["a"].args) == ("npx", ("-y", "pkg"))
    assert found.servers["b"] == Server(url="https://b/mcp")


def test_every_issue_has_the_file_name(tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text('\ufeff{"mcpServers": {"a": {}}}', encoding="utf-8")
    found = load_file(file)
    assert found.file == found.issues[0].file == str(file)


def test_unreadable_file_is_an_error_with_its_name(tmp_path):
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"a": "\xe9"}')
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (4 * 1024 * 1024 + 1))
    for file in (tmp_path / "absent.json", tmp_path, latin, large):
        with pytest.raises(ConfigError) as caught:
            load_file(file)
        assert caught.value.code == "E-CONFIG-FILE"
        assert caught.value.file == str(file)


@pytest.mark.parametrize(
    "text",
    [
        '{"mcpServers": {},\n "toolway": {"gateway": {"login": {}}},\n "toolway": {"audit": true}}',
        '{"mcpServers": {},\n "toolway": {"gateway": {"pins": "hold",\n "pins": "warn"}}}',
        '{"mcpServers": {},\n "toolway": {"gateway": {},\n "gateway": {}}}',
    ],
)
def test_duplicate_settings_are_rejected(text: str) -> None:
    """The last value would count: a second block would remove the login of the first."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "mcp.json", {})
    assert (refused.value.code, refused.value.line) == ("E-CONFIG-TWICE", 3)


def test_second_servers_map_is_reported() -> None:
    loaded = parse_config('{"mcpServers": {"a": {"command": "x"}},\n "mcpServers": {"b": {"command": "x"}}}', "m", {})
    assert [*loaded.servers] == ["b"]
    [issue] = loaded.issues
    assert (issue.code, issue.severity, issue.line) == ("E-CONFIG-TWICE", "error", 2)
