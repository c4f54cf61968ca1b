"""init, import, export and sync: between our file and those of clients."""

import json
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from toolway.cli.commands.export import build_hub_entry

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
CURSOR = """{
  // mine
  "mcpServers": {
    "github": {"command": "npx", "args": ["-y", "server-github"], "env": {"GITHUB_TOKEN": "%s"}},
    "docs": {"url": "https://docs.example.com/mcp"}
  }
}
""".replace("%s", TOKEN)
CLAUDE = {
    "numStartups": 3,
    "mcpServers": {
        "gh": {"type": "stdio", "command": "npx", "args": ["-y", "server-github"]},
        "docs": {"type": "http", "url": "https://other.example.com/mcp"},
    },
}


def clients(machine):
    machine.write(".cursor/mcp.json", CURSOR)
    machine.write(".claude.json", CLAUDE)
    return {name: (machine.home / name).read_bytes() for name in (".cursor/mcp.json", ".claude.json")}


def same(machine, before):
    return {name: (machine.home / name).read_bytes() for name in before} == before


def test_init_imports_client_servers_without_changing_clients(machine):
    before = clients(machine)
    result = machine.toolway("init", "--yes")
    entries = machine.entries()
    assert entries["github"]["env"] == {"GITHUB_TOKEN": "${keyring:github.GITHUB_TOKEN}"}
    assert "env" not in entries["gh"]  # the same command in Claude Code, without the token of Cursor
    assert entries["docs"] == {"url": "https://other.example.com/mcp"}
    assert entries["docs-cursor"] == {"url": "https://docs.example.com/mcp"}
    assert len(entries) == 4
    assert same(machine, before)
    assert TOKEN not in result.output + machine.own.read_text()
    assert "toolway doctor" in result.stderr


@pytest.mark.promise("C14")
def test_import_reports_keys_without_effect(machine):
    email = {"command": "python", "args": ["/srv/email_mcp/server.py"], "env": {"SMTP_HOST": "smtp.example"}}
    machine.write(".config/claude-code/mcp.json", {"mcpServers": {"email": {**email, "headersHelper": "get-headers"}}})
    machine.write(
        ".cursor/mcp.json", {"mcpServers": {"fs": {"command": "fs", "autoApprove": ["a"], "envFile": ".env"}}}
    )
    result = json.loads(machine.toolway("clients", "import", "--yes", "--json").stdout)
    assert {(p["server"], p["message"]) for p in result["problems"]} == {
        ("email", "key 'headersHelper' has no effect"),
        ("fs", "key 'autoApprove' of cursor has no effect"),
    }
    assert machine.entries()["email"] == {**email, "headersHelper": "get-headers"}
    assert machine.entries()["fs"]["envFile"] == ".env"
    validated = json.loads(machine.toolway("config", "validate", "--json").stdout)
    assert {p["message"].split("'")[1] for p in validated["problems"] if "'" in p["message"]} == {
        "headersHelper",
        "autoApprove",
    }
    assert any(p["code"] == "E-CONFIG-ENV-FILE" for p in validated["problems"])
    checked = machine.toolway("doctor", "--json").stdout
    assert "key 'headersHelper' has no effect" in checked and "key 'autoApprove' of cursor has no effect" in checked


def test_second_init_finds_nothing_new(machine):
    clients(machine)
    machine.toolway("init", "--yes")
    before = machine.own.read_bytes()
    result = machine.toolway("init", "--yes", "--json")
    assert {row["status"] for row in json.loads(result.stdout)["found"]} == {"known"}
    assert machine.own.read_bytes() == before


def test_init_without_clients_suggests_add(machine):
    result = machine.toolway("init")
    assert "toolway add" in result.stderr
    assert result.exit_code == 0


def test_import_of_one_client_can_keep_plain_tokens(machine):
    clients(machine)
    machine.toolway("clients", "import", "cursor", "--plain", "--yes")
    assert machine.entries()["github"]["env"] == {"GITHUB_TOKEN": TOKEN}
    result = machine.toolway("clients", "import", "cursr")
    assert "did you mean 'cursor'?" in result.stderr
    assert result.exit_code == 3


def test_import_without_terminal_does_not_copy_tokens(machine):
    clients(machine)
    result = machine.toolway("clients", "import", "cursor", "--yes")
    assert TOKEN not in machine.own.read_text() + result.output


def test_import_of_private_host_hints_at_addresses(machine):
    machine.write(".cursor/mcp.json", {"mcpServers": {"build": {"url": "http://build.internal:8000/mcp"}}})
    result = machine.toolway("clients", "import", "cursor", "--yes")
    assert result.exit_code == 0 and machine.entries()["build"]["url"] == "http://build.internal:8000/mcp"
    assert '"toolway": {"addresses": {"allow": ["build.internal"]}}' in " ".join(result.stderr.split())


def test_two_accounts_of_one_server_become_two_servers(machine):
    clients(machine)
    entry = {"command": "npx", "args": ["-y", "server-github"], "env": {"GITHUB_TOKEN": TOKEN[::-1]}}
    machine.write(".claude.json", {"mcpServers": {"github": entry}})
    machine.toolway("clients", "import", "--plain", "--yes")
    tokens = {name: entry["env"]["GITHUB_TOKEN"] for name, entry in machine.entries().items() if "env" in entry}
    assert tokens == {"github": TOKEN[::-1], "github-cursor": TOKEN}


def test_project_file_is_imported_only_on_request(machine):
    machine.write("project/.cursor/mcp.json", {"mcpServers": {"local": {"command": "./run"}}})
    machine.toolway("clients", "import")
    assert not machine.own.exists()
    digest = json.loads(machine.toolway("clients", "import", "--project", "--json").stdout)["untrusted"]["digest"]
    machine.toolway("clients", "import", "--project", "--digest", digest)
    assert machine.entries()["local"] == {"command": "./run", "cwd": str(machine.project)}


def test_export_shows_diff_then_needs_yes(machine):
    before = clients(machine)
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"files": {"command": "npx", "args": ["-y", "files"]}}})
    shown = machine.toolway("clients", "export", "cursor", "--dry-run")
    assert '+    "files": {' in shown.stdout
    assert TOKEN not in shown.output
    refused = machine.toolway("clients", "export", "cursor")
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert same(machine, before)
    made = machine.toolway("clients", "export", "cursor", "--yes")
    text = (machine.home / ".cursor/mcp.json").read_text()
    assert made.exit_code == 0
    assert text.startswith(CURSOR[: CURSOR.index('    "docs"')])
    assert '"files"' in text
    [copy] = [line.rpartition("backup: ")[2] for line in made.stderr.splitlines() if "backup: " in line]
    assert Path(copy).read_text() == CURSOR


def test_export_reports_values_it_leaves_out(machine):
    clients(machine)
    machine.toolway("add", "k", "-e", f"API_KEY={TOKEN}", "--", "x")
    result = machine.toolway("clients", "export", "cursor", "-n")
    assert "env.API_KEY" in result.stderr
    facts = json.loads(machine.toolway("clients", "export", "cursor", "-n", "--json").stdout)["clients"][0]
    assert facts["losses"][0]["code"] == "E-CLIENT-FIELD"
    assert facts["changed"] is False


def test_connect_replaces_entries_behind_the_hub(machine):
    clients(machine)
    machine.toolway("clients", "import", "cursor", "--yes")
    machine.toolway("connect", "cursor", "-y")
    text = (machine.home / ".cursor/mcp.json").read_text()
    assert "// mine" in text
    entries = json.loads(text.replace("// mine", ""))["mcpServers"]
    assert entries == {"toolway": build_hub_entry()}
    result = machine.toolway("clients", "import", "cursor", "--json")
    assert json.loads(result.stdout)["found"] == []  # we do not take ourselves


def test_yaml_file_is_not_changed_but_snippet_is_printed(machine):
    text = "extensions: # mine\n  github: {type: stdio, cmd: npx, args: [-y, server-github]}\n"
    file = machine.write(".config/goose/config.yaml", text)
    machine.toolway("clients", "import", "goose", "--yes")
    result = machine.toolway("connect", "goose", "--yes")
    assert result.exit_code == 0
    assert (
        yaml.safe_load(result.stdout.partition("\n")[2])["extensions"]["toolway"]["cmd"] == build_hub_entry()["command"]
    )
    assert f"remove from {file}: github" in " ".join(result.stderr.split())
    [facts] = json.loads(machine.toolway("connect", "goose", "--yes", "--json").stdout)["clients"]
    assert (facts["changed"], facts["written"], facts["remove"]) == (False, [], ["github"])
    assert file.read_text() == text
    file.write_text(facts["snippet"])
    assert "up to date" in machine.toolway("connect", "goose", "--yes").stderr


def test_sync_gives_each_client_every_server_once(machine):
    clients(machine)
    machine.toolway("clients", "sync", "--yes")
    claude = json.loads((machine.home / ".claude.json").read_text())
    assert claude["numStartups"] == 3
    assert claude["mcpServers"].keys() == {"gh", "github", "docs", "docs-cursor"}
    cursor = json.loads((machine.home / ".cursor/mcp.json").read_text().replace("// mine", ""))["mcpServers"]
    addresses = {name: entry.get("url") for name, entry in cursor.items()}
    docs = {"docs": "https://docs.example.com/mcp", "docs-2": "https://other.example.com/mcp"}
    assert addresses == {"github": None, "gh": None, **docs}  # each keeps its name
    assert cursor["github"]["env"] == {"GITHUB_TOKEN": TOKEN}  # what it knows itself stays
    again = json.loads(machine.toolway("clients", "sync", "--yes", "--json").stdout)
    assert [client["changed"] for client in again["clients"]] == [False, False]


def test_export_without_a_client_needs_all(machine):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}})
    assert machine.toolway("clients", "export").exit_code == 2
    assert machine.toolway("clients", "export", "--all").exit_code == 0


def test_connect_passes_named_config_to_the_hub(machine):
    clients(machine)
    file = machine.write("mine.json", {"mcpServers": {"docs": {"url": "https://docs.example.com/mcp"}}})
    machine.toolway("connect", "cursor", "-y", "-c", str(file))
    text = (machine.home / ".cursor/mcp.json").read_text().replace("// mine", "")
    entry = json.loads(text)["mcpServers"]["toolway"]
    assert entry["args"][-4:] == ["serve", "--stdio", "--config", str(file)]
    assert json.loads(text)["mcpServers"].keys() == {"github", "toolway"}  # what is not behind it stays


def test_servers_with_different_env_stay_separate(machine):
    memory = {"command": "npx", "args": ["-y", "memory"]}
    machine.write(".claude.json", {"mcpServers": {"memory": {**memory, "env": {"MEMORY_FILE": "/a.json"}}}})
    machine.write(".cursor/mcp.json", {"mcpServers": {"memory": memory}})
    machine.toolway("init", "--yes")
    assert machine.entries() == {"memory": {**memory, "env": {"MEMORY_FILE": "/a.json"}}, "memory-cursor": memory}
    machine.toolway("clients", "export", "cursor", "--yes")
    exported = json.loads((machine.home / ".cursor/mcp.json").read_text())["mcpServers"]
    assert exported["memory"] == memory and "MEMORY_FILE" in json.dumps(exported)
    machine.toolway("rm", "memory-cursor")
    machine.toolway("connect", "cursor", "--yes")
    kept = json.loads((machine.home / ".cursor/mcp.json").read_text())["mcpServers"]
    assert kept["memory"] == memory  # our file has no such server, so nothing replaces it


def test_changed_env_updates_client_entry(machine):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"a": {"command": "x", "env": {"DEBUG": "1"}}}})
    machine.write(".cursor/mcp.json", {"mcpServers": {"a": {"command": "x"}}})
    machine.toolway("clients", "export", "cursor", "--yes")
    assert json.loads((machine.home / ".cursor/mcp.json").read_text())["mcpServers"] == {
        "a": {"command": "x", "env": {"DEBUG": "1"}}
    }


def test_sync_does_not_restore_removed_server(machine):
    machine.write(".cursor/mcp.json", {"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}})
    machine.toolway("init", "--yes")
    machine.toolway("rm", "a")
    found = json.loads(machine.toolway("clients", "sync", "--yes", "--json").stdout)
    assert machine.entries().keys() == {"b"}
    assert [row["status"] for row in found["imported"]["found"]] == ["removed", "known"]
    assert "x" not in (machine.home / ".local/state/toolway/removed.json").read_text().split('"')
    machine.toolway("clients", "import", "cursor", "--yes")
    assert machine.entries().keys() == {"a", "b"}
    machine.toolway("clients", "sync", "--yes")
    assert machine.entries().keys() == {"a", "b"}
