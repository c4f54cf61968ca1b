"""What holds for every command: the shared options, usage errors, and `--help` in 80 columns."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from toolway.cli.app import app
from toolway.cli.help.other_names import ALIASES, renamed_commands, renamed_options
from toolway.cli.help.pages import FIRST_COMMANDS, all_commands, find_command
from toolway.cli.table import COMMANDS

ROOT = typer.main.get_command(app)


def every_command(group=ROOT, table=COMMANDS, path=()):
    for name, entry in table.items():
        command = group.get_command(None, name)
        if entry.takes_words:
            yield pytest.param((*path, name), group.own_command(name), entry, id=" ".join((*path, name)))
        if entry.subcommands is not None:
            yield from every_command(command, entry.subcommands, (*path, name))
        else:
            yield pytest.param((*path, name), command, entry, id=" ".join((*path, name)))


def toolway(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.mark.parametrize(("path", "command", "entry"), list(every_command()))
def test_every_command_loads_with_shared_options(path, command, entry):
    options = {opt for param in command.params for opt in param.opts}
    assert {"--json", "--quiet", "-q", "--verbose", "-v", "--no-color"} <= options
    assert entry.options <= {param.name for param in command.params}


@pytest.mark.parametrize(("path", "command", "entry"), list(every_command()))
def test_help_of_every_command_fits_80_columns(path, command, entry):
    result = toolway(*path, "--help")
    assert result.exit_code == 0
    assert entry.help in " ".join(result.stdout.split())
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.user_trial("27")
def test_first_help_page_fits_small_terminal():
    lines = toolway("--help").stdout.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    assert lines[0] == "One reliable way to call every MCP server."
    assert toolway("help").stdout.splitlines() == lines


def test_first_help_page_has_14_commands_in_4_groups():
    text = toolway("-h").stdout
    names = [name for commands in FIRST_COMMANDS.values() for name in commands]
    assert (len(FIRST_COMMANDS), len(names)) == (4, 14)
    assert all(f"\n  {name} " in text for name in names)
    assert set(names) <= COMMANDS.keys()
    for part in ("toolway help --all", "toolway help COMMAND", "toolway explain CODE", "-c FILE", "--json"):
        assert part in text


def test_help_all_names_every_command_once():
    text = toolway("help", "--all").stdout
    assert max(map(len, text.splitlines())) <= 80
    paragraphs = " ".join(text.split())
    for path, entry in all_commands():
        group, _, name = path.rpartition(" ")
        row = f"\n  {path}  "
        if row in text:
            assert text.count(row) == 1
            assert entry.help.rstrip(".") in paragraphs
        else:  # named in the row of its group
            parent = find_command(group)
            assert parent is not None, path
            listed = paragraphs.partition(parent.help.rstrip(".") + ": ")[2].partition(".")[0]
            assert name in listed.split(", "), path


def test_help_command_matches_help_option():
    for path, _ in all_commands():
        assert toolway("help", *path.split()).stdout == toolway(*path.split(), "--help").stdout
    assert toolway("help", "--json").exit_code == 0
    refused = toolway("help", "toools")
    assert (refused.exit_code, "did you mean" in refused.stderr) == (2, True)
    assert toolway("help", "call", "fake").exit_code == 2
    assert toolway("help", "ls", "--all").exit_code == 2


def test_help_in_a_pipe_has_no_color():
    assert "\x1b" not in toolway("--help").stdout


def test_shared_options_may_precede_the_command(tmp_path, monkeypatch):
    (tmp_path / "mine.json").write_text('{"mcpServers": {"off": {"command": "x", "enabled": false}}}')
    before = toolway("--json", "-c", str(tmp_path / "mine.json"), "ls")
    after = toolway("ls", "--json", "-c", str(tmp_path / "mine.json"))
    assert json.loads(before.stdout) == json.loads(after.stdout)
    assert [server["server"] for server in json.loads(before.stdout)["servers"]] == ["off"]


def test_unsupported_shared_option_is_rejected():
    result = toolway("--gateway", "http://127.0.0.1:1", "trust")
    assert "toolway trust does not accept --gateway" in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("toools",), "did you mean tools?"),
        (("keys", "craete"), "did you mean create?"),
        (("remove", "x"), "did you mean toolway rm?"),
        (("approve", "x"), "did you mean toolway approvals approve?"),
        (("trust", "tools", "ackcept"), "did you mean accept?"),
        (("undo",), "did you mean toolway config rollback?"),
        (("nothing-like-it",), "list all commands: toolway help --all"),
        (("tools", "--jsn"), "did you mean --json?"),
        (("call",), "call --help"),
        (("serve", "--port", "many"), "serve --help"),
        (("call", "fake.add", "--timeout", "often"), "--timeout must be a duration such as 20s or 2m"),
        (("call", "fake.add", "--timeout", "0s"), "--timeout must be a duration such as 20s or 2m"),
        (("doctor", "--security", "--fix"), "--fix cannot be combined with --security"),
        (("show", "github", "--config"), "toolway show NAME --entry"),
        (("show", "--entry"), "--entry needs the NAME of a server"),
        (("connect", "cursor", "--search", "--toolset", "x"), "--search and --toolset cannot be used together"),
        (("connect", "cursor", "--group", "x"), "use `toolway connect CLIENT --toolset NAME`"),
        (("keys", "create", "ci", "--scope", "x"), "use `toolway keys create NAME --only TOOLSET`"),
        (("trust", "x", "--server", "tools"), "--server and a name cannot be used together"),
        (("doctor", "--tools", "--fix"), "--fix cannot be combined with --tools"),
        (("doctor", "--strict"), "--strict requires --tools"),
        (("doctor", "--gateway", "http://127.0.0.1:1"), "--gateway requires --tools"),
    ],
)
def test_invalid_command_line_is_explained_with_exit_code_2(words, part):
    result = toolway(*words)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert result.stderr.startswith("✗ ")
    assert part in result.stderr
    assert "E-USAGE" in result.stderr


def test_invalid_command_line_is_json_with_json_option():
    result = toolway("toools", "--json")
    assert (json.loads(result.stdout)["error"]["code"], result.stderr, result.exit_code) == ("E-USAGE", "", 2)


def test_aliases_lead_to_existing_commands():
    for ours in ALIASES.values():
        assert toolway(*ours.split(), "--help").exit_code == 0
    assert not ALIASES.keys() & COMMANDS.keys()
    assert not ALIASES.keys() & renamed_commands().keys()


@pytest.mark.parametrize(("old", "new"), renamed_commands().items())
def test_old_command_name_is_rejected_with_new_one(old, new):
    assert find_command(old) is None
    for words in (old.split(), [*old.split(), "x"]):
        result = toolway(*words)
        assert (result.stdout, result.exit_code) == ("", 2)
        assert f"unknown command {old}: use `toolway {new}`" in result.stderr
    error = json.loads(toolway(*old.split(), "--json").stdout)["error"]
    assert error["message"] == f"unknown command {old}: use `toolway {new}`"
    shown = error["hint"].partition(": toolway ")[2].split()
    assert shown[-1] == "--help" and toolway(*shown).exit_code == 0


def test_every_former_command_is_kept_or_renamed():
    before = "init add new import export sync ls status get rm enable disable edit restart tools search tokens call"
    before += " prompts resources codegen workflow agent doctor config secrets login logout trust pins policy sandbox"
    before += " lock update top calls trace logs ps explain serve ui keys who sessions budgets flows approvals audit"
    before += " cluster completion agent-help list lint"
    assert set(before.split()) <= COMMANDS.keys() | renamed_commands().keys()


@pytest.mark.parametrize(("old", "new"), renamed_options().items(), ids=lambda each: "".join(each))
def test_old_option_is_rejected_with_new_command(old, new):
    command, option = old
    found = find_command(command)
    takes_argument = found is None or not found.subcommands
    result = toolway(*command.split(), *(["x"] if takes_argument else []), option)
    assert result.exit_code == 2
    assert f"use `toolway {new}`" in " ".join(result.stderr.split())


def test_word_after_command_may_be_subcommand_or_argument(machine):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"lock": {"command": "x", "enabled": False}}})
    assert "unknown server" not in toolway("trust", "lock", "--check").stderr
    assert json.loads(toolway("tools", "--json", "cost").stdout).keys() >= {"endpoints", "servers"}
    assert json.loads(toolway("tools", "--json", "--", "cost").stdout)["tools"] == []
    assert json.loads(toolway("tools", "-s", "lock", "cost", "--json").stdout)["tools"] == []
    assert json.loads(toolway("--json", "trust", "-c", "x.json", "tools", "ls").stdout)["servers"] == []
    revoked = json.loads(toolway("trust", "--revoke", "--server", "lock", "--json").stdout)["revoked"]
    assert [each.split()[0] for each in revoked] == ["lock"]


@pytest.mark.parametrize(("text", "seconds"), [("0.5s", 0.5), ("20s", 20), ("2m", 120), ("250ms", 0.25), ("5", 5)])
def test_call_timeout_accepts_durations(text, seconds):
    from toolway.cli.commands.tools import parse_timeout

    assert parse_timeout(text) == seconds


def test_command_group_alone_prints_help():
    result = toolway("keys")
    assert "revoke" in result.stdout
    assert result.exit_code == 2


def test_help_loads_no_command_modules():
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
