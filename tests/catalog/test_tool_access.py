"""Allow and deny lists of a server: what they match, how files spell them, and what clients get of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolway.catalog.catalog import Catalog
from toolway.catalog.tool_access import ToolAccess, unmatched_entries
from toolway.config.clients.entry_writer import denormalize_entry
from toolway.config.clients.importer import normalize_entry, read_client_file
from toolway.config.clients.models import make_config_file
from toolway.config.clients.registry import CLIENTS
from toolway.config.schema import Server
from toolway.config.server_entry import parse_entry, parse_entry_with_issues
from toolway.errors import ConfigError
from toolway.types import ToolRef

TOOLS = ("read_file", "write_file", "delete_file", "delete_all")


def visible(allow: list[str] | None, deny: list[str], server: str = "fs") -> list[str]:
    access = ToolAccess(server, allow, deny)
    return [tool for tool in TOOLS if access.denied_by(tool) is None]


@pytest.mark.promise("E1")
@pytest.mark.parametrize(
    ("allow", "deny", "expected"),
    [
        (None, [], list(TOOLS)),
        (None, ["write_file"], ["read_file", "delete_file", "delete_all"]),
        (None, ["delete_*"], ["read_file", "write_file"]),
        (None, ["*_file"], ["delete_all"]),
        (None, ["?ead_file"], ["write_file", "delete_file", "delete_all"]),
        (["read_file"], [], ["read_file"]),
        (["*_file"], ["write_file"], ["read_file", "delete_file"]),
        (["*"], ["*"], []),
        ([], [], []),
        (None, ["fs.write_file", "fs__delete_*"], ["read_file"]),  # with the server's name
        (["fs.*"], [], list(TOOLS)),
        (None, ["f*"], list(TOOLS)),  # the name of the server is not part of a tool's name
        (None, ["WRITE_FILE", "write", "write_file "], list(TOOLS)),
        (None, ["[rw]*"], list(TOOLS)),  # brackets are not special
    ],
)
def test_deny_list_wins_and_patterns_match_whole_names(
    allow: list[str] | None, deny: list[str], expected: list[str]
) -> None:
    assert visible(allow, deny) == expected


def raw(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


def test_changed_lists_apply_without_a_new_listing() -> None:
    catalog = Catalog()
    catalog.add_server("fs", ToolAccess("fs", None, ["write_file"]))
    changed = catalog.replace("fs", "tools", raw(*TOOLS))
    assert changed is not None and changed.added == ("read_file", "delete_file", "delete_all")
    assert [item.name for item in catalog.received_items("tools", "fs")] == list(TOOLS)
    read = catalog.find_tool("fs", "read_file")
    before = catalog.generation
    changed = catalog.set_access("fs", ToolAccess("fs", ["read_file", "write_file"], []))
    assert changed is not None and changed.removed == ("delete_file", "delete_all") and changed.added == ("write_file",)
    assert [tool.name for tool in catalog.tools("fs")] == ["read_file", "write_file"] and catalog.count_denied(
        "fs"
    ) == 2
    assert catalog.generation > before and catalog.find_tool("fs", "read_file") is read
    assert catalog.set_access("fs", ToolAccess("fs", ["read_file", "write_file"], ["x"])) is None
    assert catalog.generation == before + 1


def test_tool_missing_from_a_complete_list_is_not_denied() -> None:
    catalog = Catalog()
    catalog.add_server("fs", ToolAccess("fs", ["read_file"], []))
    assert catalog.denied_by(ToolRef("fs", "raed_file")) == "tools.allow"  # nothing is known yet
    catalog.replace("fs", "tools", raw(*TOOLS))
    assert catalog.denied_by(ToolRef("fs", "raed_file")) is None
    assert catalog.denied_by(ToolRef("fs", "write_file")) == "tools.allow"
    assert catalog.suggest("fs.write_fil") == [] or "fs.write_file" not in catalog.suggest("fs.write_fil")


def test_unmatched_entries_are_found() -> None:
    assert unmatched_entries("fs", ["wirte_file", "delete_*", "fs.read_file", "x*"], TOOLS) == ["wirte_file", "x*"]


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("E1")
@pytest.mark.parametrize(
    ("keys", "allowed", "denied"),
    [
        ({"tools": {"deny": ["a"]}}, None, ("a",)),
        ({"tools": {"allow": ["a", "b*"], "deny": ["bb"]}}, ("a", "b*"), ("bb",)),
        ({"tools": {"include": ["a"], "exclude": ["b"]}}, ("a",), ("b",)),
        ({"tools": {"a": False, "b": True}}, None, ("a",)),
        ({"tools": {"a": {"enabled": False}, "b": {"enabled": True}}}, None, ("a",)),
        ({"tools": ["a", "b"]}, ("a", "b"), ()),
        ({"tools": ["*"]}, ("*",), ()),
        ({"tools": []}, (), ()),
        ({"disabledTools": ["a"]}, None, ("a",)),
        ({"deniedTools": ["a"]}, None, ("a",)),
        ({"disabled_tools": ["a"], "enabled_tools": ["a", "b"]}, ("a", "b"), ("a",)),
        ({"enabledTools": ["a"]}, ("a",), ()),
        ({"includeTools": ["a"], "excludeTools": ["b"]}, ("a",), ("b",)),
        ({"allowedTools": ["a"]}, ("a",), ()),
        ({"available_tools": ["a"]}, ("a",), ()),
        ({"available_tools": []}, None, ()),  # Goose: an empty list allows all tools
        ({"disabledTools": ["a"], "tools": {"deny": ["b", "a"]}}, None, ("b", "a")),
        ({"allowedTools": ["a", "b"], "tools": {"allow": ["b", "a"]}}, ("b", "a"), ()),
        ({}, None, ()),
    ],
)
def test_every_spelling_of_a_list_is_applied(
    keys: dict[str, Any], allowed: tuple[str, ...] | None, denied: tuple[str, ...]
) -> None:
    server, issues = parse_entry_with_issues({"command": "x", **keys}, {})
    assert (server.allowed_tools, server.denied_tools) == (allowed, denied)
    assert not server.extras and not issues


@pytest.mark.parametrize(
    "keys",
    [
        {"tools": {"deny": "a"}},
        {"tools": {"deny": [1]}},
        {"tools": {"deny": [""]}},
        {"tools": {"denny": ["a"]}},
        {"tools": {"a": 5}},
        {"tools": "a"},
        {"disabledTools": "a"},
        {"disabledTools": {"a": True}},
        {"enabledTools": ["a"], "tools": {"allow": ["b"]}},
    ],
)
def test_invalid_list_is_rejected(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_entry({"command": "x", **keys})
    assert caught.value.code == "E-CONFIG-KEY"


def test_confirmation_lists_are_not_allow_lists() -> None:
    server = parse_entry({"command": "x", "alwaysAllow": ["a"], "autoApprove": ["a"]})
    assert server.allowed_tools is None and server.extras == {"alwaysAllow": ["a"], "autoApprove": ["a"]}


def test_string_is_not_a_list_of_names() -> None:
    with pytest.raises(ConfigError):
        Server(command="x", denied_tools="write_file")  # type: ignore[arg-type]
    assert Server(command="x", denied_tools=["a"]).denied_tools == ("a",)  # type: ignore[arg-type]


# -- clients ----------------------------------------------------------------------------------------------------------

OWN_SPELLINGS = {name: client.dialect for name, client in CLIENTS.items() if not client.dialect.is_own}


@pytest.mark.promise("E2")
@pytest.mark.parametrize("name", OWN_SPELLINGS)
def test_export_uses_client_spelling_or_warns(name: str) -> None:
    dialect, title = OWN_SPELLINGS[name], CLIENTS[name].title
    value = {"url": "https://a.example/mcp", "tools": {"allow": ["a", "b"], "deny": ["b"]}}
    if "http" not in dialect.urls:
        value = {"command": "x", "tools": value["tools"]}
    written, issues = denormalize_entry(name, title, dialect, "fs", value)
    warned = {issue.message for issue in issues if issue.severity == "warning"}
    assert written is not None
    for key, theirs, names in (("allow", dialect.allow, ["a", "b"]), ("deny", dialect.deny, ["b"])):
        if theirs is not None:
            assert written[theirs] == names
            again, _ = normalize_entry(name, dialect, "fs", written)
            assert again["tools"][key] == names
        else:
            assert f"{title} does not support tools.{key} of fs" in warned


@pytest.mark.promise("E2")
def test_own_spellings_are_exported() -> None:
    dialect = CLIENTS["codex"].dialect
    value = {"command": "x", "disabledTools": ["b"], "tools": {"c": {"enabled": False}, "d": {"effect": "read"}}}
    written, issues = denormalize_entry("codex", "Codex", dialect, "fs", value)
    assert written is not None and written["disabled_tools"] == ["b", "c"] and not issues


def test_unsupported_patterns_are_reported() -> None:
    value = {"command": "x", "tools": {"deny": ["delete_*"]}}
    written, issues = denormalize_entry("codex", "Codex", CLIENTS["codex"].dialect, "fs", value)
    assert written is not None and written["disabled_tools"] == ["delete_*"]
    assert [issue.message for issue in issues] == ["Codex does not support patterns in tools.deny of fs"]


@pytest.mark.promise("E2")
def test_opencode_denials_outside_entries_are_imported(tmp_path: Path) -> None:
    off = {"fs_write_file": False, "fs_delete_*": False, "fs_read_file": True, "bash": False, "web*": False}
    mcp = {name: {"type": "local", "command": ["x"]} for name in ("fs", "web", "other")}
    path = tmp_path / "opencode.json"
    path.write_text(json.dumps({"mcp": mcp, "tools": off}))
    found = read_client_file(make_config_file("opencode", "user", path, root=("mcp",)))
    fs, web, other = (entry.value for entry in found.entries)
    assert fs["tools"] == {"deny": ["write_file", "delete_*"]} and "tools" not in web and "tools" not in other
    assert [issue.message for issue in found.issues] == ["OpenCode denies all tools of web outside its entry"]


def test_list_in_another_clients_spelling_is_imported() -> None:
    value, _ = normalize_entry("cursor", CLIENTS["cursor"].dialect, "fs", {"command": "x", "disabledTools": ["a"]})
    assert value["tools"] == {"deny": ["a"]} and value["extras"] == {"cursor": {"disabledTools": ["a"]}}
    goose = {"type": "stdio", "cmd": "x", "available_tools": []}
    assert "tools" not in normalize_entry("goose", CLIENTS["goose"].dialect, "fs", goose)[0]
