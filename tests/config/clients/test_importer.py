"""Every spelling that is out there, and what is wrong with an entry."""

import json

import pytest

from tests.config.clients.fixtures import place_of, placed, switch_on
from toolway.config.clients import plan_export, read_client_file, to_portable
from toolway.config.secrets import list_secret_refs
from toolway.config.server_entry import parse_entry


def put(tmp_path, client, text, scope="user"):
    place = place_of(tmp_path, client, scope)
    place.path.parent.mkdir(parents=True, exist_ok=True)
    place.path.write_text(text if isinstance(text, str) else json.dumps(text))
    return place_of(tmp_path, client, scope)


@pytest.mark.parametrize(
    ("client", "written", "value"),
    [
        ("gemini-cli", {"httpUrl": "https://x/mcp"}, {"url": "https://x/mcp"}),
        ("gemini-cli", {"url": "https://x/sse"}, {"url": "https://x/sse", "type": "sse"}),
        ("gemini-cli", {"url": "https://x/mcp"}, {"url": "https://x/mcp"}),
        ("windsurf", {"url": "https://x/mcp"}, {"url": "https://x/mcp"}),
        ("cline", {"type": "streamable-http", "url": "u://x"}, {"url": "u://x"}),
        ("claude-code", {"command": "x"}, {"command": "x"}),
        ("claude-code", {"type": "streamable-http", "url": "https://x"}, {"url": "https://x"}),
        ("copilot-cli", {"type": "local", "command": "x", "tools": ["*"]}, {"command": "x"}),
        ("claude-desktop", {"command": "x", "url": None}, {"command": "x"}),
    ],
)
def test_spelling_variants_are_read_and_left_unchanged(client, written, value, tmp_path):
    place = put(tmp_path, client, {"mcpServers": {"s": written}})
    entry = read_client_file(place).entries[0]
    assert {key: item for key, item in entry.value.items() if key != "extras"} == value
    assert plan_export(place, {"s": to_portable(entry)}).edit.diff() == ""


def test_old_zed_command_object_is_read(tmp_path):
    written = {"command": {"path": "x", "args": ["a"], "env": {"K": "v"}}, "settings": {}}
    place = put(tmp_path, "zed", {"context_servers": {"s": written}})
    entry = read_client_file(place).entries[0]
    assert (entry.value["command"], entry.value["args"], entry.value["env"]) == ("x", ["a"], {"K": "v"})
    assert plan_export(place, {"s": to_portable(entry)}).edit.diff() == ""


def test_nested_opencode_servers_are_read(tmp_path):
    place = put(tmp_path, "opencode", {"mcp": {"servers": {"s": {"type": "local", "command": ["x", "y"]}}}})
    entry = read_client_file(place).entries[0]
    assert (entry.name, entry.value["args"]) == ("s", ["y"])
    export = plan_export(place, {"t": {"command": "z"}})
    assert json.loads(export.edit.after)["mcp"]["servers"].keys() == {"s", "t"}


def test_opencode_server_may_be_named_servers(tmp_path):
    place = put(tmp_path, "opencode", {"mcp": {"servers": {"type": "local", "command": ["x"]}}})
    assert [entry.name for entry in read_client_file(place).entries] == ["servers"]


@pytest.mark.parametrize("root", ["mcpServers", "mcp_servers", "context_servers"])
def test_wrong_root_key_is_reported_and_servers_are_found(root, tmp_path):
    place = put(tmp_path, "vscode", {root: {"s": {"command": "x"}}})
    imported = read_client_file(place)
    assert [entry.name for entry in imported.entries] == ["s"]
    assert [(p.code, p.severity) for p in imported.issues] == [("E-CLIENT-ROOT", "warning")]
    assert imported.issues[0].hint == f"rename '{root}' to 'servers'"


def test_builtin_extension_is_not_imported(tmp_path):
    place = put(tmp_path, "goose", "extensions:\n  developer:\n    type: builtin\n    enabled: true\n")
    imported = read_client_file(place)
    assert imported.entries == ()
    assert [(p.server, p.code, p.severity, p.line) for p in imported.issues] == [
        ("developer", "E-CLIENT-ENTRY", "note", 2)
    ]


def test_invalid_entry_does_not_hide_others(tmp_path):
    place = put(tmp_path, "cursor", {"mcpServers": {"a": 5, "b": {"command": "x"}, "c": {"args": []}}})
    imported = read_client_file(place)
    assert [entry.name for entry in imported.entries] == ["b"]
    assert [problem.server for problem in imported.issues] == ["a", "c"]


def test_unsupported_variable_is_reported_and_kept_literal(tmp_path):
    place = put(tmp_path, "claude-desktop", {"mcpServers": {"s": {"command": "x", "env": {"T": "${TOKEN}"}}}})
    imported = read_client_file(place)
    assert imported.entries[0].value["env"] == {"T": "$${TOKEN}"}
    assert [(p.code, p.severity) for p in imported.issues] == [("E-CONFIG-VARIABLE", "warning")]


@pytest.mark.attack("held-63")
@pytest.mark.parametrize("client", ["claude-desktop", "cursor"])
@pytest.mark.parametrize("reference", ["${command:touch /tmp/x}", "${keyring:gh.TOKEN}", "${file:/etc/passwd}"])
def test_secret_reference_in_client_file_is_literal_text(reference, client, tmp_path):
    place = put(tmp_path, client, {"mcpServers": {"s": {"command": "x", "env": {"T": reference}}}})
    [entry] = read_client_file(place).entries
    server = parse_entry(to_portable(entry), {})
    assert list_secret_refs(server) == () and server.env["T"] == reference


@pytest.mark.parametrize("command", ["cmd", "cmd.exe", "CMD"])
def test_windows_shell_wrapper_is_removed(command, tmp_path):
    place = put(tmp_path, "cursor", {"mcpServers": {"s": {"command": command, "args": ["/c", "npx", "-y", "x"]}}})
    entry = read_client_file(place).entries[0]
    assert (to_portable(entry)["command"], to_portable(entry)["args"]) == ("npx", ["-y", "x"])
    assert plan_export(place, {"s": to_portable(entry)}).edit.diff() == ""


def test_byte_order_mark_and_comments_are_accepted(tmp_path):
    text = '\ufeff{\r\n  // c\r\n  "mcpServers": {"s": {"command": "x",},},\r\n}\r\n'
    place = put(tmp_path, "cursor", "")
    place.path.write_bytes(text.encode())
    assert [entry.name for entry in read_client_file(place).entries] == ["s"]
    after = plan_export(place, {"t": {"command": "y"}}).edit.after.decode()
    assert after.startswith("\ufeff{\r\n  // c\r\n") and "\n" not in after.replace("\r\n", "")


def test_empty_file_has_no_servers_and_accepts_some(tmp_path):
    for client in ("cursor", "codex", "goose"):
        place = put(tmp_path, client, "")
        assert read_client_file(place).entries == ()
        assert plan_export(place, {"s": {"command": "x"}}).changed == ("s",)


def test_vscode_input_is_declared_where_used(tmp_path):
    place = put(tmp_path, "vscode", {"servers": {}})
    export = plan_export(place, {"s": {"command": "x", "env": {"K": "${input:key}"}}})
    assert json.loads(export.edit.after)["inputs"] == [
        {"type": "promptString", "id": "key", "description": "key", "password": True}
    ]
    assert plan_export(place, {"s": {"command": "x", "env": {"K": "${env:K}"}}}).edit.after.count(b"inputs") == 0


def test_duration_uses_the_clients_unit(tmp_path):
    entry = {"command": "x", "timeout": "90s", "startTimeout": 2500}
    codex = plan_export(place_of(tmp_path, "codex", "user"), {"s": entry}).edit.after.decode()
    assert "tool_timeout_sec = 90\nstartup_timeout_sec = 2.5\n" in codex
    gemini = json.loads(plan_export(place_of(tmp_path, "gemini-cli", "user"), {"s": entry}).edit.after)
    assert gemini["mcpServers"]["s"]["timeout"] == 90000


def test_toolway_only_settings_are_dropped_silently(tmp_path):
    entry = {"command": "x", "maxRetries": 2, "lazy": True, "limits": {"maxConcurrent": 2}}
    export = plan_export(place_of(tmp_path, "cursor", "user"), {"s": entry})
    assert json.loads(export.edit.after)["mcpServers"] == {"s": {"command": "x"}}
    assert export.unsupported == ()


def test_disabled_docker_catalog_servers_are_skipped(tmp_path):
    place = placed(tmp_path, "docker-mcp.user.yaml")
    switch_on(place, "stripe")
    assert [entry.name for entry in read_client_file(place).entries] == ["stripe"]
    place.path.parent.parent.joinpath("registry.yaml").unlink()
    assert read_client_file(place).entries == ()
