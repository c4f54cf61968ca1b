"""What holds for every command: the shared options, usage errors, and `--help` in 80 columns."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from toolway.cli.app import app
from toolway.cli.table import ALIASES, COMMANDS, SECTIONS

ROOT = typer.main.get_command(app)


def every_command(group=ROOT, table=COMMANDS, path=()):
    for name, entry in table.items():
        command = group.get_command(None, name)
        if entry.subcommands is not None:
            yield from every_command(command, entry.subcommands, (*path, name))
        else:
            yield pytest.param((*path, name), command, entry, id=" ".join((*path, name)))


def toolway(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.mark.parametrize(("path", "command", "entry"), list(every_command()))
def test_every_command_can_be_loaded_and_talks_in_the_same_way(path, command, entry):
    options = {opt for param in command.params for opt in param.opts}
    assert {"--json", "--quiet", "-q", "--verbose", "-v", "--no-color"} <= options
    assert entry.options <= {param.name for param in command.params}


@pytest.mark.parametrize(("path", "command", "entry"), list(every_command()))
def test_the_help_of_every_command_fits_in_80_columns(path, command, entry):
    result = toolway(*path, "--help")
    assert result.exit_code == 0
    assert entry.help in result.stdout
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []


def test_every_visible_command_stands_in_one_section():
    shown = [name for names in SECTIONS.values() for name in names]
    assert sorted(shown) == sorted(name for name, entry in COMMANDS.items() if not entry.hidden)
    text = toolway("--help").stdout
    assert all(f"\n  {name} " in text for name in shown)
    assert max(map(len, text.splitlines())) <= 80


def test_help_has_no_colour_where_nobody_sees_it():
    assert "\x1b" not in toolway("--help").stdout


def test_shared_options_may_stand_before_the_command(tmp_path, monkeypatch):
    (tmp_path / "mine.json").write_text('{"mcpServers": {"off": {"command": "x", "enabled": false}}}')
    before = toolway("--json", "-c", str(tmp_path / "mine.json"), "ls")
    after = toolway("ls", "--json", "-c", str(tmp_path / "mine.json"))
    assert json.loads(before.stdout) == json.loads(after.stdout)
    assert [server["server"] for server in json.loads(before.stdout)["servers"]] == ["off"]


def test_an_option_that_a_command_has_no_use_for_is_refused_before_it_too():
    result = toolway("--gateway", "http://127.0.0.1:1", "trust")
    assert "toolway trust does not accept --gateway" in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("toools",), "did you mean tools?"),
        (("keys", "craete"), "did you mean create?"),
        (("remove", "x"), "did you mean toolway rm?"),
        (("undo",), "did you mean toolway config rollback?"),
        (("nothing-like-it",), "list all commands: "),
        (("tools", "--jsn"), "did you mean --json?"),
        (("call",), "call --help"),
        (("serve", "--port", "many"), "serve --help"),
        (("call", "fake.add", "--replay", "x"), "--replay ID"),
        (("doctor", "--tools", "--fix"), "--fix cannot be combined with --tools"),
        (("doctor", "--strict"), "--strict requires --tools"),
        (("doctor", "--gateway", "http://127.0.0.1:1"), "--gateway requires --tools"),
    ],
)
def test_a_command_line_that_is_wrong_is_told_in_parts_and_ends_with_2(words, part):
    result = toolway(*words)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert result.stderr.startswith("✗ ")
    assert part in result.stderr
    assert "E-USAGE" in result.stderr


def test_a_command_line_that_is_wrong_is_json_where_json_is_wanted():
    result = toolway("toools", "--json")
    assert (json.loads(result.stdout)["error"]["code"], result.stderr, result.exit_code) == ("E-USAGE", "", 2)


def test_the_words_of_others_lead_to_commands_that_exist():
    for ours in ALIASES.values():
        assert toolway(*ours.split(), "--help").exit_code == 0
    assert not ALIASES.keys() & COMMANDS.keys()


def test_a_group_alone_shows_what_it_has():
    result = toolway("keys")
    assert "revoke" in result.stdout
    assert result.exit_code == 2


def test_help_loads_no_command_and_nothing_heavy():
    program = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from toolway.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'msgspec', 'pydantic', 'asyncio', 'mcp_types'} & sys.modules.keys()\n"
        "print(sorted(heavy), [m for m in sys.modules if 'cli.commands.' in m], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stderr == "[] []\n"
