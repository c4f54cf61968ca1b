"""`toolway init` asks before it writes: in a terminal with a yes as the default, else only with --yes."""

import json
import os

import pytest

from tests.cli.terminal import Terminal

pytestmark = pytest.mark.user_trial("18")
TOKEN = "ghp_" + "A1b2C3d4" * 5


@pytest.fixture
def home(machine):
    entry = {"command": "npx", "args": ["-y", "server-github"], "env": {"GITHUB_TOKEN": TOKEN}}
    machine.write(".cursor/mcp.json", {"mcpServers": {"github": entry, "notes": {"command": "notes"}}})
    machine.env = {**os.environ, "TOOLWAY_SECRETS": "file"}
    return machine


def init(machine, *words):
    return Terminal("init", *words, env=machine.env, cwd=machine.project)


def test_terminal_asks_to_import_and_to_store_tokens(home):
    terminal = init(home)
    terminal.expect("Import 2 servers? [Y/n] ")
    assert not home.own.exists()
    terminal.type("")
    terminal.expect("Move them to the secret store?")
    terminal.expect("[Y/n] ")
    terminal.type("")
    assert terminal.close() == 0
    assert TOKEN not in home.own.read_text() + terminal.text
    assert home.entries()["github"]["env"] == {"GITHUB_TOKEN": "${keyring:github.GITHUB_TOKEN}"}


def test_answering_no_writes_nothing(home):
    terminal = init(home)
    terminal.expect("Import 2 servers? [Y/n] ")
    terminal.type("n")
    assert terminal.close() == 0
    assert not home.own.exists()


def test_import_without_terminal_needs_yes(home):
    for words in (["init"], ["init", "--json"], ["clients", "import"]):
        result = home.toolway(*words)
        assert result.exit_code == 2
        assert "Import 2 servers?" in result.output and "--yes" in result.output
        assert not home.own.exists()
    assert home.toolway("init", "--dry-run").exit_code == 0
    assert not home.own.exists()
    assert home.toolway("init", "--yes").exit_code == 0
    assert home.entries().keys() == {"github", "notes"}
    assert json.loads(home.toolway("init", "--json").stdout)["changed"] is False  # nothing to ask about
