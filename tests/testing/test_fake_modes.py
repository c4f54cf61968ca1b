"""Each mode of the fake stdio server does what it says, and no more."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.testing.pipe import ERAS, PREFIX, SOON, Client, fake, text
from toolway.testing import http_faults, stdio_faults
from toolway.testing.faults import FaultMode


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
def test_invalid_responses_do_not_affect_others(mode: str, shows: bytes) -> None:
    with fake(mode) as client:
        client.send_call("bad", nonce="n")
        assert shows in client.line()
        assert text(client.call("echo", text="fine")) == "fine"


def test_truncated_responses_have_an_id_or_not() -> None:
    with fake("truncated", "truncated=noid;on=echo") as client:
        client.send_call("bad")
        line = client.line()
        assert b'"id":1,"result":' in line
        assert not line.endswith(b"}\n")
        client.send_call("echo")
        assert b'"id"' not in client.line()
        client.send_call("add", a=1, b=1)
        assert client.message()["id"] == 3


def test_wrong_id_is_that_of_another_running_call() -> None:
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


def test_stray_bytes_duplicates_and_unknown_ids() -> None:
    with fake() as client:
        client.send_call("bad", mode="bad_utf8=stray")
        assert client.line() == b"caf\xe9\n"
        assert client.message()["id"] == 1
        client.send_call("bad", mode="twice")
        assert client.line() == client.line()
        client.send_call("bad", mode="unknown_id")
        assert [client.message()["id"] for _ in range(3)] == [987654321, "unknown", 3]
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
        client.end_input()  # it has read everything by the time it ends
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


def test_floods_come_before_the_response() -> None:
    with fake() as client:
        client.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        client.message()
        client.send_call("bad", mode="list_changed_flood=1200")
        notices = [client.message() for _ in range(1200)]
        assert {notice["params"]["_meta"][PREFIX + "subscriptionId"] for notice in notices} == {1}
        assert client.message()["id"] == 2
        client.send_call("bad", mode="progress_flood=600")
        assert {client.message()["params"]["progressToken"] for _ in range(600)} == {"unknown"}
        assert client.message()["id"] == 3


@pytest.mark.parametrize("era", ERAS)
def test_unasked_requests_report_the_replies(era: str) -> None:
    with fake("unasked_requests=0.3", era=era) as client:
        client.send_call("bad")
        asked = [client.message() for _ in range(3)]
        refusal = {"code": -32601, "message": "no"}
        client.write({"jsonrpc": "2.0", "id": asked[0]["id"], "error": refusal})
        replies = client.message()["result"]["structuredContent"]["replies"]
        assert replies["sampling/createMessage"]["error"] == refusal
        assert replies["roots/list"] is None


def test_bad_tool_lists() -> None:
    with fake("malformed_tool", "many_tools=1500") as client:
        tools = client.ask("tools/list")["result"]["tools"]
        assert len(tools) > 1500
        assert any(tool.get("inputSchema") is None for tool in tools)
        assert any("name" not in tool for tool in tools)
        assert any(len(tool.get("name", "")) > 128 for tool in tools)
    with fake("repeated_cursor") as client:
        for cursor in ({}, {"cursor": "again"}):
            assert client.ask("tools/list", cursor)["result"]["nextCursor"] == "again"


def test_modes_apply_to_their_tools_and_times() -> None:
    with fake("never;on=tools/list;times=1", "twice;on=add,echo") as client:
        client.send("tools/list")
        assert client.ask("tools/list")["result"]["tools"]
        client.send_call("echo")
        assert client.line() == client.line()
        client.send_call("add", a=1, b=1)
        assert client.line() == client.line()
        assert text(client.call("bad")) == "well behaved"


# Bad processes


def test_failing_or_slow_starts() -> None:
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


def test_exits_during_a_call() -> None:
    with fake("exit_mid_call=9") as client:
        client.send_call("bad")
        assert client.process.wait(SOON) == 9
    with fake("exit_held_stdout") as client:
        client.send_call("bad")
        assert client.process.wait(SOON) == 1
        assert client.lines.empty()  # not even the end
        kill(_holder_of_stdout(client))
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


def test_server_stops_reading() -> None:
    with fake("stops_reading") as client:
        client.call("bad")
        assert client.process.stdin is not None
        os.set_blocking(client.process.stdin.fileno(), False)
        with pytest.raises(BlockingIOError):
            _write(client, 100)


def _write(client: Client, blocks: int) -> None:
    assert client.process.stdin is not None
    for _ in range(blocks):
        os.write(client.process.stdin.fileno(), b"x" * 65536)


def test_server_closes_its_pipes_and_stays_alive() -> None:
    with fake("closes_stdin") as client:
        client.call("bad")
        time.sleep(0.1)
        with pytest.raises(BrokenPipeError):
            _write(client, 1)
        assert client.process.poll() is None
    with fake("closes_stdout") as client:
        client.send_call("bad")
        assert client.line() == b""
        client.send_call("echo")
        time.sleep(0.1)
        assert client.process.poll() is None


def test_server_floods_stderr() -> None:
    with fake("stderr_flood=2") as client:
        client.call("bad")
        deadline = time.monotonic() + SOON
        while (size := sum(map(len, client.stderr))) < 2_000_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert size == 2_000_000


def test_server_ignores_eof_and_sigterm() -> None:
    with fake("ignore_eof", "ignore_sigterm") as client:
        client.ask("server/discover")
        client.end_input()
        client.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            client.process.wait(0.3)


def _wait_stopped(pid: int) -> None:
    """A process that gets SIGCONT before it stops would never continue."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_server_stops_itself_until_continued() -> None:
    with fake("sigstop") as client:
        client.send_call("bad")
        client.send_call("echo")
        _wait_stopped(client.process.pid)
        assert client.quiet()
        client.process.send_signal(signal.SIGCONT)
        assert [client.message()["id"], client.message()["id"]] == [1, 2]


def test_server_leaves_children_behind() -> None:
    with fake("leaves_child", "leaves_setsid") as client:
        child, daemon = client.call("pid")["structuredContent"]["children"]
        try:
            assert os.getpgid(child) == os.getpgid(client.process.pid)
            assert os.getsid(daemon) != os.getsid(client.process.pid)
            client.end_input()
            assert client.process.wait(SOON) == 0
            os.kill(daemon, signal.SIGTERM)
            time.sleep(0.1)
            assert all(map(alive, (child, daemon)))
        finally:
            kill(child, daemon)


def test_spawn_children_returns_their_pids() -> None:
    with fake() as client:
        facts = client.call("spawn_children")["structuredContent"]
        spawned = [facts["child"], facts["daemon"]]
        assert all(map(alive, spawned))
        assert client.call("pid")["structuredContent"]["children"] == spawned
        kill(*spawned)


def test_server_leaves_zombies() -> None:
    with fake("zombies=2") as client:
        zombies = client.call("bad")["structuredContent"]["zombies"]
        assert len(zombies) == 2
        deadline = time.monotonic() + SOON
        while any(map(alive, zombies)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(Path(f"/proc/{pid}").exists() and not alive(pid) for pid in zombies)


@pytest.mark.parametrize("table", [stdio_faults.STDIO_FAULTS, http_faults.HTTP_FAULTS])
def test_every_mode_has_a_one_line_description(table: dict[str, FaultMode]) -> None:
    for mode in table.values():
        assert mode.doc.endswith(".")
        assert "\n" not in mode.doc
