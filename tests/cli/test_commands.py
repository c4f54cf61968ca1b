"""The commands against fake servers, in this process."""

import asyncio
import json
import re
import sys

import pytest
from typer.testing import CliRunner

from toolway.cli.app import app
from toolway.hub import list_waits

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
OLD = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main", "--era", "legacy"]}
BROKEN = {
    "command": sys.executable,
    "args": ["-c", "import os, sys; sys.exit('missing GITHUB_TOKEN ' + os.environ['MY_SECRET'])"],
    "env": {"MY_SECRET": "do-not-show"},
}
ABSENT = {"command": "/no/such/program"}


@pytest.fixture
def toolway(tmp_path, monkeypatch):
    """Run a command with a file of the given servers; gives the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLWAY_CONFIG", str(tmp_path / "mcp.json"))

    def run(servers, *words):
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        return CliRunner().invoke(app, list(words), catch_exceptions=False)

    return run


def test_list_shows_every_server_with_era_and_tools(toolway):
    result = toolway({"new": FAKE, "old": OLD}, "ls")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["server", "state", "tools", "era", "why"]
    assert [(row[0], row[1], row[3]) for row in rows[1:]] == [("new", "ready", "modern"), ("old", "ready", "legacy")]
    assert all(int(row[2]) > 10 for row in rows[1:])
    assert result.exit_code == 0


def test_failing_server_does_not_hide_others_and_is_explained(toolway):
    result = toolway({"broken": BROKEN, "fake": FAKE, "absent": ABSENT, "odd": {"type": "odd", "url": "u"}}, "ls")
    states = {line.split()[0]: line.split()[1] for line in result.stdout.splitlines()[1:]}
    assert states["fake"] == "ready"
    assert states.keys() == {"broken", "fake", "absent"}
    assert "| missing GITHUB_TOKEN ***" in result.stderr
    assert '"env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}' in result.stderr
    assert "command not found: /no/such/program" in result.stderr
    assert "unknown server type 'odd'" in result.stderr
    assert "do-not-show" not in result.output
    assert result.exit_code == 8


@pytest.mark.promise("B3", "B4")
def test_list_with_check_asks_every_server_now(toolway):
    result = toolway({"fake": FAKE, "broken": BROKEN}, "ls", "--check")
    assert "fake: responded in" in result.stdout
    assert "broken: " in result.stdout.split("fake: responded in")[0]
    assert result.exit_code == 8
    document = json.loads(toolway({"fake": FAKE, "broken": BROKEN}, "ls", "--check", "--json").stdout)
    checks = {server["server"]: server["check"] for server in document["servers"]}
    assert (checks["fake"]["ok"], checks["broken"]["ok"]) == (True, False)
    assert checks["fake"]["seconds"] > 0 and checks["broken"]["error"]
    assert toolway({"fake": FAKE}, "ls", "--check", "--watch").exit_code == 2


def test_list_json_is_one_document_with_stable_keys(toolway):
    result = toolway({"fake": FAKE, "broken": BROKEN, "Odd Name": FAKE}, "ls", "--json")
    document = json.loads(result.stdout)
    assert [server["server"] for server in document["servers"]] == ["fake", "broken", "odd-name"]
    keys = [
        "server",
        "transport",
        "state",
        "era",
        "protocol",
        "tools",
        "stale",
        "check_error",
        "paused_for",
        "why",
        "hint",
    ]
    assert all(list(server) == keys for server in document["servers"])
    assert [(p["server"], p["severity"], p["code"]) for p in document["problems"]] == [
        ("Odd Name", "note", "E-CONFIG-NAME")
    ]
    assert result.stderr == ""
    assert result.exit_code == 8


def test_list_waits_for_slow_server_only_so_long(toolway):
    slow = {**FAKE, "args": [*FAKE["args"], "--mode", "slow_start=20"]}
    result = toolway({"fake": FAKE, "slow": slow}, "ls", "--wait", "3", "--json")
    states = {server["server"]: server["state"] for server in json.loads(result.stdout)["servers"]}
    assert states == {"fake": "ready", "slow": "starting"}
    assert result.exit_code == 8


def test_exit_code_when_no_server_works(toolway):
    assert toolway({"absent": ABSENT}, "ls").exit_code == 4
    assert toolway({"bad": {"command": 5}}, "ls").exit_code == 3


def test_empty_config_is_not_an_error(toolway):
    result = toolway({}, "ls")
    assert "no servers in" in result.stderr
    assert result.exit_code == 0


@pytest.mark.parametrize("command", ["ls", "tools"])
def test_invalid_entry_is_reported_without_no_servers(toolway, command):
    result = toolway({"bad": {"command": 5}}, command)
    assert result.stderr.startswith("error: ")
    assert not re.search("^no (servers|tool)", result.stderr, re.MULTILINE)
    assert result.exit_code == 3


def test_disabled_server_is_shown_and_not_started(toolway):
    result = toolway({"fake": FAKE, "off": {**ABSENT, "enabled": False}}, "ls", "--json")
    assert [server["state"] for server in json.loads(result.stdout)["servers"]] == ["ready", "disabled"]
    assert result.exit_code == 0


def test_show_starts_no_other_server(toolway, tmp_path):
    trap = {"command": sys.executable, "args": ["-c", f"open({str(tmp_path / 'started')!r}, 'w')"]}
    result = toolway({"fake": FAKE, "trap": trap}, "show", "fake")
    assert result.stdout.startswith("fake: ready\n")
    for label in ("why", "transport", "era", "pid", "tools", "in flight", "restarts", "since"):
        assert f"\n  {label}" in result.stdout
    assert not (tmp_path / "started").exists()
    assert result.exit_code == 0


def test_show_broken_server_has_all_details(toolway):
    result = toolway({"broken": BROKEN, "fake": FAKE}, "show", "broken", "--json")
    [server] = json.loads(result.stdout)["servers"]
    assert server["state"] in ("starting", "down")
    assert "missing GITHUB_TOKEN ***" in server["stderr"]
    assert "GITHUB_TOKEN" in server["hint"]
    assert server["last_error"]
    assert result.exit_code == 4


def test_misspelled_server_gets_suggestion(toolway):
    result = toolway({"github": FAKE}, "show", "githib")
    assert "did you mean github?" in result.stderr
    assert result.exit_code == 1


def test_unusable_entry_is_explained_when_named(toolway):
    servers = {"My Server": {"type": "odd", "url": "https://x"}}
    for words in (("show", "my-server"), ("call", "my-server.x"), ("tools", "-s", "My Server")):
        result = toolway(servers, *words)
        assert "unknown server type 'odd'" in result.stderr
        assert "mcp.json:1" in result.stderr
        assert result.exit_code == 3


def test_tools_match_all_words_with_names_first(toolway):
    result = toolway({"a": FAKE, "b": OLD}, "tools", "server", "counters", "--json")
    assert [tool["name"] for tool in json.loads(result.stdout)["tools"]] == ["a.stats", "b.stats"]
    result = toolway({"a": FAKE}, "tools", "text", "-s", "a")
    assert result.stdout.splitlines()[0].split() == ["tool", "description"]
    assert "a.echo" in result.stdout
    assert result.exit_code == 0


def test_tools_of_one_server(toolway):
    result = toolway({"a": FAKE, "absent": ABSENT}, "tools", "--server", "a", "--json")
    document = json.loads(result.stdout)
    assert {tool["server"] for tool in document["tools"]} == {"a"}
    assert document["tools"][0]["input_schema"]["type"] == "object"
    assert document["down"] == []
    assert result.exit_code == 0


def test_tools_mentions_servers_that_are_down(toolway):
    result = toolway({"a": FAKE, "absent": ABSENT}, "tools", "echo")
    assert "a.echo" in result.stdout
    assert "absent is down: command not found: /no/such/program" in result.stderr
    assert "toolway doctor absent" in result.stderr
    assert result.exit_code == 8


@pytest.mark.user_trial("1")
@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("tools", "echo"), "fake.echo"),
        (("tools", "cost"), "fake"),
        (("search", "echo"), "fake.echo"),
        (("prompts",), "fake.greet"),
        (("resources",), "fake://text"),
    ],
)
def test_lists_name_hung_server_and_next_command_waits_less(toolway, words, known, monkeypatch):
    waited = []
    wait = asyncio.wait

    async def recorded(futures, *, timeout=None, **more):
        waited.append(timeout)
        return await wait(futures, timeout=timeout, **more)

    monkeypatch.setattr(asyncio, "wait", recorded)
    monkeypatch.setattr(list_waits, "LIST_WAIT_S", 6.0)  # of which the good server needs a part, on a busy machine
    servers = {"fake": FAKE, "hang": {"command": "sleep", "args": ["1000"]}}
    first = toolway(servers, *words)
    assert known in first.stdout
    assert first.stderr.count("hang: still starting") == 1 and "to wait for it: --wait 30" in first.stderr
    assert max(each or 0 for each in waited) > 5
    toolway({"fake": FAKE}, "tools")  # its lists are stored now, unless the first command did that
    waited.clear()
    again = toolway(servers, *words)
    assert "hang: still starting" in again.stderr
    assert list_waits.LATE_LIST_WAIT_S in waited


def test_search_without_match_prints_a_note(toolway):
    result = toolway({"a": FAKE}, "tools", "zzz")
    assert (result.stdout, "no tool found" in result.stderr, result.exit_code) == ("", True, 0)


def test_call_prints_only_the_text(toolway):
    result = toolway({"fake": FAKE}, "call", "fake.add", "a:=1", "b:=2")
    assert (result.stdout, result.stderr, result.exit_code) == ("3\n", "", 0)


def test_call_as_json_and_raw(toolway):
    document = json.loads(toolway({"fake": FAKE}, "call", "fake.echo", '{"text": "hé"}', "--json").stdout)
    assert (document["server"], document["tool"], document["text"], document["is_error"]) == (
        "fake",
        "echo",
        "hé",
        False,
    )
    assert document["attempts"] == 1
    raw = json.loads(toolway({"fake": FAKE}, "call", "fake.unknown_fields", "--raw").stdout)
    assert "content" in raw


def test_verbose_call_shows_progress_on_stderr(toolway):
    result = toolway({"fake": FAKE}, "call", "fake.progress", "n:=3", "-v")
    assert result.stdout == "3 steps\n"
    assert "fake.progress: 2/3 step 2\n" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("fake.fail",), 5, "reported a failure"),
        (("fake.sleep", "seconds:=30", "--timeout", "0.3"), 7, "E-TIMEOUT"),
        (("fake.ecco",), 1, "did you mean fake.echo"),
        (("fkae.echo",), 1, "did you mean fake"),
        (("fake.add", "a:=1"), 1, "name:=json"),
        (("fake.add", "oops"), 2, "E-USAGE"),
        (("absent.x",), 4, "command not found"),
        (("broken.x",), 4, "missing GITHUB_TOKEN ***"),
    ],
)
def test_each_call_failure_has_its_exit_code_and_message(toolway, words, code, part):
    result = toolway({"fake": FAKE, "absent": ABSENT, "broken": BROKEN}, "call", *words)
    assert part in result.stderr
    assert result.exit_code == code


@pytest.mark.promise("C13")
def test_invalid_arguments_are_listed_with_exit_code_2(toolway):
    result = toolway({"fake": FAKE}, "call", "fake.add", "a=one", "b:=true")
    assert result.exit_code == 2
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert "argument $.a is a string, expected a number" in lines
    assert "argument $.b is a boolean, expected a number" in lines
    assert "executed no" in lines
    assert any("use name:=json for a value that is not text" in line for line in lines)
    error = json.loads(toolway({"fake": FAKE}, "call", "fake.add", "a=one", "--json").stdout)["error"]
    assert (error["code"], error["executed"], error["exit"], error["omitted"]) == ("E-ARGUMENTS", "no", 2, 0)
    found = {"path": "$.a", "problem": "is a string", "expected": "a number", "nearest": ""}
    assert error["violations"] == [found]


def test_call_error_json_has_executed(toolway):
    result = toolway({"fake": FAKE}, "call", "fake.sleep", "seconds:=30", "--timeout", "5", "--json")
    error = json.loads(result.stdout)["error"]
    assert (error["code"], error["executed"], error["exit"]) == ("E-TIMEOUT", "unknown", 7)
    assert result.stderr == ""


def test_invalid_json_file_is_reported_with_line(tmp_path):
    file = tmp_path / "bad.json"
    file.write_text('{\n"mcpServers": {,}\n}')
    result = CliRunner().invoke(app, ["ls", "-c", str(file)])
    assert "bad.json:2" in result.stderr
    assert result.exit_code == 3
    result = CliRunner().invoke(app, ["ls", "-c", str(file), "--json"])
    assert json.loads(result.stdout)["error"]["line"] == 2


def test_missing_config_error_names_searched_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["ls"])
    assert str(tmp_path / "mcp.json") in result.stderr
    assert result.exit_code == 3


def test_usage_errors_exit_with_2():
    assert CliRunner().invoke(app, ["call"]).exit_code == 2
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("toolway ")


def test_text_is_converted_to_number_by_schema(toolway):
    result = toolway({"fake": FAKE}, "call", "fake.sleep", "seconds=0", "--json")
    assert result.exit_code == 0, result.stderr
    refused = toolway({"fake": FAKE}, "call", "fake.sleep", "seconds=soon")
    assert refused.exit_code == 2 and "E-ARGUMENTS" in refused.stderr


@pytest.mark.user_trial("19")
def test_one_tool_is_shown_despite_broken_servers(toolway, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    servers = {"fake": FAKE, "broken": BROKEN, "absent": ABSENT, "odd": {"type": "odd", "url": "u"}}
    for _ in range(2):  # the second time the list of fake is stored
        result = toolway(servers, "tools", "fake.add")
        assert "toolway call fake.add" in result.stdout
        assert result.stderr == "3 other servers are not listed: absent, broken, odd; see why: toolway ls\n"
        assert result.exit_code == 0
    assert toolway(servers, "tools", "fake.add", "--json").exit_code == 0
