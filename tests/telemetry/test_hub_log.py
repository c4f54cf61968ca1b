"""Log of a hub in a library: calls, retries, servers."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.program import until
from toolway import CallError, Effect, Hub, OutcomeUnknown, RetryPolicy, Server, ToolSettings
from toolway.testing import FakeHttp, fake_server

pytestmark = pytest.mark.anyio
FAST = RetryPolicy(max_attempts=3, initial_backoff=0.01, max_backoff=0.01)


def lines(caplog: pytest.LogCaptureFixture, name: str, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if (each.name, each.levelno) == (name, level)]


@pytest.mark.user_trial("11")
@pytest.mark.promise("A21", "B26")
async def test_each_failed_attempt_and_restart_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with FakeHttp(modes=["reset_before_response;times=2"]) as server:
        entry = Server(url=server.url, retry=FAST, tools={"bad": ToolSettings(effect=Effect.READ)})
        async with Hub({"s": entry, "p": fake_server()}) as hub:
            await hub.call_tool("s.bad")
            await hub.wait_ready("p")
            hub.restart_server("p")
            await until(lambda: any("restart" in line for line in lines(caplog, "toolway.servers", logging.INFO)), 10)
            await hub.wait_ready("p")
            status = hub.status()["p"]
    first, second = lines(caplog, "toolway.calls", logging.INFO)
    assert first.startswith("s.bad: attempt 1 of 3 failed: ") and first.endswith(" s") and "; next in 0.0" in first
    assert second.startswith("s.bad: attempt 2 of 3 failed: ")
    assert "p: disconnected, restarting: restart requested" in lines(caplog, "toolway.servers", logging.INFO)
    assert lines(caplog, "toolway.servers", logging.WARNING) == []  # a requested restart is not a failure
    assert status.why.endswith("; restarted on request") and status.last_error is None


@pytest.mark.promise("B26")
async def test_each_call_is_logged_at_debug_without_arguments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Hub({"s": fake_server()}) as hub:
        await hub.call_tool("s.echo", {"text": "canary"})
        with pytest.raises(CallError):
            await hub.call_tool("s.nothing")
    begun, ended, *_ = lines(caplog, "toolway.calls", logging.DEBUG)
    assert begun.endswith("of s.echo started") and "of s.echo ended: ok, " in ended and "executed: yes" in ended
    assert any(
        "s.nothing ended: not run [E-NOT-FOUND]" in line for line in lines(caplog, "toolway.calls", logging.DEBUG)
    )
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("toolway")]
    assert not any("canary" in line for line in ours)


async def test_calls_are_not_observed_if_debug_log_is_off() -> None:
    async with Hub({"s": fake_server()}) as hub:
        assert not hub._core.instrumentation.enabled


@pytest.mark.promise("B26")
async def test_server_failures_and_unknown_outcomes_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    entry = {**fake_server("exit_mid_call"), "env": {"API_TOKEN": "canary-secret-1"}}
    missing = {"command": "no-such-program-canary-secret-1", "maxRestarts": 1}
    async with Hub({"s": entry, "gone": missing}) as hub:
        with pytest.raises(OutcomeUnknown):
            await hub.call_tool("s.bad")
        with pytest.raises(CallError):
            await hub.call_tool("gone.x")
    [line] = lines(caplog, "toolway.calls", logging.WARNING)
    assert line.startswith("s.bad may have run; check before you retry: ")
    servers = lines(caplog, "toolway.servers", logging.WARNING)
    assert any(line.startswith("gone: ") for line in servers)
    assert "canary-secret-1" not in caplog.text


def test_unconfigured_logging_prints_nothing_to_stderr(tmp_path: Path) -> None:
    source = """
from toolway import CallError, SyncHub
with SyncHub({"gone": "no-such-program"}) as hub:
    try:
        hub.call_tool("gone.x")
    except CallError as error:
        print(error.code)
"""
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (found.stdout, found.stderr) == ("E-STDIO-ENOENT\n", "")
