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
from toolway.errors import Certainty
from toolway.events import AuditFailed, AuditResumed, CallFinished, CallRecovered, Connected, StateChanged
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.telemetry import alerts as module
from toolway.telemetry.alerts import Alert, AlertFileSink
from toolway.telemetry.webhook import Webhook
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
ALERT = Alert("given-up", "github was given up", "exit code 1", "toolway status github", "github", at=1e9)


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


@asynccontextmanager
async def alert_files(folder: Path, hint: str = "", sent: list[Alert] | None = None) -> AsyncIterator[AlertFileSink]:
    made = AlertFileSink(
        folder,
        mask=lambda text: text.replace("canary", "***"),
        hint_for=lambda server: hint,
        notify=sent.append if sent is not None else lambda alert: None,
    )
    made.start()
    yield made
    await made.close()


def names(folder: Path) -> list[str]:
    return sorted(file.name.partition("Z-")[2] for file in folder.glob("*.md"))


async def test_each_alert_is_one_readable_private_file(tmp_path: Path) -> None:
    folder, sent = tmp_path / "alerts", list[Alert]()
    async with alert_files(folder, sent=sent) as sink:
        sink.on_call(unknown())
        sink.on_call(unknown())
        sink.on_event(StateChanged("github", "starting", "failed", "failed too often: canary"))
        sink.on_event(CallRecovered("bank", "c2", "pay"))
        sink.on_event(AuditFailed("", "No space left on device"))
    assert names(folder) == [
        "audit.md",
        "given-up-github.md",
        "outcome-unknown-bank-c1.md",
        "outcome-unknown-bank-c2.md",
    ]
    text = next(folder.glob("*given-up*")).read_text()
    assert "canary" not in text and "toolway restart github" in text and "Delete this file" in text
    assert {file.stat().st_mode & 0o077 for file in folder.glob("*.md")} == {0}
    assert len(sent) == 4


async def test_reads_and_temporary_states_cause_no_alert(tmp_path: Path) -> None:
    async with alert_files(tmp_path) as sink:
        sink.on_call(unknown(effect="read"))
        sink.on_event(StateChanged("github", "ready", "backing_off", "exit code 1"))
        sink.on_event(Connected("github", "modern", "2026-07-28"))
    assert names(tmp_path) == []


async def test_a_login_alert_is_resolved_when_the_server_connects(tmp_path: Path) -> None:
    async with alert_files(tmp_path, hint="toolway login github") as sink:
        sink.on_event(StateChanged("github", "starting", "backing_off", "HTTP 401"))
        await sink._queue.join()
        assert names(tmp_path) == ["login-needed-github.md"]
        sink.on_event(Connected("github", "modern", "2026-07-28"))
    assert names(tmp_path) == []
    assert names(tmp_path / "settled") == ["login-needed-github.md"]


async def test_an_audit_alert_is_resolved_when_the_log_is_writable_again(tmp_path: Path) -> None:
    async with alert_files(tmp_path) as sink:
        sink.on_event(AuditFailed("", "disk"))
        sink.on_event(AuditResumed("", 0))
    assert names(tmp_path) == []


async def test_the_number_of_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ALERTS", 5)
    async with alert_files(tmp_path) as sink:
        for number in range(9):
            sink.on_call(unknown(f"c{number}"))
    assert len(names(tmp_path)) == 5
    assert (tmp_path / module.OVERFLOW_FILE).read_text().startswith("4 more")


async def test_a_hostile_name_stays_in_the_folder(tmp_path: Path) -> None:
    async with alert_files(tmp_path / "in") as sink:
        sink.on_event(CallRecovered("../../out", "../x\0y\n", "p"))
    [file] = (tmp_path / "in").iterdir()
    assert set(file.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-TZ.")
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


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
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
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
async def test_a_webhook_gets_alerts_and_is_retried_if_that_may_help(statuses: tuple[int, ...], lost: int) -> None:
    hook = Hook(*statuses)
    async with hook.served() as url:
        made = Webhook(url, {"x-key": "k"}, PUBLIC_ONLY, initial_backoff=0.01)
        made.start()
        made.enqueue(ALERT)
        await until(lambda: not hook._statuses, 10)
        await asyncio.sleep(0.1)
        await made.close()
    assert len(hook.got) == len(statuses) and made.dropped == lost
    assert hook.got[0]["kind"] == "given-up" and "github was given up" in hook.got[0]["text"]
    parts = [hook.got[0][name] for name in ("message", "detail", "hint")]
    assert parts == ["github was given up", "exit code 1", "toolway status github"]
    assert "x-key: k" in hook.heads[0].lower()


async def test_a_webhook_name_with_a_private_address_is_not_contacted(caplog: pytest.LogCaptureFixture) -> None:
    made = Webhook(
        "http://hooks.example/secret-path", {}, NetworkPolicy(lookup=lambda host: ["10.0.0.1"]), initial_backoff=0.01
    )
    made.start()
    made.enqueue(ALERT)
    await until(lambda: made.dropped == 1, 10)
    await made.close()
    assert "hooks.example" in caplog.text and "secret-path" not in caplog.text


# -- gateway ----------------------------------------------------------------------------------------------------------


async def test_a_gateway_writes_alerts_and_calls_the_webhook(tmp_path: Path) -> None:
    hook = Hook(*[200] * 20)
    async with hook.served() as url:
        servers = {"good": fake_server()}
        block = {"audit": True, "alerts": {"webhook": url}}
        async with program(tmp_path / "gateway", servers, **block) as run:
            folder = tmp_path / "gateway" / "state" / "alerts"
            run.write({**servers, "bad": {"command": "false", "maxRestarts": 1}}, **block)
            run.signal(signal.SIGHUP)
            await until(lambda: names(folder) == ["given-up-bad.md"], 30)
            await until(lambda: hook.got, 10)
            assert await run.stop() == 0
    assert hook.got[0]["server"] == "bad"
    assert os.stat(folder).st_mode & 0o077 == 0
