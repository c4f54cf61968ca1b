"""toolway alone, logs, doctor --tools, ps, completion, help agents: without a gateway."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
TALKER = {"command": sys.executable, "args": ["-c", "import sys, time; print('here', file=sys.stderr); time.sleep(1)"]}
TOOLWAY = [sys.executable, "-m", "toolway.cli"]


def servers(machine, **entries):
    """The user's file, with all of its entries approved, however often it is written."""
    machine.write(".config/toolway/mcp.json", {"mcpServers": entries, "toolway": {"gateway": {"reload": "all"}}})


def test_bare_command_starts_nothing_and_suggests_next_step(machine):
    begin = machine.toolway()
    assert "toolway init" in begin.stderr
    servers(machine, trap={"command": sys.executable, "args": ["-c", f"open({str(machine.home / 'started')!r}, 'w')"]})
    result = machine.toolway("--json")
    document = json.loads(result.stdout)
    assert [(s["server"], s["state"], s["tools"]) for s in document["servers"]] == [("trap", "idle", None)]
    assert document["next"]["command"] == "toolway doctor"
    assert not (machine.home / "started").exists()


def test_bare_command_shows_results_of_earlier_runs(machine):
    servers(machine, fake=FAKE, off={"command": "x", "enabled": False})
    machine.toolway("ls")
    document = json.loads(machine.toolway("--json").stdout)
    assert [(s["server"], s["state"]) for s in document["servers"]] == [("fake", "idle"), ("off", "disabled")]
    assert document["servers"][0]["tools"] > 10
    assert document["next"]["command"] == "toolway serve"
    rows = [line.split()[:3] for line in machine.toolway().stdout.splitlines()]
    assert rows[0] == ["server", "tools", "state"]
    assert (rows[1][2], rows[2][2]) == ("idle", "disabled")


def test_untrusted_project_file_is_the_first_next_step(machine):
    (machine.project / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    assert "toolway trust" in machine.toolway().stderr
    servers(machine, off={"command": "x", "enabled": False})
    assert json.loads(machine.toolway("--json").stdout)["next"]["command"] == "toolway trust"


def test_unusable_entry_makes_validate_the_next_step(machine):
    servers(machine, bad={"command": 5}, off={"command": "x", "enabled": False})
    result = machine.toolway("--json")
    assert json.loads(result.stdout)["next"]["command"] == "toolway config validate"
    assert result.exit_code == 8


def test_tools_come_from_cache_and_servers_start_only_without_it(machine):
    servers(machine, fake=FAKE)
    first = machine.toolway("tools", "--json")
    gone = {**FAKE, "env": {"PYTHONHOME": "/no/such/folder"}}  # it can be started no more, and is the same server
    servers(machine, fake=gone)
    again = machine.toolway("tools", "--json")
    names = [[tool["name"] for tool in json.loads(each.stdout)["tools"]] for each in (first, again)]
    assert names[0] == names[1] != []
    assert {tool["stale"] for tool in json.loads(again.stdout)["tools"]} == {True}
    assert (again.exit_code, machine.toolway("tools", "--refresh").exit_code) == (0, 4)


def test_stale_tool_lists_are_marked(machine):
    servers(machine, fake=FAKE, off={"command": "x", "enabled": False})
    assert "--refresh" not in machine.toolway("tools").stderr
    [kept] = (machine.home / "cache/toolway/catalog").glob("*.lists")
    long_ago = kept.stat().st_mtime - 3 * 86400
    os.utime(kept, (long_ago, long_ago))
    assert "up to 3 days ago; --refresh" in machine.toolway("tools").stderr
    assert "toolway enable off" in machine.toolway("tools", "-s", "off").stderr


def test_token_cost_of_tools_is_shown(machine):
    servers(machine, fake=FAKE)
    result = machine.toolway("tools", "echo", "--tokens")
    assert result.stdout.splitlines()[0].split() == ["tool", "tokens", "(OpenAI)", "description"]
    assert int(result.stdout.splitlines()[1].split()[1]) > 10


def test_doctor_tools_counts_tools_and_tokens(machine):
    servers(machine, fake=FAKE)
    result = machine.toolway("doctor", "--tools", "fake", "--json")
    [server] = json.loads(result.stdout)["servers"]
    assert (server["server"], server["tools"] > 10, server["tokens"]["openai"] > 100) == ("fake", True, True)
    assert machine.toolway("doctor", "--tools", "fkae").exit_code == 1


def test_doctor_tools_exits_with_9_for_a_schema_problem(machine):
    program = (
        "import json, sys\n"
        "tool = {'name': 't', 'inputSchema': {'type': 'object', 'properties': {'a': {'type': 'array'}}}}\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    info = {'name': 'x', 'version': '1'}\n"
        "    first = {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {}}, 'serverInfo': info}\n"
        "    known = {'initialize': first, 'tools/list': {'tools': [tool]}, 'ping': {}}\n"
        "    if 'id' in m:\n"
        "        bad = {'error': {'code': -32601, 'message': 'no'}}\n"
        "        answer = {'result': known[m['method']]} if m['method'] in known else bad\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **answer}), flush=True)\n"
    )
    servers(machine, odd={"command": sys.executable, "args": ["-c", program]})
    result = machine.toolway("doctor", "--tools")
    assert "odd: 1 tool," in result.stdout
    assert "without" in result.stdout
    assert result.exit_code == 9


def test_server_stderr_is_shown_in_logs(machine):
    servers(machine, talker=TALKER, fake=FAKE)
    assert machine.toolway("logs", "talker").stdout == "here\n"
    assert "talker | here" in machine.toolway("logs").stdout
    assert machine.toolway("logs", "talkr").exit_code == 1


def test_logs_follow_until_ctrl_c(machine):
    program = "import sys, time\nfor n in range(100): print('line', n, file=sys.stderr, flush=True); time.sleep(0.2)"
    servers(machine, talker={"command": sys.executable, "args": ["-c", program]})
    process = subprocess.Popen(
        [*TOOLWAY, "logs", "talker", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert lines == [f"line {n}\n" for n in range(5)]
    assert ("Traceback" in stderr, process.returncode) == (False, 130)


def test_watched_list_updates_on_change(machine):
    slow = {**FAKE, "args": [*FAKE["args"], "--mode", "slow_start=2"]}
    servers(machine, slow=slow)
    process = subprocess.Popen(
        [*TOOLWAY, "ls", "--watch", "--wait", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    states = []
    for line in process.stdout:
        if line.startswith("slow"):
            states.append(line.split()[1])
        if states[-1:] == ["ready"]:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert (states[-2:], process.returncode) == (["starting", "ready"], 130)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_orphaned_process_is_found_and_killed(machine):
    script = machine.home / "server.py"
    script.write_text("import time\ntime.sleep(60)\n")
    servers(machine, left={"command": sys.executable, "args": [str(script)]})
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    command = f"[{sys.executable!r}, {str(script)!r}]"
    start = f"import subprocess; print(subprocess.Popen({command}, stdin=subprocess.PIPE, {quiet}).pid)"
    started = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=30)
    pid = int(started.stdout)
    try:
        found = json.loads(machine.toolway("ps", "--orphans", "--json").stdout)["orphans"]
        assert pid in [orphan["pid"] for orphan in found]
        machine.toolway("ps", "--orphans", "--kill")
        assert not _runs(pid)
    finally:
        if _runs(pid):
            os.kill(pid, signal.SIGKILL)
    assert machine.toolway("ps", "--kill").exit_code == 2


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(machine, shell):
    text = machine.toolway("completion", shell).stdout
    assert "_TOOLWAY_COMPLETE" in text
    assert machine.toolway("completion", "bsh").exit_code == 2


def complete(*words):
    """What bash would offer for the last of these words."""
    told = {
        "COMP_WORDS": " ".join(["toolway", *words]),
        "COMP_CWORD": str(len(words)),
        "_TOOLWAY_COMPLETE": "complete_bash",
    }
    result = subprocess.run(TOOLWAY, env={**os.environ, **told}, capture_output=True, text=True, timeout=30)
    assert result.stderr == ""
    return result.stdout.split()


def test_commands_servers_and_tools_are_completed(machine):
    servers(machine, fake=FAKE, other={"command": "x"})
    assert complete("dis") == ["disable"]
    assert complete("li") == []  # no old name is completed
    assert complete("tru") == ["trust"]
    assert {"tools", "lock", "update", "sandbox", "fake"} <= set(complete("trust", ""))
    assert complete("trust", "fake", "") == []
    assert complete("trust", "tools", "") == ["ls", "diff", "accept"]
    assert sorted(complete("tools", "co")) == ["codegen", "cost"]
    assert complete("tools", "echo", "co") == []
    assert complete("policy", "flows", "re") == ["reset"]
    assert complete("help", "trust", "tools", "a") == ["accept"]
    assert complete("help", "age") == ["agent", "agents"]
    assert complete("keys", "lo") == ["local-token"]
    assert complete("show", "f") == ["fake"]
    assert complete("call", "o") == ["other."]
    machine.toolway("tools", "-s", "fake")
    assert complete("call", "fake.ec") == ["fake.echo"]
    assert complete("tools", "-s", "ot") == ["other"]
    assert complete("clients", "export", "curs") == ["cursor"]
    assert complete("explain", "E-STDIO-EN") == ["E-STDIO-ENOENT"]
    assert "revoke" in complete("keys", "")


def test_completion_is_silent_with_broken_config(machine):
    machine.write(".config/toolway/mcp.json", "{,")
    assert complete("show", "f") == []


def test_help_agents_is_one_complete_page(machine):
    text = machine.toolway("help", "agents").stdout
    assert all(word in text for word in ("toolway call", "--json", "executed", "toolway explain", "130"))
    facts = json.loads(machine.toolway("help", "agents", "--json").stdout)
    assert {"call", "keys create", "config rollback", "secrets set"} <= facts["commands"].keys()
    assert facts["exits"]["9"] == "lint"


@pytest.mark.user_trial("12")
def test_doctor_lint_and_tools_show_the_same_token_count(machine):
    servers(machine, fake=FAKE)
    shown = {
        "doctor": machine.toolway("doctor", "--json").stdout,
        "lint": machine.toolway("doctor", "--tools", "fake").stdout,
        "tools": machine.toolway("tools", "--tokens").stderr,
    }
    counts = {name: re.search(r"about ([\d,]+) (?:tokens )?\(OpenAI\)", text) for name, text in shown.items()}
    assert all(counts.values()), shown
    cost = json.loads(machine.toolway("tools", "cost", "--json").stdout)
    [server] = cost["servers"]
    assert {found[1].replace(",", "") for found in counts.values() if found} == {str(server["tokens"])}
    assert cost["tokenizer"] == "o200k_base" and "tokens (OpenAI)" in machine.toolway("tools", "cost").stdout


@pytest.mark.user_trial("11")
def test_bare_command_agrees_with_last_check(machine):
    missing = {"command": "/nonexistent/program"}
    servers(machine, missing=missing, fake=FAKE)
    before = machine.toolway()
    assert "2 servers never responded yet" in before.stderr
    assert machine.toolway("doctor").exit_code != 0
    after = json.loads(machine.toolway("--json").stdout)
    rows = {row["server"]: row for row in after["servers"]}
    assert (rows["missing"]["state"], rows["fake"]["state"]) == ("down", "idle")
    assert "/nonexistent/program" in rows["missing"]["why"]
    assert after["next"]["command"] == "toolway doctor missing" and "never" not in after["next"]["why"]
    servers(machine, missing={**missing, "args": ["changed"]}, fake=FAKE)  # a changed entry was not checked yet
    assert "1 server never responded yet" in machine.toolway().stderr
