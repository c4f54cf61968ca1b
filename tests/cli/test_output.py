import json
import sys

import pytest

from toolway.cli.output import Output
from toolway.config.schema import ConfigIssue
from toolway.errors import CallTimeout, ConfigError, ServerUnavailable
from toolway.types import Certainty


def test_error_has_its_parts_on_stderr(capsys):
    error = ServerUnavailable("github is not available", detail="exit code 1", hint="set TOKEN", server="github")
    error.add_note("missing token")
    Output().print_error(error)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "✗ github is not available",
        "  detail       exit code 1",
        "  stderr       | missing token",
        "  executed     no",
        "  hint         set TOKEN",
        "  code         E-UNAVAILABLE (toolway explain E-UNAVAILABLE)",
    ]


def test_json_error_is_the_only_output(capsys):
    Output(as_json=True).print_error(
        CallTimeout("too slow", server="s", tool="t", phase="server", certainty=Certainty.UNKNOWN)
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "error": {
            "code": "E-TIMEOUT",
            "message": "too slow",
            "detail": "",
            "hint": "",
            "exit": 7,
            "server": "s",
            "tool": "t",
            "executed": "unknown",
            "attempts": 0,
            "retry_after": None,
            "stderr": [],
            "phase": "server",
        }
    }


def test_config_error_names_its_line(capsys):
    Output().print_error(ConfigError("bad", file="mcp.json", line=3))
    assert "  file         mcp.json:3\n" in capsys.readouterr().err


def test_secrets_are_masked_in_text_and_json(capsys):
    output = Output(mask=lambda text: text.replace("s3cret", "***"))
    output.print_line("a s3cret")
    output.info("b s3cret")
    output.print_json({"c": ["s3cret", 5]})
    out, err = capsys.readouterr()
    assert "s3cret" not in out + err
    assert out.count("***") == 2


@pytest.mark.attack("held-73")
def test_control_characters_do_not_reach_terminal(capsys, monkeypatch):
    Output().print_line("a\x1b[31mb\x07")
    Output().print_tool_text("raw\x1b[31m")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Output().print_tool_text("shown\x1b[31m")
    assert capsys.readouterr().out == "a[31mb\nraw[31m\nshown[31m\n"


def test_markup_is_printed_as_text(capsys):
    Output().print_line("[red]not a color[/red] :smile:")
    assert capsys.readouterr().out == "[red]not a color[/red] :smile:\n"


def test_piped_table_is_not_cut(capsys):
    Output().print_table(("a", "b"), [("x", "y" * 500), ("longer", "")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a       b", "x       " + "y" * 500, "longer"]


def test_quiet_prints_no_notes(capsys):
    output = Output(quiet=True)
    output.info("hint")
    output.print_problems([ConfigIssue("s", "wrong")])
    assert capsys.readouterr() == ("", "")


def test_notes_are_printed_only_with_verbose(capsys):
    problems = [ConfigIssue("s", "renamed", severity="note"), ConfigIssue("s", "odd", severity="warning", code="E-X")]
    Output().print_problems(problems)
    assert capsys.readouterr().err == "warning: s: odd [E-X]\n"
    Output(verbose=True).print_problems(problems)
    assert "note: s: renamed" in capsys.readouterr().err


def test_color_needs_terminal_and_respects_no_color(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Output().print_line("plain", "red")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Output().print_line("red", "red")
    Output(color=False).print_line("asked", "red")
    monkeypatch.setenv("NO_COLOR", "1")
    Output().print_line("told", "red")
    assert capsys.readouterr().out == "plain\n\x1b[31mred\x1b[0m\nasked\ntold\n"
