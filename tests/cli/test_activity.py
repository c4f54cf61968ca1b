"""`top`, `calls`, `calls show`, `calls replay` and `ui`: the side of the dashboard in a terminal, against a gateway."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from tests.cli.test_gateway import Gateway
from toolway.cli.app import app
from toolway.cli.commands.activity import format_seconds, format_waterfall, sparkline
from toolway.cli.dashboard_link import open_dashboard
from toolway.cli.output import Output


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    gateway = Gateway(tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.close()


@pytest.fixture
def toolway(gateway, monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLWAY_STATE", str(gateway.state))
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words), catch_exceptions=False)


def made(toolway, *words):
    """A call, and what is remembered of it."""
    toolway("call", *words, "--quiet")
    return json.loads(toolway("calls", "--json", "-q").stdout)["calls"][0]


def test_calls_are_listed_and_filtered(toolway):
    made(toolway, "fake.echo", "text=hello")
    made(toolway, "broken.nothing")
    made(toolway, "fake.fail")
    shown = toolway("calls").stdout
    assert "fake.echo" in shown and "outcome" in shown.splitlines()[0]
    failed = json.loads(toolway("calls", "--failed", "--json", "-q").stdout)["calls"]
    assert {(call["outcome"], call["failed"], call["code"]) for call in failed} == {("tool error", True, "")}
    chosen = json.loads(toolway("calls", "--server", "fake", "--tool", "echo", "--json", "-q").stdout)["calls"]
    assert chosen and {call["tool"] for call in chosen} == {"echo"}
    assert json.loads(toolway("calls", "--slow", "10m", "--json", "-q").stdout)["calls"] == []
    assert toolway("calls", "--slow", "soon").exit_code == 3


def test_calls_show_draws_waterfall(toolway):
    call = made(toolway, "fake.echo", "text=hello")
    shown = toolway("calls", "show", call["id"]).stdout
    assert shown.startswith("fake.echo") and "attempt 1  ok" in shown and re.search(r"server +·*█+", shown)
    facts = json.loads(toolway("calls", "show", call["id"], "--json", "-q").stdout)
    assert facts["arguments"] == {"text": "hello"} and facts["attempt_details"]
    nothing = toolway("calls", "show", "none")
    assert nothing.exit_code == 1 and "toolway calls" in nothing.stderr


@pytest.mark.user_trial("10")
def test_replay_repeats_a_call_and_unsafe_one_needs_yes(toolway):
    call = made(toolway, "fake.echo", "text=once more")
    result = toolway("calls", "replay", call["id"], "--yes")
    assert result.stdout == "once more\n" and "toolway calls show" in result.stderr
    again = json.loads(toolway("calls", "--json", "-q").stdout)["calls"][0]
    shown = toolway("calls", "show", again["id"]).stdout
    assert again["id"] != call["id"] and "1 attempt" in shown and "attempt 1  ok" in shown
    assert "no attempt was made" not in shown
    if call["effect"] == "unsafe":
        refused = toolway("calls", "replay", call["id"])
        assert refused.exit_code == 3 and "E-REPLAY" in refused.stderr


def test_top_shows_every_server_with_reason(toolway):
    shown = toolway("top").stdout
    assert "servers are healthy" in shown.splitlines()[0]
    assert re.search(r"(down|starting) +broken", shown)
    assert "do-not-show" not in shown
    assert {s["server"] for s in json.loads(toolway("top", "--json", "-q").stdout)["servers"]} == {
        "fake",
        "old",
        "broken",
    }


def test_dashboard_link_works_once(toolway, gateway):
    link = json.loads(toolway("ui", "--json", "-q").stdout)["url"]
    address, code = link.split("/dashboard/#code=")
    assert address == gateway.url

    def hand_in():
        request = Request(f"{address}/dashboard/session", method="POST", headers={"X-Toolway-Code": code})
        with urlopen(request, timeout=10) as response:
            return response.status, response.headers["Set-Cookie"]

    status, cookie = hand_in()
    assert status == 200 and "HttpOnly" in cookie and gateway.token not in link
    with pytest.raises(OSError, match="401"):
        hand_in()


def test_commands_without_gateway_hint_at_serve(machine):
    for words in (("top",), ("calls",), ("calls", "show", "x"), ("calls", "replay", "x"), ("ui",)):
        result = machine.toolway(*words)
        assert result.exit_code == 4 and "toolway serve" in result.stderr, words


def test_browser_opens_private_redirect_file(monkeypatch, tmp_path, capsys):
    opened: list[str] = []
    monkeypatch.setenv("TOOLWAY_STATE", str(tmp_path))
    monkeypatch.setattr("toolway.cli.dashboard_link.can_open_browser", lambda: True)
    monkeypatch.setattr("toolway.cli.dashboard_link.start_browser", opened.append)
    open_dashboard(Output(), "http://127.0.0.1:1/dashboard/#code=abc", browser=True)
    [address] = opened
    file = Path(address.removeprefix("file://"))
    assert "abc" not in address and "#code=abc" in file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert capsys.readouterr().out == "http://127.0.0.1:1/dashboard/#code=abc\n"


def test_numbers_are_short():
    assert [format_seconds(value) for value in (None, 0.00042, 0.0123, 0.5, 1.5, 42)] == [
        *("", "0.42 ms", "12.3 ms", "500 ms", "1.50 s", "42 s")
    ]
    assert sparkline([0, 1, 8]) == " ▁█" and sparkline([]) == "" and sparkline([0, 0]) == "  "


def test_waterfall_without_attempts_has_a_note():
    call: dict[str, Any] = dict.fromkeys(("code", "message", "detail", "hint", "trace", "source"), "")
    call |= {"server": "a", "tool": "t", "outcome": "not run", "failed": True, "executed": "no", "principal": "local"}
    lines = format_waterfall({**call, "seconds": 0.0, "attempts": 0, "at": 0.0, "attempt_details": []}, 20)
    assert lines[-1] == ("  no attempt was made", "dim")
    lines = format_waterfall({**call, "seconds": 0.0, "attempts": 1, "at": 0.0, "attempt_details": []}, 20)
    assert lines[-1] == ("  the phases were not recorded", "dim")
