"""One behavior everywhere: `--json` is one document, `-q` is silent, no color in a pipe, and secrets stay secret."""

import json
import sys

import pytest

from toolway.cli.table import COMMANDS

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"], "env": {"GITHUB_TOKEN": TOKEN}}
FILE = {"mcpServers": {"fake": FAKE, "off": {"command": "x", "enabled": False, "env": {"API_KEY": TOKEN[::-1]}}}}
BROKEN = '{"mcpServers": {"a": {"env": {"GITHUB_TOKEN": "A-SECRET"},,}}}'.replace("A-SECRET", TOKEN)

# What a command needs besides its name; one that is not here needs nothing.
WORDS = {
    "add": ["new", "-e", f"A_TOKEN={TOKEN[4:]}xyz", "--", "x"],
    "new": ["my-notes"],
    "clients export": ["cursor", "--yes"],
    "connect": ["cursor", "--yes"],
    "clients sync": ["--yes"],
    "show": ["fake", "--entry"],
    "rm": ["off"],
    "enable": ["off"],
    "disable": ["fake"],
    "restart": ["fake"],
    "search": ["repeat my text"],
    "search-servers": ["weather"],
    "call": ["fake.echo", "text=hello"],
    "tools codegen": ["python", "fake"],
    "explain": ["E-USAGE"],
    "init": ["--yes"],
    "clients import": ["--yes"],
    "login": ["fake"],
    "logout": ["fake"],
    "completion": ["bash"],
    "keys create": ["somebody"],
    "keys revoke": ["nobody"],
    "users logout": ["alice"],
    "trust tools diff": ["no.tool"],
    "approvals show": ["0123456789"],
    "policy why": ["alice", "fake.echo"],
    "policy test": ["no-table.yaml"],
    "policy flows reset": ["alice"],
    "approvals approve": ["0123456789"],
    "approvals deny": ["0123456789", "why"],
    "trust tools accept": ["no.tool"],
    "trust sandbox": ["no-server"],
    "trust update": ["no-server"],
    "secrets rm": ["no.SUCH"],
    "secrets set": ["a.TOKEN"],
    "calls show": ["no-call"],
    "calls replay": ["no-call"],
    "cluster drain": ["no-node"],
    "cluster tenant-key": ["a-tenant"],
    "workflow run": ["no-file.yaml"],
    "workflow check": ["no-file.yaml"],
    "workflow show": ["no-run"],
    "workflow answer": ["no-run", "a=b"],
    "workflow settle": ["no-run", "--happened"],
    "workflow resume": ["no-run"],
    "workflow cancel": ["no-run"],
    "audit check": ["no-file.jsonl", "--key", "no-key.pem"],
    "audit prove": ["no-file.jsonl", "1"],
    "agent run": ["hello", "--model", "no-such-provider:m"],
    "agent show": ["no-run"],
    "agent resume": ["no-run"],
    "agent replay": ["no-run"],
}
WRONG = {
    "restart": 4,
    "tools openapi": 4,
    "keys revoke": 1,
    "secrets rm": 1,
    "config diff": 1,
    "config rollback": 1,
    "edit": 2,
}
WRONG |= dict.fromkeys(("trust tools diff", "trust tools accept"), 1)  # nothing waits
WRONG |= {"trust sandbox": 1, "trust update": 1}  # no such server
WRONG |= dict.fromkeys(("policy check", "policy why", "policy test"), 3)  # the file names no policy
WRONG |= dict.fromkeys(("login", "logout"), 6)  # no one can log in to a command
WRONG |= dict.fromkeys(
    (
        "top",
        "calls",
        "calls show",
        "calls replay",
        "ui",
        "cluster nodes",
        "cluster drain",
        "whoami",
        "users ls",
        "users logout",
    ),
    4,
)  # they ask a gateway, and none runs
WRONG["keys budgets"] = 4  # as those
WRONG["search-servers"] = 1  # no registry
WRONG |= dict.fromkeys((f"policy flows {name}" for name in ("suggest", "show", "reset")), 4)  # as those
WRONG |= dict.fromkeys((f"approvals {name}" for name in ("show", "approve", "deny")), 4)  # a call waits at a gateway
WRONG |= dict.fromkeys(("cluster tenant-key", "cluster trust"), 3)  # no cluster key
WRONG |= dict.fromkeys(("audit verify", "audit ls", "audit export", "audit restart"), 3)  # none is kept
WRONG |= dict.fromkeys(("audit check", "audit prove"), 2)  # no such file
WRONG |= dict.fromkeys(("workflow run", "workflow check"), 3)  # no such file
WRONG |= dict.fromkeys((f"workflow {name}" for name in ("show", "answer", "settle", "resume", "cancel")), 1)
WRONG |= dict.fromkeys((f"agent {name}" for name in ("run", "show", "resume", "replay")), 1)
ENDLESS = {"serve"}


def commands(table=COMMANDS, path=()):
    for name, entry in table.items():
        if entry.subcommands is not None:
            yield from commands(entry.subcommands, (*path, name))
        if (entry.subcommands is None or entry.function_path) and name not in ENDLESS:
            yield " ".join((*path, name))


@pytest.fixture
def ready(machine):
    machine.write(".config/toolway/mcp.json", FILE)
    machine.write(".cursor/mcp.json", {"mcpServers": {"docs": {"url": "https://docs.example.com/mcp"}}})
    return machine


def run(machine, name, *more):
    own = WORDS.get(name, [])
    at = own.index("--") if "--" in own else len(own)
    return machine.toolway(*name.split(), *own[:at], *more, *own[at:], input="a-secret-value\n")


@pytest.mark.parametrize("name", list(commands()))
def test_json_output_is_one_document_including_errors(ready, name):
    result = run(ready, name, "--json")
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    assert ("error" in document, result.exit_code) == (name in WRONG, WRONG.get(name, 0))
    assert "✗" not in result.stderr
    assert TOKEN not in result.output
    assert TOKEN[::-1] not in result.output


@pytest.mark.parametrize("name", list(commands()))
def test_quiet_prints_only_data_and_errors(ready, name):
    result = run(ready, name, "-q")
    assert (result.stderr == "") == (name not in WRONG)
    assert result.exit_code == WRONG.get(name, 0)
    assert "\x1b" not in result.output
    assert TOKEN not in result.output
    assert TOKEN[::-1] not in result.output


@pytest.mark.parametrize("name", ["ls", "tools", "show", "rm", "enable", "disable", "config validate", "call"])
def test_unreadable_config_exits_with_3(machine, name):
    machine.write(".config/toolway/mcp.json", BROKEN)
    result = run(machine, name)
    assert (result.exit_code, "E-CONFIG-SYNTAX" in result.stderr) == (3, True)
    assert TOKEN not in result.output


@pytest.mark.parametrize("name", ["show", "rm", "enable", "disable", "edit", "logs", "doctor"])
def test_misspelled_server_gets_suggestion(ready, name):
    result = ready.toolway(name, "fkae")
    assert "did you mean fake?" in result.stderr
    assert result.exit_code == 1


def test_unusable_entry_can_be_removed(machine):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"bad": {"command": 5}, "good": {"command": "x"}}})
    assert machine.toolway("rm", "bad").exit_code == 0
    assert machine.entries() == {"good": {"command": "x"}}
