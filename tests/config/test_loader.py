import json

import pytest

from toolway.config.loader import load_file, parse_config
from toolway.config.schema import Server
from toolway.errors import ConfigError

GOOD = {"command": "x"}


def loaded(value, **variables):
    return parse_config(json.dumps(value), "mcp.json", variables)


@pytest.mark.parametrize("root", ["mcpServers", "servers", "mcp_servers"])
def test_the_map_is_found_under_every_root_key(root):
    assert loaded({root: {"a": GOOD}, "inputs": []}).servers == {"a": Server(command="x")}


def test_a_bare_map_of_entries_is_a_configuration():
    found = loaded({"$schema": "https://x", "a": GOOD, "b": {"url": "https://b"}, "c": 5})
    assert list(found.servers) == ["a", "b"]
    assert [p.server for p in found.issues] == ["c"]


def test_an_empty_object_is_a_configuration_without_servers():
    assert loaded({}).servers == {}
    assert loaded({"mcpServers": {}}).servers == {}


@pytest.mark.parametrize("value", [[], "x", {"mcpServers": []}, {"mcpServers": None}, {"theme": "dark", "a": {"b": 1}}])
def test_a_file_without_a_map_of_servers_is_an_error_with_a_fix(value):
    with pytest.raises(ConfigError) as caught:
        loaded(value)
    assert caught.value.code == "E-CONFIG-SHAPE"
    assert caught.value.file == "mcp.json"
    assert "mcpServers" in caught.value.hint


def test_one_bad_entry_does_not_hide_the_others():
    found = parse_config(
        '{"mcpServers": {\n"a": {"command": 12},\n"b": {"command": "x"},\n"c": {"type": "ws", "url": "u"}}}', "f"
    )
    assert list(found.servers) == ["b"]
    assert [(p.server, p.line, p.code, p.severity) for p in found.issues] == [
        ("a", 2, "E-CONFIG-KEY", "error"),
        ("c", 4, "E-CONFIG-URL", "error"),
    ]
    assert str(found.issues[0]) == "f:2: command must be text: found a number [E-CONFIG-KEY]"


def test_a_name_that_is_none_is_changed_and_the_new_one_is_told():
    found = loaded({"mcpServers": {"My Server_2!": GOOD}})
    assert list(found.servers) == ["my-server-2"]
    assert [(p.server, p.severity, p.code) for p in found.issues] == [("My Server_2!", "note", "E-CONFIG-NAME")]
    assert "'my-server-2'" in found.issues[0].message


def test_of_two_entries_with_one_name_the_one_spelt_right_stays():
    found = loaded(
        {"mcpServers": {"GitHub": {"command": "loses"}, "github": GOOD, "a b": GOOD, "A-B": {"command": "y"}}}
    )
    assert {name: server.command for name, server in found.servers.items()} == {"github": "x", "a-b": "x"}
    assert [(p.server, p.severity) for p in found.issues] == [("GitHub", "error"), ("a b", "note"), ("A-B", "error")]


@pytest.mark.attack("held-62")
def test_an_entry_with_a_key_that_stands_twice_is_left_out():
    found = parse_config('{"mcpServers": {\n"a": {"command": "x",\n"command": "y"},\n"b": {"command": "z"}}}')
    assert list(found.servers) == ["b"]
    assert found.issues[0].code == "E-CONFIG-TWICE"
    assert found.issues[0].detail == "lines 2 and 3"


@pytest.mark.attack("held-62")
def test_a_server_that_stands_twice_is_left_out():
    found = parse_config('{"mcpServers": {\n"a": {"command": "x"},\n"a": {"command": "y"},\n"b": {"command": "z"}}}')
    assert list(found.servers) == ["b"]
    assert "duplicate key 'a'" in found.issues[0].message


def test_comments_and_trailing_commas_do_no_harm():
    found = parse_config('{"servers": { // VS Code\n"a": {"type": "stdio", "command": "x",}, /* b */ }}')
    assert found.servers == {"a": Server(command="x")}


def test_the_timeout_of_our_block_holds_for_servers_without_their_own():
    found = loaded({"mcpServers": {"a": GOOD, "b": {"command": "x", "timeout": "5s"}}, "toolway": {"timeout": "20s"}})
    assert {name: server.timeout.total for name, server in found.servers.items()} == {"a": 20.0, "b": 5.0}
    assert found.issues == ()


def test_a_key_of_our_block_that_has_no_effect_is_a_warning():
    found = loaded({"mcpServers": {"a": GOOD}, "toolway": {"//": "a comment", "colour": 1}})
    assert [(each.message, each.severity) for each in found.issues] == [("unknown key toolway.colour", "warning")]
    assert "approve" in found.issues[0].hint


@pytest.mark.parametrize(("key", "meant"), [("acess", "access"), ("approvals", "approve"), ("escalations", "alerts")])
def test_a_misspelt_or_old_key_of_our_block_is_an_error(key: str, meant: str):
    with pytest.raises(ConfigError) as caught:
        loaded({"mcpServers": {"a": GOOD}, "toolway": {key: {}}})
    assert meant in caught.value.hint


def test_a_wrong_value_in_our_block_is_a_problem_of_the_file():
    found = loaded({"mcpServers": {"a": GOOD}, "toolway": {"timeout": "soon"}})
    assert list(found.servers) == ["a"]
    assert [(p.server, p.line, p.code) for p in found.issues] == [("", 1, "E-CONFIG-KEY")]


def test_a_variable_that_is_not_set_is_told_with_its_line():
    found = parse_config('{"mcpServers": {\n\n"a": {"command": "x", "env": {"T": "${NOPE}"}}}}', "f", {})
    assert [(p.server, p.line, p.severity) for p in found.issues] == [("a", 3, "warning")]


def test_an_entry_may_be_text():
    found = loaded({"mcpServers": {"a": "npx -y pkg", "b": "https://b/mcp"}})
    assert (found.servers["a"].command, found.servers["a"].args) == ("npx", ("-y", "pkg"))
    assert found.servers["b"] == Server(url="https://b/mcp")


def test_a_file_is_read_with_its_name_in_every_problem(tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text('\ufeff{"mcpServers": {"a": {}}}', encoding="utf-8")
    found = load_file(file)
    assert found.file == found.issues[0].file == str(file)


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path):
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
        '{"mcpServers": {},\n "toolway": {"gateway": {"pins": "hold",\n "pins": "note"}}}',
        '{"mcpServers": {},\n "toolway": {"gateway": {},\n "gateway": {}}}',
    ],
)
def test_settings_that_occur_twice_are_refused(text: str) -> None:
    """The last value would count: a second block would remove the login of the first."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "mcp.json", {})
    assert (refused.value.code, refused.value.line) == ("E-CONFIG-TWICE", 3)


def test_a_second_map_of_servers_is_reported() -> None:
    loaded = parse_config('{"mcpServers": {"a": {"command": "x"}},\n "mcpServers": {"b": {"command": "x"}}}', "m", {})
    assert [*loaded.servers] == ["b"]
    [issue] = loaded.issues
    assert (issue.code, issue.severity, issue.line) == ("E-CONFIG-TWICE", "error", 2)
