"""A server without a handshake on the command line: listed, called, explained and examined."""

import json
import sys
from pathlib import Path

import pytest

BARE = Path(__file__).parent.parent / "hub" / "bare_server.py"


@pytest.fixture
def entry(machine):
    entry = {"command": sys.executable, "args": [str(BARE), "--log", str(machine.home / "log")]}
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"mail": entry}})
    return machine


@pytest.mark.promise("A2", "C2")
def test_bare_server_can_be_called(entry):
    called = entry.toolway("call", "mail.create_issue", "title=x")
    assert called.exit_code == 0, called.output
    assert json.loads(called.stdout) == {"url": "https://tracker.example/x", "number": 123}
    whole = json.loads(entry.toolway("call", "mail.result_field", "--json").stdout)
    assert whole["data"] == {"result_field": "value"}


def test_bare_era_is_shown_with_advice(entry):
    (listed,) = json.loads(entry.toolway("ls", "--json").stdout)["servers"]
    assert (listed["state"], listed["era"], listed["protocol"]) == ("ready", "bare", None)
    assert "bare" in entry.toolway("ls").stdout
    assert "era bare" in entry.toolway("show", "mail").stdout
    examined = entry.toolway("doctor", "mail")
    assert examined.exit_code == 0, examined.output
    assert "era bare" in examined.stdout and '"era": "bare"' in examined.stdout


def test_bare_era_is_remembered_by_next_command(entry):
    for _ in range(2):
        assert entry.toolway("ls").exit_code == 0
    files = (entry.home / "cache").rglob("mail-*.lists")
    stored = [json.loads(file.read_text().partition("\n")[2]) for file in files]  # after the MAC
    assert [each["era"] for each in stored] == ["bare"]


def test_explain_page_covers_missing_handshake(entry):
    shown = entry.toolway("explain", "E-START-REJECTED").stdout
    assert "-32601" in shown and "tools/list" in shown


def test_server_without_handshake_or_tools_hints_at_explain(entry):
    answer = "{'id': json.loads(line).get('id'), 'error': {'code': -32601, 'message': 'no'}}"
    script = f"import json, sys\nfor line in sys.stdin: print(json.dumps({answer}), flush=True)"
    entry.write(
        ".config/toolway/mcp.json", {"mcpServers": {"odd": {"command": sys.executable, "args": ["-c", script]}}}
    )
    status = json.loads(entry.toolway("show", "odd", "--json").stdout)
    assert "toolway explain E-START-REJECTED" in json.dumps(status)
