"""add, get, rm, enable, disable, edit, and the history of the file."""

import json
import sys

import pytest

from toolway.cli.commands.add import parse_spec
from toolway.cli.exit_codes import UsageError

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
FILE = """{
  // what I use
  "mcpServers": {
    "github": {"command": "npx", "args": ["-y", "server-github"], "env": {"GITHUB_TOKEN": "%s"}},
    "Docs Site": {"url": "https://docs.example.com/mcp", "somethingNew": 5}, // stays
  }
}
""".replace("%s", TOKEN)


def _api(url):
    return {"type": "openapi", "openapi": {"url": url}}


@pytest.mark.parametrize(
    ("words", "name", "entry"),
    [
        (["https://mcp.sentry.dev/mcp"], "sentry", {"url": "https://mcp.sentry.dev/mcp"}),
        (["http://127.0.0.1:3000/mcp"], "127-0-0-1", {"url": "http://127.0.0.1:3000/mcp"}),
        (["my", "https://a.example/mcp"], "my", {"url": "https://a.example/mcp"}),
        (["npm:@scope/server-thing@1.2"], "thing", {"command": "npx", "args": ["-y", "@scope/server-thing@1.2"]}),
        (["pypi:mcp-server-git==2.0"], "git", {"command": "uvx", "args": ["mcp-server-git@2.0"]}),
        (["g", "pypi:mcp-server-git"], "g", {"command": "uvx", "args": ["mcp-server-git"]}),
        (["openapi:https://api.pets.example/v1.json"], "pets", _api("https://api.pets.example/v1.json")),
        (["p", "openapi:http://127.0.0.1:8701/openapi.json"], "p", _api("http://127.0.0.1:8701/openapi.json")),
        (["files", "npx", "-y", "x", "/a b"], "files", {"command": "npx", "args": ["-y", "x", "/a b"]}),
        (["one", "./run"], "one", {"command": "./run"}),
    ],
)
def test_add_spec_is_parsed(words, name, entry):
    assert parse_spec(words) == (name, entry)


@pytest.mark.parametrize("words", [["npx", "-y", "x"], ["uvx", "thing"], ["nonsense"], ["https://a.example", "b", "c"]])
def test_unclear_add_spec_is_rejected_with_hint(words):
    with pytest.raises(UsageError) as caught:
        parse_spec(words)
    assert "toolway add" in caught.value.hint


def test_first_add_creates_private_file(machine):
    result = machine.toolway("add", "files", "--", "npx", "-y", "server-files", "/tmp")
    assert (result.exit_code, result.stdout) == (0, "")
    assert machine.entries() == {"files": {"command": "npx", "args": ["-y", "server-files", "/tmp"]}}
    assert machine.own.stat().st_mode & 0o777 == 0o600
    assert "toolway doctor files" in result.stderr


def test_given_token_goes_to_secret_store(machine):
    result = machine.toolway("add", "gh", "-e", f"GITHUB_TOKEN={TOKEN}", "-e", "MODE=fast", "--", "npx", "-y", "x")
    assert machine.entries()["gh"]["env"] == {"GITHUB_TOKEN": "${keyring:gh.GITHUB_TOKEN}", "MODE": "fast"}
    assert TOKEN not in result.output
    assert "gh.GITHUB_TOKEN" in machine.toolway("secrets", "ls").stdout
    headers = machine.toolway("add", "web", "https://a.example/mcp", "-H", f"Authorization: Bearer {TOKEN}")
    assert machine.entries()["web"]["headers"] == {"Authorization": "Bearer ${keyring:web.Authorization}"}
    assert TOKEN not in headers.output + machine.own.read_text()


def test_taken_name_needs_replace(machine):
    machine.toolway("add", "a", "--", "one")
    refused = machine.toolway("add", "a", "--", "two")
    assert (refused.exit_code, machine.entries()["a"]) == (3, {"command": "one"})
    assert "--replace" in refused.stderr
    machine.toolway("add", "--replace", "a", "--", "two")
    assert machine.entries()["a"] == {"command": "two"}


def test_private_host_is_added_with_a_hint(machine):
    result = machine.toolway("add", "build", "http://build:8000/mcp")
    assert result.exit_code == 0 and "build appears to be on a private network" in result.stderr
    assert '"toolway": {"addresses": {"allow": ["build"]}}' in " ".join(result.stderr.split())
    document = json.loads(machine.own.read_text()) | {"toolway": {"addresses": {"allow": ["build"]}}}
    machine.own.write_text(json.dumps(document))
    assert "inside" not in machine.toolway("add", "--replace", "build", "http://build:9000/mcp").stderr
    assert "inside" not in machine.toolway("add", "web", "https://web.example/mcp").stderr


def test_invalid_server_is_not_added(machine):
    assert machine.toolway("add", "Bad Name", "--", "x").exit_code == 3
    assert machine.toolway("add", "b", "https://").exit_code == 3
    assert machine.toolway("add", "c", "-e", "nothing", "--", "x").exit_code == 2
    assert not machine.own.exists()


def test_dry_run_writes_nothing(machine):
    result = machine.toolway("add", "a", "-n", "--", "one")
    assert '+    "a": {' in result.stdout
    assert not machine.own.exists()


def test_entry_is_shown_without_secrets(machine):
    machine.write(".config/toolway/mcp.json", FILE)
    result = machine.toolway("show", "github", "--entry", "--json")
    document = json.loads(result.stdout)
    assert document["entry"]["env"] == {"GITHUB_TOKEN": "***"}
    assert (document["file"], document["line"]) == (str(machine.own), 4)
    assert machine.toolway("show", "docs-site", "--entry").exit_code == 0
    missing = machine.toolway("show", "githib", "--entry")
    assert ("did you mean github?" in missing.stderr, missing.exit_code) == (True, 1)


def test_rm_enable_and_disable_keep_the_rest_of_the_file(machine):
    machine.write(".config/toolway/mcp.json", FILE)
    machine.toolway("disable", "docs-site")
    text = machine.own.read_text()
    assert "// what I use" in text
    assert "// stays" in text
    assert '"somethingNew": 5' in text
    assert '"enabled": false' in text
    assert machine.toolway("enable", "docs-site").exit_code == 0
    assert machine.own.read_text() == FILE
    result = machine.toolway("rm", "github", "-v")
    assert "server-github" not in machine.own.read_text()
    assert "// what I use" in machine.own.read_text()
    assert TOKEN not in result.output


def test_earlier_version_can_be_shown_and_restored(machine):
    machine.write(".config/toolway/mcp.json", FILE)
    assert json.loads(machine.toolway("config", "history", "--json").stdout)["versions"] == []
    machine.toolway("rm", "docs-site")
    machine.toolway("disable", "github")
    assert [v["version"] for v in json.loads(machine.toolway("config", "history", "--json").stdout)["versions"]] == [
        1,
        2,
    ]
    diff = machine.toolway("config", "diff", "2")
    assert '-    "Docs Site"' in diff.stdout
    assert TOKEN not in diff.output
    result = machine.toolway("config", "rollback", "2")
    assert machine.own.read_text() == FILE
    assert TOKEN not in result.output
    machine.toolway("config", "rollback")
    assert '"enabled": false' in machine.own.read_text()
    assert machine.toolway("config", "rollback", "99").exit_code == 1


def editor(tmp_path, monkeypatch, program):
    script = tmp_path / "editor.py"
    script.write_text(program)
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")


def test_edited_file_is_saved(machine, tmp_path, monkeypatch):
    machine.write(".config/toolway/mcp.json", FILE)
    editor(
        tmp_path,
        monkeypatch,
        "import sys; p = sys.argv[-1]; t = open(p).read(); open(p, 'w').write(t.replace('npx', 'bunx'))",
    )
    result = machine.toolway("edit", "github")
    assert machine.own.read_text() == FILE.replace("npx", "bunx")
    assert TOKEN not in result.output
    machine.toolway("config", "rollback")
    assert machine.own.read_text() == FILE


def test_invalid_edit_is_discarded(machine, tmp_path, monkeypatch):
    machine.write(".config/toolway/mcp.json", FILE)
    editor(tmp_path, monkeypatch, "import sys; open(sys.argv[-1], 'w').write('{,')")
    assert machine.toolway("edit").exit_code == 3
    editor(tmp_path, monkeypatch, "import sys; sys.exit(1)")
    assert machine.toolway("edit").exit_code == 2
    monkeypatch.delenv("EDITOR")
    assert "EDITOR" in machine.toolway("edit").stderr
    assert machine.own.read_text() == FILE


def test_config_values_have_file_and_line(machine):
    machine.write(".config/toolway/mcp.json", FILE)
    values = json.loads(machine.toolway("config", "--json").stdout)["values"]
    found = {".".join(value["path"]): value for value in values}
    assert found["github.env.GITHUB_TOKEN"]["value"] == "***"
    assert (found["docs-site.url"]["line"], found["docs-site.url"]["scope"]) == (5, "user")
    assert "~/.config/toolway/mcp.json:4" in machine.toolway("config", "--origin").stdout
    named = machine.toolway("config", "--origin", "-c", str(machine.own))
    assert "~/.config/toolway/mcp.json:4" in named.stdout
    assert TOKEN not in named.output


def test_validate_starts_no_server(machine):
    machine.write(".config/toolway/mcp.json", FILE)
    assert machine.toolway("config", "validate").exit_code == 0
    machine.write(
        ".config/toolway/mcp.json", '{"mcpServers": {"a": {"command": 5}, "b": {"url": "https://x.example"}}}'
    )
    result = machine.toolway("config", "validate", "--json")
    document = json.loads(result.stdout)
    assert (document["valid"], document["servers"], result.exit_code) == (False, ["b"], 3)


def test_project_entry_added_by_command_is_trusted(machine):
    machine.toolway("add", "a", "--scope", "project", "--", "one")
    assert json.loads((machine.project / ".mcp.json").read_text())["mcpServers"] == {"a": {"command": "one"}}
    assert "a.command" in machine.toolway("config").stdout
    (machine.project / ".mcp.json").write_text('{"mcpServers": {"b": {"command": "two"}}}')
    machine.toolway("add", "c", "--scope", "project", "--", "three")  # someone else changed it in between
    assert "b.command" not in machine.toolway("config").stdout
