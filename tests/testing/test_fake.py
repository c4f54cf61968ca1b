"""The fake stdio server: well behaved in both eras, and bad in each of its modes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from toolway.testing import fake_server

Json = dict[str, Any]
ERAS = ("modern", "handshake")
PREFIX = "io.modelcontextprotocol/"
CAPABILITIES: Json = {"elicitation": {}, "sampling": {}, "roots": {}}
META = {PREFIX + "protocolVersion": "2026-07-28", PREFIX + "clientCapabilities": CAPABILITIES}
SOON = 5.0


class Client:
    """Just enough of a client: it writes lines, and a thread puts what it reads into a queue."""

    def __init__(self, entry: Json) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([entry["command"], *entry["args"]], stdin=pipe, stdout=pipe, stderr=pipe)
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.stderr: list[bytes] = []
        self.modern = True
        self._last = 0
        self._readers = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_stderr)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self.lines.put(line)
        self.lines.put(b"")

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.stderr.extend(stderr)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(SOON)
        with suppress(OSError):
            self.end_input()

    def write(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: Json | None = None) -> int:
        """Send a request, dressed for its era."""
        self._last += 1
        params = dict(params or {})
        if self.modern:
            params["_meta"] = {**META, **params.get("_meta", {})}
        self.write({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def send_call(self, tool: str, _meta: Json | None = None, **arguments: Any) -> int:
        params: Json = {"name": tool, "arguments": arguments}
        if _meta:
            params["_meta"] = _meta
        return self.send("tools/call", params)

    def line(self, seconds: float = SOON) -> bytes:
        """The next line; empty at the end."""
        return self.lines.get(timeout=seconds)

    def message(self) -> Json:
        message: Json = json.loads(self.line())
        return message

    def ask(self, method: str, params: Json | None = None) -> Json:
        """Send a request and read the next message, which must answer it."""
        id = self.send(method, params)
        message = self.message()
        assert message["id"] == id
        return message

    def call(self, tool: str, **arguments: Any) -> Json:
        self.send_call(tool, **arguments)
        result: Json = self.message()["result"]
        return result

    def shake_hands(self, version: str = "2025-11-25") -> Json:
        self.modern = False
        params = {"protocolVersion": version, "capabilities": CAPABILITIES, "clientInfo": {"name": "t", "version": "1"}}
        answer = self.ask("initialize", params)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        result: Json = answer["result"]
        return result

    def quiet(self, seconds: float = 0.2) -> bool:
        with suppress(queue.Empty):
            return not self.lines.get(timeout=seconds)
        return True

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def fake(*modes: str, era: str = "modern", met: bool = True, **options: Any) -> Iterator[Client]:
    """A client of a fake server; in the handshake era, after the handshake unless not yet `met`."""
    client = Client(fake_server(*modes, era=era, **options))
    client.modern = era != "handshake"
    try:
        if era == "handshake" and met:
            client.shake_hands()
        yield client
    finally:
        client.close()


def text(result: Json) -> str:
    said: str = result["content"][0]["text"]
    return said


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(") ", 1)[1][0] != "Z"


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# The well-behaved server, in both eras


@pytest.mark.parametrize("era", ERAS)
def test_tools_answer_and_echo_their_nonce(era: str) -> None:
    with fake(era=era) as client:
        assert client.call("echo", text="hé", nonce="n")["structuredContent"] == {"text": "hé", "nonce": "n"}
        assert text(client.call("add", a=1, b=2)) == "3"
        assert client.call("fail")["isError"] is True
        assert len(text(client.call("big", n=100_000))) == 100_000
        assert client.call("pid")["structuredContent"]["pid"] == client.process.pid
        assert "PATH" in json.loads(text(client.call("env")))
        assert client.ask("tools/call", {"name": "nothing"})["error"]["code"] == -32602
        assert client.ask("tools/call", {"name": "add"})["error"]["code"] == -32602
        assert client.ask("no/such")["error"]["code"] == -32601
        assert client.call("stats")["structuredContent"]["calls"]["echo"] == 1


@pytest.mark.parametrize("era", ERAS)
def test_sleep_holds_up_nobody_and_stops_when_cancelled(era: str) -> None:
    with fake(era=era) as client:
        slow = client.send_call("sleep", seconds=0.2, nonce="slow")
        assert text(client.call("echo", text="first")) == "first"
        late = client.message()
        assert (late["id"], late["result"]["structuredContent"]["nonce"]) == (slow, "slow")
        stopped = client.send_call("sleep", seconds=30)
        client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": stopped}})
        assert client.quiet()
        assert client.call("stats")["structuredContent"]["cancelled"] == [stopped]


@pytest.mark.parametrize("era", ERAS)
def test_progress_is_reported_for_the_token_of_the_request(era: str) -> None:
    with fake(era=era) as client:
        client.send_call("progress", {"progressToken": "p"}, n=2)
        reports = [client.message()["params"] for _ in range(2)]
        assert [(report["progressToken"], report["progress"]) for report in reports] == [("p", 1), ("p", 2)]
        assert text(client.message()["result"]) == "2 steps"


@pytest.mark.parametrize("era", ERAS)
def test_definitions_and_results_carry_fields_nobody_knows(era: str) -> None:
    with fake(era=era) as client:
        tool = client.ask("tools/list")["result"]["tools"][0]
        assert tool["annotations"]["category"] == "fake"
        assert tool["x-vendor"]["deep"] == [None, {"nothing": None}]
        result = client.call("unknown_fields")
        assert result["futureField"] == [None, 1.5]
        assert result["content"][1]["type"] == "video"
        assert result["content"][0]["x-vendor"]["nothing"] is None


@pytest.mark.parametrize("era", ERAS)
def test_prompts_resources_templates_and_completions(era: str) -> None:
    with fake(era=era) as client:
        assert client.ask("prompts/list")["result"]["prompts"][0]["name"] == "greet"
        prompt = client.ask("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}})["result"]
        assert "Ada" in prompt["messages"][0]["content"]["text"]
        assert len(client.ask("resources/list")["result"]["resources"]) == 2
        template = client.ask("resources/templates/list")["result"]["resourceTemplates"][0]
        assert template["uriTemplate"] == "fake://item/{id}"
        assert client.ask("resources/read", {"uri": "fake://item/7"})["result"]["contents"][0]["text"] == "item 7"
        missing = -32602 if era == "modern" else -32002
        assert client.ask("resources/read", {"uri": "fake://none"})["error"]["code"] == missing
        ref = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "a"}}
        assert client.ask("completion/complete", ref)["result"]["completion"]["values"] == ["ada", "alan"]


@pytest.mark.parametrize("era", ERAS)
def test_tools_come_in_pages(era: str) -> None:
    with fake(era=era, tools=30, page=10) as client:
        names: list[str] = []
        page: Json = {"nextCursor": "0"}
        while "nextCursor" in page:
            page = client.ask("tools/list", {"cursor": page["nextCursor"]})["result"]
            names += [tool["name"] for tool in page["tools"]]
            assert len(page["tools"]) <= 10
        assert len(names) == len(set(names)) > 30
        assert text(client.call("tool_0030", text="plain")) == "plain"


@pytest.mark.parametrize("era", ERAS)
def test_counter_leaves_one_durable_line_for_each_call(era: str, tmp_path: Path) -> None:
    file = tmp_path / "effects"
    with fake(era=era, effects=str(file)) as client:
        client.call("counter", call="c1", nonce="n1")
        assert client.call("counter", call="c2", nonce="n2")["structuredContent"]["count"] == 2
        client.send_call("bad", mode="exit_mid_call", effect=True, call="c3", nonce="n3")
        assert client.line() == b""
    assert file.read_text() == "c1\tn1\nc2\tn2\nc3\tn3\n"


@pytest.mark.parametrize("era", ERAS)
def test_crash_ends_the_process_with_its_code(era: str) -> None:
    with fake(era=era) as client:
        client.send_call("crash", code=7)
        assert client.process.wait(SOON) == 7


def test_it_ends_with_its_input() -> None:
    with fake() as client:
        client.call("echo")
        client.end_input()
        assert client.process.wait(SOON) == 0


def test_it_runs_as_a_module_too() -> None:
    command = [sys.executable, "-m", "toolway.testing.fake"]
    probe = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": META}})
    out = subprocess.run(command, input=probe + "\n", capture_output=True, text=True, check=True, timeout=20).stdout
    assert json.loads(out)["result"]["supportedVersions"] == ["2026-07-28"]
    listing = subprocess.run([*command, "--list-modes"], capture_output=True, text=True, check=True, timeout=20).stdout
    assert "exit_held_stdout" in listing
    wrong = subprocess.run([*command, "--mode", "nope"], capture_output=True, text=True, check=False, timeout=20)
    assert (wrong.returncode, "no mode 'nope'" in wrong.stderr) == (2, True)


# The modern era


def test_modern_results_carry_what_they_must() -> None:
    with fake(ttl=5000) as client:
        result = client.ask("server/discover")["result"]
        assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 5000, "private")
        assert result["_meta"][PREFIX + "serverInfo"]["name"] == "fake"
        assert client.call("echo")["resultType"] == "complete"
        assert "ttlMs" not in client.call("echo")


def test_modern_requests_must_say_who_asks() -> None:
    with fake() as client:
        client.write({"jsonrpc": "2.0", "id": "a", "method": "tools/list", "params": {}})
        assert client.message()["error"]["code"] == -32602
        refused = client.ask("tools/list", {"_meta": {PREFIX + "protocolVersion": "2030-01-01"}})["error"]
        assert (refused["code"], refused["data"]["supported"]) == (-32022, ["2026-07-28"])
        assert client.ask("ping")["error"]["code"] == -32601
        assert client.ask("initialize", {"protocolVersion": "2025-11-25"})["error"]["code"] == -32022


def test_modern_tools_ask_back_by_results_and_keep_nothing_between() -> None:
    with fake() as client:
        params: Json = {"name": "elicit", "arguments": {"rounds": 2, "nonce": "n"}}
        first = client.ask("tools/call", params)["result"]
        assert first["resultType"] == "input_required"
        assert first["inputRequests"]["ask-1"]["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"name": "Ada"}}
        retry = {**params, "inputResponses": {"ask-1": answer}, "requestState": first["requestState"]}
        second = client.ask("tools/call", retry)["result"]
        assert list(second["inputRequests"]) == ["ask-2"]
        final = {**params, "inputResponses": {"ask-2": answer}, "requestState": second["requestState"]}
        result = client.ask("tools/call", final)["result"]
        assert result["structuredContent"] == {"answers": [answer, answer], "nonce": "n"}
        altered = {**final, "requestState": "x" + final["requestState"]}
        for wrong in (altered, {**final, "arguments": {"rounds": 3}}, {**params, "inputResponses": {}}):
            assert client.ask("tools/call", wrong)["error"]["code"] == -32602
        asked_again = client.ask("tools/call", {**params, "requestState": first["requestState"]})["result"]
        assert list(asked_again["inputRequests"]) == ["ask-1"]


def test_modern_tools_do_not_ask_those_who_cannot_answer() -> None:
    with fake() as client:
        meta: Json = {PREFIX + "clientCapabilities": {}}
        refused = client.ask("tools/call", {"name": "sample", "arguments": {}, "_meta": meta})["error"]
        assert (refused["code"], refused["data"]) == (-32021, {"requiredCapabilities": {"sampling": {}}})


def test_listens_are_acknowledged_tagged_and_ended_by_cancelling() -> None:
    with fake() as client:
        listen = client.send("subscriptions/listen", {"notifications": {"toolsListChanged": True, "other": True}})
        acknowledged = client.message()
        tag = {PREFIX + "subscriptionId": listen}
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"] == {"notifications": {"toolsListChanged": True}, "_meta": tag}
        client.send_call("change_tools")
        changed = client.message()
        assert (changed["method"], changed["params"]["_meta"]) == ("notifications/tools/list_changed", tag)
        assert text(client.message()["result"]) == "extra_1"
        client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": listen}})
        time.sleep(0.1)
        assert text(client.call("change_tools")) == "extra_2"
        assert client.quiet()


# The handshake era


@pytest.mark.parametrize(
    ("offered", "agreed"), [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")]
)
def test_the_handshake_agrees_on_a_version(offered: str, agreed: str) -> None:
    with fake(era="handshake", met=False) as client:
        assert client.shake_hands(offered)["protocolVersion"] == agreed
        assert "resultType" not in client.call("echo")


def test_before_the_handshake_there_is_only_ping() -> None:
    with fake(era="handshake", met=False) as client:
        assert client.ask("ping")["result"] == {}
        assert client.ask("server/discover")["error"]["code"] == -32601
        client.send("tools/list")
        assert client.quiet()
        client.shake_hands()
        assert client.ask("tools/list")["result"]["tools"]


@pytest.mark.parametrize(
    ("tool", "method"),
    [("elicit", "elicitation/create"), ("sample", "sampling/createMessage"), ("roots", "roots/list")],
)
def test_handshake_tools_ask_in_the_middle_of_a_call(tool: str, method: str) -> None:
    with fake(era="handshake") as client:
        call = client.send_call(tool)
        question = client.message()
        assert question["method"] == method
        assert text(client.call("echo", text="meanwhile")) == "meanwhile"
        client.write({"jsonrpc": "2.0", "id": question["id"], "result": {"answer": 42}})
        answer = client.message()
        assert (answer["id"], json.loads(text(answer["result"]))) == (call, {"answer": 42})


def test_handshake_clients_are_told_of_changed_tools() -> None:
    with fake(era="handshake") as client:
        client.send_call("change_tools")
        assert client.message()["method"] == "notifications/tools/list_changed"
        client.message()
        assert client.ask("tools/list")["result"]["tools"][-1]["name"] == "extra_1"


def test_one_server_speaks_both_eras_at_once() -> None:
    with fake(era="both") as client:
        assert client.ask("server/discover")["result"]
        client.shake_hands()
        assert "resultType" not in client.call("echo")
        client.modern = True
        assert client.call("echo")["resultType"] == "complete"


def test_probes_can_go_unanswered_or_kill() -> None:
    with fake(era="both", silent_probe=True) as client:
        client.send("server/discover")
        assert client.quiet()
        assert client.shake_hands()
    with fake(era="both", die_on_probe=True) as client:
        client.send("server/discover")
        assert client.process.wait(SOON) == 1


# Bad answers


@pytest.mark.parametrize(
    ("mode", "shows"),
    [
        ("bom", b"\xef\xbb\xbf{"),
        ("nul", b"\x00"),
        ("bad_utf8=inside", b"\xe9"),
        ("deep=500", b"[" * 500 + b"]" * 500),
        ("duplicate_keys", b'"spoiled":1,"spoiled":2'),
        ("nan", b":NaN"),
        ("huge_number", b":1e400"),
        ("huge_keys=12000", b'"k11999":0'),
        ("foreign_id_type", b'"id":"1"'),
        ("no_newline_prefix", b'done. {"jsonrpc"'),
        ("result_not_object", b'"result":["done"]'),
        ("result_not_object=null", b'"result":null'),
        ("both_result_and_error", b'"error":'),
        ("unknown_result_type", b'"resultType":"telepathy"'),
        ("wrong_id", b'"id":987654321'),
    ],
)
def test_spoiled_answers_leave_their_neighbours_alone(mode: str, shows: bytes) -> None:
    with fake(mode) as client:
        client.send_call("bad", nonce="n")
        assert shows in client.line()
        assert text(client.call("echo", text="fine")) == "fine"


def test_truncated_answers_show_their_id_or_not() -> None:
    with fake("truncated", "truncated=noid;on=echo") as client:
        client.send_call("bad")
        line = client.line()
        assert b'"id":1,' in line and b'"result":' in line
        client.send_call("echo")
        assert b'"id"' not in client.line()
        client.send_call("add", a=1, b=1)
        assert client.message()["id"] == 3


def test_wrong_id_takes_that_of_another_call_in_flight() -> None:
    with fake() as client:
        other = client.send_call("sleep", seconds=10)
        client.send_call("bad", mode="wrong_id")
        assert client.message()["id"] == other


def test_garbage_surrounds_messages() -> None:
    with fake("garbage") as client:
        assert [client.line()[:6] for _ in range(3)] == [b"Server", b"\n", b"\x1b[32mI"]
        client.send_call("bad")
        assert [client.line()[:6] for _ in range(3)] == [b"Server", b"\n", b"\x1b[32mI"]
        assert client.message()["id"] == 1


def test_stray_bytes_twins_and_strangers() -> None:
    with fake() as client:
        client.send_call("bad", mode="bad_utf8=stray")
        assert client.line() == b"caf\xe9\n"
        assert client.message()["id"] == 1
        client.send_call("bad", mode="twice")
        assert client.line() == client.line()
        client.send_call("bad", mode="unknown_id")
        assert [client.message()["id"] for _ in range(3)] == [987654321, "nobody", 3]
        assert client.ask("tools/call", {"name": "bad", "arguments": {"mode": "nope"}})["error"]["code"] == -32602


def test_silence() -> None:
    with fake("never") as client:
        client.send_call("bad")
        assert text(client.call("echo", text="fine")) == "fine"
    with fake("silent") as client:
        client.send("server/discover")
        client.send_call("echo")
        assert client.quiet()
    with fake("half_line") as client:
        client.send_call("bad")
        client.send_call("echo")
        assert client.quiet()
        client.process.kill()
        assert client.line().startswith(b'{"jsonrpc"')


def test_long_lines() -> None:
    with fake("line_mb=2", "endless_line=8;on=echo") as client:
        client.send_call("bad")
        assert len(client.line()) > 2_000_000
        client.send_call("echo")
        assert client.quiet(0.5)
        client.process.kill()
        assert len(client.line()) > 8_000_000


def test_slow_lines() -> None:
    with fake("one_byte_per_second=0.002") as client:
        start = time.monotonic()
        client.send_call("bad")
        assert client.message()["id"] == 1
        assert time.monotonic() - start > 0.2


def test_floods_come_before_the_answer() -> None:
    with fake() as client:
        client.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        client.message()
        client.send_call("bad", mode="list_changed_flood=1200")
        notices = [client.message() for _ in range(1200)]
        assert {notice["params"]["_meta"][PREFIX + "subscriptionId"] for notice in notices} == {1}
        assert client.message()["id"] == 2
        client.send_call("bad", mode="progress_flood=600")
        assert {client.message()["params"]["progressToken"] for _ in range(600)} == {"nobody"}
        assert client.message()["id"] == 3


@pytest.mark.parametrize("era", ERAS)
def test_unasked_requests_tell_what_came_back(era: str) -> None:
    with fake("unasked_requests=0.3", era=era) as client:
        client.send_call("bad")
        asked = [client.message() for _ in range(3)]
        refusal = {"code": -32601, "message": "no"}
        client.write({"jsonrpc": "2.0", "id": asked[0]["id"], "error": refusal})
        replies = client.message()["result"]["structuredContent"]["replies"]
        assert replies["sampling/createMessage"]["error"] == refusal
        assert replies["roots/list"] is None


def test_bad_lists_of_tools() -> None:
    with fake("malformed_tool", "many_tools=1500") as client:
        tools = client.ask("tools/list")["result"]["tools"]
        assert len(tools) > 1500
        assert any(tool.get("inputSchema") is None for tool in tools)
        assert any("name" not in tool for tool in tools)
        assert any(len(tool.get("name", "")) > 128 for tool in tools)
    with fake("repeated_cursor") as client:
        for cursor in ({}, {"cursor": "again"}):
            assert client.ask("tools/list", cursor)["result"]["nextCursor"] == "again"


def test_modes_strike_where_and_as_often_as_they_are_told() -> None:
    with fake("never;on=tools/list;times=1", "twice;on=add,echo") as client:
        client.send("tools/list")
        assert client.ask("tools/list")["result"]["tools"]
        client.send_call("echo")
        assert client.line() == client.line()
        client.send_call("add", a=1, b=1)
        assert client.line() == client.line()
        assert text(client.call("bad")) == "well behaved"


# Bad processes


def test_starts_that_fail_or_take_long() -> None:
    with fake("exit_at_start=3") as client:
        assert client.process.wait(SOON) == 3
        assert client.line() == b""
        assert b"FAKE_TOKEN" in b"".join(client.stderr)
    with fake("slow_start=0.3") as client:
        start = time.monotonic()
        client.ask("server/discover")
        assert time.monotonic() - start > 0.25
    with fake("crash_every=0.2") as client:
        client.ask("server/discover")
        assert client.process.wait(SOON) == 1


def test_exits_in_the_middle_of_a_call() -> None:
    with fake("exit_mid_call=9") as client:
        client.send_call("bad")
        assert client.process.wait(SOON) == 9
    with fake("exit_held_stdout") as client:
        group = client.process.pid
        client.send_call("bad")
        assert client.process.wait(SOON) == 1
        assert client.quiet(), "stdout stays open"
        holder = _holder_of_stdout(client)
        assert holder != group
        kill(holder)
        assert client.line() == b""


def _holder_of_stdout(client: Client) -> int:
    assert client.process.stdout is not None
    pipe = os.readlink(f"/proc/self/fd/{client.process.stdout.fileno()}")
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if os.readlink(entry / "fd/1") == pipe:
                    return int(entry.name)
    raise AssertionError("nobody holds it")


def test_it_stops_reading() -> None:
    with fake("stops_reading") as client:
        client.call("bad")
        assert client.process.stdin is not None
        os.set_blocking(client.process.stdin.fileno(), False)
        with pytest.raises(BlockingIOError):
            for _ in range(100):
                os.write(client.process.stdin.fileno(), b"x" * 65536)


def test_it_closes_its_pipes_and_lives_on() -> None:
    with fake("closes_stdin") as client:
        client.call("bad")
        with pytest.raises(BrokenPipeError):
            for _ in range(50):
                client.send_call("echo")
                time.sleep(0.02)
        assert client.process.poll() is None
    with fake("closes_stdout") as client:
        client.send_call("bad")
        assert client.line() == b""
        client.send_call("echo")
        time.sleep(0.1)
        assert client.process.poll() is None


def test_it_floods_stderr() -> None:
    with fake("stderr_flood=2") as client:
        client.call("bad")
        deadline = time.monotonic() + SOON
        while (size := sum(map(len, client.stderr))) < 2_000_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert size == 2_000_000


def test_it_ignores_what_should_end_it() -> None:
    with fake("ignore_eof", "ignore_sigterm") as client:
        client.ask("server/discover")
        client.end_input()
        client.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            client.process.wait(0.3)


def test_it_stops_itself_until_it_is_continued() -> None:
    with fake("sigstop") as client:
        client.send_call("bad")
        client.send_call("echo")
        assert client.quiet()
        client.process.send_signal(signal.SIGCONT)
        assert [client.message()["id"], client.message()["id"]] == [1, 2]


def test_it_leaves_children_behind() -> None:
    with fake("leaves_child", "leaves_setsid") as client:
        child, daemon = client.call("pid")["structuredContent"]["children"]
        try:
            assert os.getpgid(child) == os.getpgid(client.process.pid)
            assert os.getsid(daemon) != os.getsid(client.process.pid)
            client.end_input()
            assert client.process.wait(SOON) == 0
            os.kill(daemon, signal.SIGTERM)
            time.sleep(0.1)
            assert alive(child) and alive(daemon)
        finally:
            kill(child, daemon)


def test_spawn_children_says_their_pids() -> None:
    with fake() as client:
        facts = client.call("spawn_children")["structuredContent"]
        assert alive(facts["child"]) and alive(facts["daemon"])
        assert client.call("pid")["structuredContent"]["children"] == [facts["child"], facts["daemon"]]
        kill(facts["child"], facts["daemon"])


def test_it_leaves_zombies() -> None:
    with fake("zombies=2") as client:
        zombies = client.call("bad")["structuredContent"]["zombies"]
        time.sleep(0.2)
        assert len(zombies) == 2
        assert all(Path(f"/proc/{pid}").exists() and not alive(pid) for pid in zombies)
