import json
import sys

from toolway.cli.output import Output
from toolway.config.problems import Problem
from toolway.errors import ConfigError, TimedOut, Unavailable
from toolway.model import Certainty


def test_an_error_has_its_four_parts_on_stderr(capsys):
    error = Unavailable("github is not available", evidence="exit code 1", fix="set TOKEN", server="github")
    error.add_note("missing token")
    Output().error(error)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "✗ github is not available",
        "  evidence     exit code 1",
        "  stderr       | missing token",
        "  executed     no",
        "  fix          set TOKEN",
        "  code         E-UNAVAILABLE (toolway explain E-UNAVAILABLE)",
    ]


def test_an_error_as_json_is_alone_on_stdout(capsys):
    Output(as_json=True).error(TimedOut("too slow", server="s", tool="t", phase="server", certainty=Certainty.C2))
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "error": {
            "code": "E-TIMEOUT",
            "what": "too slow",
            "evidence": "",
            "fix": "",
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


def test_the_error_of_a_file_names_its_line(capsys):
    Output().error(ConfigError("bad", file="mcp.json", line=3))
    assert "  file         mcp.json:3\n" in capsys.readouterr().err


def test_secrets_are_masked_in_text_and_in_json(capsys):
    output = Output(mask=lambda text: text.replace("s3cret", "***"))
    output.line("a s3cret")
    output.say("b s3cret")
    output.facts({"c": ["s3cret", 5]})
    out, err = capsys.readouterr()
    assert "s3cret" not in out + err
    assert out.count("***") == 2


def test_control_characters_of_a_server_do_not_reach_the_terminal(capsys, monkeypatch):
    Output().line("a\x1b[31mb\x07")
    Output().text_of_tool("raw\x1b[31m")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Output().text_of_tool("shown\x1b[31m")
    assert capsys.readouterr().out == "a[31mb\nraw\x1b[31m\nshown[31m\n"


def test_markup_in_a_servers_words_is_only_text(capsys):
    Output().line("[red]not a colour[/red] :smile:")
    assert capsys.readouterr().out == "[red]not a colour[/red] :smile:\n"


def test_a_table_is_not_cut_where_nobody_looks(capsys):
    Output().table(("a", "b"), [("x", "y" * 500), ("longer", "")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a       b", "x       " + "y" * 500, "longer"]


def test_quiet_says_nothing_about_the_data(capsys):
    output = Output(quiet=True)
    output.say("hint")
    output.problems([Problem("s", "wrong")])
    assert capsys.readouterr() == ("", "")


def test_notes_are_told_only_when_asked_for(capsys):
    problems = [Problem("s", "renamed", severity="note"), Problem("s", "odd", severity="warning", code="E-X")]
    Output().problems(problems)
    assert capsys.readouterr().err == "warning: s: odd [E-X]\n"
    Output(verbose=True).problems(problems)
    assert "note: s: renamed" in capsys.readouterr().err


def test_colour_needs_a_terminal_and_yields_to_no_color(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Output().line("plain", "red")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Output().line("red", "red")
    Output(color=False).line("asked", "red")
    monkeypatch.setenv("NO_COLOR", "1")
    Output().line("told", "red")
    assert capsys.readouterr().out == "plain\n\x1b[31mred\x1b[0m\nasked\ntold\n"
