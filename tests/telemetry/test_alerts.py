"""Alerts: files and a webhook."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import program, until
from toolway import AccessDenied, AlertSettings, CallError, CallTimeout, Hub, Overloaded, Server, SyncHub
from toolway.cluster.db.integrity import Integrity
from toolway.errors import Certainty
from toolway.events import (
    AccessEvent,
    Alert,
    AlertResolved,
    AuditFailed,
    AuditResumed,
    CallFinished,
    CallRecovered,
    ClusterDatabaseAccepted,
    ClusterDatabaseRefused,
    Connected,
    Event,
    StateChanged,
)
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.telemetry import alerts as module
from toolway.telemetry.alerts import AlertDelivery, AlertDetector
from toolway.telemetry.webhook import Webhook
from toolway.testing import FakeHttp, fake_server

pytestmark = pytest.mark.anyio
ALERT = Alert("github", "server-down", "github was given up", "exit code 1", "toolway show github", at=1e9)


def finished(outcome: str = "ok", tool: str = "pay", **more: Any) -> CallFinished:
    return CallFinished("bank", "tools/call", f"bank.{tool}", outcome, "no", 1.0, tool=tool, **more)


def unknown(id_: str = "c1", effect: str = "unsafe") -> CallFinished:
    certainty = Certainty.UNKNOWN
    return CallFinished(
        "bank",
        "tools/call",
        "bank.pay",
        "E-OUTCOME-UNKNOWN",
        "unknown",
        1.0,
        id_,
        "pay",
        certainty=certainty,
        effect=effect,
    )


class Detector(AlertDetector):
    """Detector with a clock that the test sets, and the events that it emitted."""

    def __init__(self) -> None:
        self.time = 1e9
        self.emitted: list[Event] = []
        super().__init__(
            self.emitted.append, lambda text: text.replace("canary", "***"), now=lambda: self.time, for_library=False
        )

    @property
    def kinds(self) -> list[str]:
        return [event.kind if isinstance(event, Alert) else "resolved" for event in self.emitted]


@asynccontextmanager
async def alert_files(folder: Path) -> AsyncIterator[AlertDetector]:
    """Yield a detector whose alerts become files in `folder`."""
    delivery = AlertDelivery(AlertSettings(str(folder)), PUBLIC_ONLY)
    detector = AlertDetector(delivery.on_event, lambda text: text.replace("canary", "***"))
    for key, at in await delivery.start():
        detector.add_known(key, at)
    yield detector
    await delivery.close()


def names(folder: Path) -> list[str]:
    return sorted(file.name.partition("Z-")[2] for file in folder.glob("*.md"))


# -- detection --------------------------------------------------------------------------------------------------------


def test_cause_is_reported_once_a_day_until_resolved() -> None:
    sink = Detector()
    rejected = finished("E-AUTH-TOKEN", hint="renew the token in headers.Authorization of its entry")
    for _ in range(3):
        sink.on_call(rejected)
        sink.on_call(finished("E-AUTH-TOKEN", tool="balance"))
    assert sink.kinds == ["token-rejected"]
    sink.time += module.REPEAT_INTERVAL_S
    sink.on_call(rejected)
    assert sink.kinds == ["token-rejected"] * 2
    sink.on_call(finished(tool="rates"))  # a tool that works without a token proves nothing
    sink.on_call(finished("tool_error"))
    sink.on_call(rejected)
    assert sink.kinds == ["token-rejected", "token-rejected", "resolved", "token-rejected"]


def test_each_cause_has_its_fix() -> None:
    sink = Detector()
    sink.on_call(finished("E-AUTH-LOGIN", hint="toolway login bank"))
    sink.on_call(finished("E-AUTH-TOKEN", hint="renew the token", detail="canary"))
    sink.on_call(finished("E-HTTP-STATUS", retry_after=7 * 3600))
    sink.on_call(finished("E-HTTP-STATUS", tool="other", retry_after=60))
    sink.on_event(StateChanged("bank", "starting", "failed", "exit code 1", "E-STDIO-EXIT", "install it"))
    alerts = [event for event in sink.emitted if isinstance(event, Alert)]
    assert [(alert.kind, alert.hint) for alert in alerts] == [
        ("login-needed", "toolway login bank"),
        ("token-rejected", "renew the token, then restart the server: toolway restart bank"),
        ("rate-limited", "call it less often, or raise the limit of your account at the service"),
        ("server-down", "install it, then restart the server: toolway restart bank"),
    ]
    assert alerts[1].detail == "***" and alerts[2].message == "bank asked us to pause for 7 hours"


@pytest.mark.parametrize(
    "end",
    [Connected("bank", "modern", "2026-07-28"), AccessEvent("bank", "login"), finished()],
    ids=["connected", "login", "call"],
)
def test_login_alert_closes_when_server_accepts_calls(end: Event) -> None:
    sink = Detector()
    sink.on_call(finished("E-AUTH-LOGIN"))
    if isinstance(end, CallFinished):
        sink.on_call(end)
    else:
        sink.on_event(end)
    assert sink.emitted[1:] == [AlertResolved("bank", "login-needed-bank")]


def test_changed_cluster_database_alerts_until_accepted() -> None:
    sink = Detector()
    sink.on_event(ClusterDatabaseRefused("", "api_keys 'k' is refused: canary"))
    sink.on_event(ClusterDatabaseRefused("", "nodes 'n' is refused: no valid signature"))
    [alert] = sink.emitted
    assert isinstance(alert, Alert) and alert.kind == "cluster-database" and "***" in alert.detail
    sink.on_event(ClusterDatabaseAccepted(""))
    assert sink.emitted[1:] == [AlertResolved("", "cluster-database")]


def test_end_of_all_database_findings_is_reported_once() -> None:
    found: list[str] = []
    integrity = Integrity(b"k" * 32, found.append)
    integrity.on_resolved = lambda: found.append("resolved")
    integrity.report("nodes", [])
    integrity.report("nodes", ["a"])
    integrity.report("keys", ["b"])
    integrity.report("nodes", [])
    assert len(found) == 2
    integrity.report("keys", [])
    integrity.report("keys", [])
    assert found[2:] == ["resolved"]


def test_reads_and_temporary_states_raise_no_alert() -> None:
    sink = Detector()
    sink.on_call(unknown(effect="read"))
    sink.on_event(StateChanged("github", "ready", "backing_off", "exit code 1"))
    sink.on_event(Connected("github", "modern", "2026-07-28"))
    assert sink.emitted == []


def test_remembered_causes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN_ALERTS", 5)
    sink = Detector()
    for number in range(9):
        sink.on_call(unknown(f"c{number}"))
    assert len(sink._open) == 5 and len(sink.emitted) == 9


# -- files ------------------------------------------------------------------------------------------------------------


async def test_each_alert_is_one_readable_private_file(tmp_path: Path) -> None:
    folder = tmp_path / "alerts"
    async with alert_files(folder) as sink:
        sink.on_call(unknown())
        sink.on_call(unknown())
        sink.on_event(StateChanged("github", "starting", "failed", "failed too often: canary"))
        sink.on_event(CallRecovered("bank", "c2", "pay"))
        sink.on_event(AuditFailed("", "No space left on device"))
    assert names(folder) == [
        "audit.md",
        "outcome-unknown-bank-c1.md",
        "outcome-unknown-bank-c2.md",
        "server-down-github.md",
    ]
    text = next(folder.glob("*server-down*")).read_text()
    assert "canary" not in text and "toolway restart github" in text and "Delete this file" in text
    assert {file.stat().st_mode & 0o077 for file in folder.glob("*.md")} == {0}


async def test_alert_of_earlier_run_is_not_repeated_and_is_settled(tmp_path: Path) -> None:
    failed = StateChanged("github", "starting", "failed", "exit code 1")
    async with alert_files(tmp_path) as sink:
        sink.on_event(failed)
    written = names(tmp_path)
    async with alert_files(tmp_path) as sink:
        sink.on_event(failed)
    assert names(tmp_path) == written == ["server-down-github.md"]
    async with alert_files(tmp_path) as sink:
        sink.on_event(Connected("github", "modern", "2026-07-28"))
    assert names(tmp_path) == [] and names(tmp_path / "settled") == written


async def test_old_file_of_the_same_cause_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "20200101T000000Z-server-down-github.md").write_text("old")
    async with alert_files(tmp_path) as sink:
        sink.on_event(StateChanged("github", "starting", "failed", "exit code 1"))
    assert names(tmp_path) == ["server-down-github.md"]
    assert not (tmp_path / "20200101T000000Z-server-down-github.md").exists()


async def test_login_alert_is_resolved_when_server_connects(tmp_path: Path) -> None:
    async with alert_files(tmp_path) as sink:
        sink.on_event(StateChanged("github", "starting", "backing_off", "HTTP 401", "E-AUTH-LOGIN"))
        await until(lambda: names(tmp_path) == ["login-needed-github.md"], 10)
        sink.on_event(Connected("github", "modern", "2026-07-28"))
    assert names(tmp_path) == []
    assert names(tmp_path / "settled") == ["login-needed-github.md"]


async def test_audit_alert_is_resolved_when_log_is_writable_again(tmp_path: Path) -> None:
    async with alert_files(tmp_path) as sink:
        sink.on_event(AuditFailed("", "disk"))
        sink.on_event(AuditResumed("", 0))
    assert names(tmp_path) == []


async def test_alert_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ALERTS", 5)
    async with alert_files(tmp_path) as sink:
        for number in range(9):
            sink.on_call(unknown(f"c{number}"))
    assert len(names(tmp_path)) == 5
    assert (tmp_path / module.OVERFLOW_FILE).read_text().startswith("4 more")


async def test_hostile_name_stays_in_the_folder(tmp_path: Path) -> None:
    async with alert_files(tmp_path / "in") as sink:
        sink.on_event(CallRecovered("../../out", "../x\0y\n", "p"))
    [file] = (tmp_path / "in").iterdir()
    assert set(file.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-TZ.")
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


# -- library ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C6")
@pytest.mark.parametrize(("status", "fix"), [(401, "renew it"), (403, "lacks a permission")])
async def test_rejected_entry_token_is_named_and_alerted(tmp_path: Path, status: int, fix: str) -> None:
    async with FakeHttp(modes=[f"status={status}"]) as server:
        entry = Server(url=server.url, headers={"Authorization": "Bearer expired-canary-token"})
        async with Hub({"social": entry}, alerts=tmp_path) as hub:
            errors = await asyncio.gather(*[hub.call_tool("social.bad") for _ in range(3)], return_exceptions=True)
    error = errors[0]
    assert isinstance(error, AccessDenied)
    assert (error.code, error.executed, error.attempts) == ("E-AUTH-TOKEN", "no", 1)
    assert "headers.Authorization" in error.hint and fix in error.hint
    assert names(tmp_path) == ["token-rejected-social.md"]
    text = next(tmp_path.glob("*.md")).read_text()
    assert fix in text and 'hub.restart_server("social")' in text and "canary" not in text
    assert server.stats.requests["tools/call"] == 3  # no attempt was repeated


@pytest.mark.promise("C6")
async def test_token_rejected_at_start_is_alerted(tmp_path: Path) -> None:
    hook = Hook(*[401] * 50)
    async with (
        hook.served() as url,
        Hub({"social": Server(url=url, headers={"authorization": "k"})}, alerts=tmp_path) as hub,
    ):
        with pytest.raises(AccessDenied) as caught:
            await hub.call_tool("social.post")
        await until(lambda: names(tmp_path) == ["token-rejected-social.md"], 10)
    assert "headers.authorization" in caught.value.hint


@pytest.mark.promise("C8")
async def test_hanging_call_is_alerted_in_the_library(tmp_path: Path) -> None:
    seen: list[Alert] = []
    async with Hub({"bank": fake_server("never")}, alerts=AlertSettings(str(tmp_path))) as hub:
        events = hub.events(Alert)
        await hub.wait_ready("bank")
        with pytest.raises(CallTimeout) as caught:
            await hub.call_tool("bank.bad", timeout=0.5)
        seen.append(await asyncio.wait_for(anext(events), 10))  # type: ignore[arg-type]
    assert caught.value.executed == "unknown"
    assert seen[0].kind == "outcome-unknown" and seen[0].tool == "bad" and "check on the server" in seen[0].hint
    assert names(tmp_path) == [f"outcome-unknown-bank-{seen[0].call}.md"]


async def test_retry_delay_of_failed_server_is_not_a_rate_limit(tmp_path: Path) -> None:
    entry = {"command": "no-such-program", "maxRestarts": 0}
    async with Hub({"gone": entry}, alerts=tmp_path) as hub:
        for _ in range(2):
            with pytest.raises(CallError) as caught:
                await hub.call_tool("gone.x")
            await until(lambda: names(tmp_path) == ["server-down-gone.md"], 20)
            assert caught.value.executed == "no"
        assert (hub.status()["gone"].next_retry or 0) >= 100
    assert names(tmp_path) == ["server-down-gone.md"]


async def test_long_rate_limit_is_alerted_by_default() -> None:
    async with FakeHttp(modes=["status=429;retry_after=7200"]) as server, Hub({"api": server.url}) as hub:
        events = hub.events(Alert)
        with pytest.raises(Overloaded):
            await hub.call_tool("api.bad")
        alert = await asyncio.wait_for(anext(events), 10)
    assert isinstance(alert, Alert) and alert.kind == "rate-limited" and alert.message.endswith("for 2 hours")


def test_sync_hub_writes_alert_files(tmp_path: Path) -> None:
    with SyncHub({"bank": fake_server("never")}, alerts=tmp_path) as hub:
        hub.wait_ready("bank")
        with pytest.raises(CallTimeout):
            hub.call_tool("bank.bad", timeout=0.5)
    assert len(names(tmp_path)) == 1


async def test_webhook_gets_alerts_before_hub_closes() -> None:
    hook = Hook(200)
    async with hook.served() as url:
        async with Hub({"bank": fake_server("never")}, alerts=url) as hub:
            await hub.wait_ready("bank")
            with pytest.raises(CallTimeout):
                await hub.call_tool("bank.bad", timeout=0.5)
        assert [got["kind"] for got in hook.got] == ["outcome-unknown"]


# -- webhook ----------------------------------------------------------------------------------------------------------


class Hook:
    """HTTP server that replies with these statuses, one after the other, and records the requests."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.got: list[dict[str, Any]] = []
        self.heads: list[str] = []

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/secret-path"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:  # the client closed a connection that it no longer needed
            writer.close()
            return
        length = int(next(line.split(":")[1] for line in head.lower().splitlines() if "content-length" in line))
        self.heads.append(head)
        self.got.append(json.loads(await reader.readexactly(length)))
        status = self._statuses.pop(0)
        more = "location: http://127.0.0.1:1/\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{more}content-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@pytest.mark.parametrize(
    ("statuses", "lost"), [((204,), 0), ((503, 429, 200), 0), ((500,) * 5, 1), ((404,), 1), ((302,), 1)]
)
async def test_webhook_is_retried_on_temporary_errors(statuses: tuple[int, ...], lost: int) -> None:
    hook = Hook(*statuses)
    async with hook.served() as url:
        made = Webhook(url, {"x-key": "k"}, PUBLIC_ONLY, initial_backoff=0.01)
        made.start()
        made.enqueue(ALERT)
        await until(lambda: not hook._statuses, 10)
        await asyncio.sleep(0.1)
        await made.close()
    assert len(hook.got) == len(statuses) and made.dropped == lost
    assert hook.got[0]["kind"] == "server-down" and "github was given up" in hook.got[0]["text"]
    parts = [hook.got[0][name] for name in ("message", "detail", "hint")]
    assert parts == ["github was given up", "exit code 1", "toolway show github"]
    assert "x-key: k" in hook.heads[0].lower()


async def test_webhook_with_private_address_is_not_contacted(caplog: pytest.LogCaptureFixture) -> None:
    made = Webhook(
        "http://hooks.example/secret-path", {}, NetworkPolicy(lookup=lambda host: ["10.0.0.1"]), initial_backoff=0.01
    )
    made.start()
    made.enqueue(ALERT)
    await until(lambda: made.dropped == 1, 10)
    await made.close()
    assert "hooks.example" in caplog.text and "secret-path" not in caplog.text


# -- gateway ----------------------------------------------------------------------------------------------------------


async def test_gateway_writes_alerts_and_calls_webhook(tmp_path: Path) -> None:
    hook = Hook(*[200] * 20)
    async with hook.served() as url:
        servers = {"good": fake_server()}
        block = {"audit": True, "alerts": {"webhook": url}}
        async with program(tmp_path / "gateway", servers, **block) as run:
            folder = tmp_path / "gateway" / "state" / "alerts"
            run.write({**servers, "bad": {"command": "false", "maxRestarts": 1}}, **block)
            run.signal(signal.SIGHUP)
            await until(lambda: names(folder) == ["server-down-bad.md"], 30)
            await until(lambda: hook.got, 10)
            assert await run.stop() == 0
    assert hook.got[0]["server"] == "bad"
    assert os.stat(folder).st_mode & 0o077 == 0
