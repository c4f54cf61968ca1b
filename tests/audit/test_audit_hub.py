"""Content of the audit log of a hub."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.audit.log_reader import calls, records
from toolway import Hub
from toolway.audit.log import load_redactor
from toolway.config.settings import AuditSettings
from toolway.errors import CallTimeout, ConfigError, NotFound, ServerUnavailable
from toolway.events import CallRecovered, Event
from toolway.secrets.detection import remember_secret
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.sqlite"


async def test_unsafe_call_has_an_intent_and_an_outcome(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.counter", {"nonce": "hello"})
    intent, outcome = calls(log)
    assert (intent["kind"], outcome["kind"]) == ("call.intent", "call.outcome")
    assert intent["call"] == outcome["call"] != ""
    assert (intent["server"], intent["tool"], intent["effect"]) == ("s", "counter", "unsafe")
    assert len(intent["definition"]) == 64
    assert intent["arguments"] == load_redactor(AuditSettings.from_location(log)).digest({"nonce": "hello"})
    assert (outcome["outcome"], outcome["certainty"], outcome["attempts"]) == ("ok", "C3", 1)
    assert "given" not in intent


async def test_read_has_only_an_outcome(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.echo", {"text": "x"})
        await hub.call_tool("s.fail", {}, raise_on_error=False)
        await hub.read_resource("fake://text", server="s")
        with pytest.raises(NotFound):
            await hub.call_tool("s.nonsense")
    found = [(each["kind"], each["tool"], each["outcome"], each.get("code", "")) for each in calls(log)]
    assert found == [
        ("call.outcome", "echo", "ok", ""),
        ("call.outcome", "fail", "tool_error", ""),
        ("call.outcome", "fake://text", "ok", ""),
        ("call.outcome", "nonsense", "rejected", "E-NOT-FOUND"),
    ]


async def test_call_is_not_sent_before_its_intent_is_on_disk(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = os.fdatasync

    def slow(file: int) -> None:
        if b'"call.intent"' in Path(os.readlink(f"/proc/self/fd/{file}")).read_bytes()[-2000:]:
            seen.append(len(effects.read_text().splitlines()) if effects.exists() else 0)
        real(file)

    effects = log.parent / "effects"
    monkeypatch.setattr(os, "fdatasync", slow)
    async with Hub({"s": fake_server(effects=str(effects))}, audit_log=log) as hub:
        for number in range(5):
            await hub.call_tool("s.counter", {"nonce": str(number)})
    assert seen[:1] == [0] and set(seen) >= {0, 1, 2, 3, 4}  # outcomes are synced too


class HeldDisk:
    """A disk on which intents are held back until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._released = threading.Event()
        self.writes = 0  # that began
        real = os.fdatasync

        def sync(file: int) -> None:
            if b'"call.intent"' in Path(os.readlink(f"/proc/self/fd/{file}")).read_bytes():
                self.writes += 1
                self._released.wait(30)
            real(file)

        monkeypatch.setattr(os, "fdatasync", sync)

    async def hold(self) -> None:
        """Wait until an intent is being written."""
        async with asyncio.timeout(30):
            while not self.writes:
                await asyncio.sleep(0.01)

    def release(self) -> None:
        self._released.set()


@pytest.mark.fast_path
async def test_fast_path_calls_have_intents_and_outcomes(log: Path) -> None:
    async with Hub({"s": fake_server(era="modern")}, audit_log=log) as hub:
        await hub.wait_ready()
        results = await asyncio.gather(*(hub.call_tool("s.counter", {"nonce": str(n)}) for n in range(20)))
        flights = hub._core.calls.flights
        assert (len(results), flights.landed + flights.taken_over) == (20, 20)  # on a slow disk some are taken over
    found = calls(log)
    intents = [each["call"] for each in found if each["kind"] == "call.intent"]
    outcomes = {each["call"]: each for each in found if each["kind"] == "call.outcome"}
    assert (len(found), len(intents)) == (40, 20)
    assert {(each["outcome"], each["certainty"], each["attempts"]) for each in outcomes.values()} == {("ok", "C3", 1)}
    assert outcomes.keys() == set(intents)


@pytest.mark.parametrize(
    "waits", ["shortly", pytest.param("until the pipeline has taken over", marks=pytest.mark.fast_path)]
)
async def test_call_is_not_sent_while_its_intent_is_written(
    log: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    effects, disk = log.parent / "effects", HeldDisk(monkeypatch)
    async with Hub({"s": fake_server(era="modern", effects=str(effects))}, audit_log=log) as hub:
        await hub.wait_ready()
        limiter, flights = hub._core.servers.upstreams.limiters.get("s"), hub._core.calls.flights
        assert limiter is not None
        left, stays = (asyncio.create_task(hub.call_tool("s.counter", {"nonce": nonce})) for nonce in ("left", "stays"))
        await disk.hold()
        if waits != "shortly":
            async with asyncio.timeout(30):
                while flights.taken_over < 2:
                    await asyncio.sleep(0.01)
        assert (limiter.in_use, effects.exists()) == (0, False)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        disk.release()
        await stays
        assert [("left" in line, "stays" in line) for line in effects.read_text().splitlines()] == [(False, True)]
        assert (limiter.in_use, len(flights)) == (0, 0)
    intents, outcomes = (
        [each for each in calls(log) if each["kind"] == f"call.{kind}"] for kind in ("intent", "outcome")
    )
    assert len(intents) == 2
    assert [(each["outcome"], each["certainty"], each.get("code")) for each in outcomes] == [
        ("not_executed", "C0", "cancelled"),
        ("ok", "C3", None),
    ]


@pytest.mark.attack("A2-S3")
async def test_call_that_expires_before_its_intent_is_not_sent(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects, disk = log.parent / "effects", HeldDisk(monkeypatch)
    async with Hub({"s": fake_server(era="modern", effects=str(effects))}, audit_log=log) as hub:
        await hub.wait_ready()
        late = asyncio.create_task(hub.call_tool("s.counter", {"nonce": "late"}, timeout=3.0))
        await disk.hold()
        disk.release()
        time.sleep(3.5)  # noqa: ASYNC251  the process is paused
        with pytest.raises(CallTimeout) as ended:
            await late
        assert ended.value.executed == "no"
        await hub.call_tool("s.counter", {"nonce": "next"})
        assert ["late" in line for line in effects.read_text().splitlines()] == [False]
    outcomes = [each for each in calls(log) if each["kind"] == "call.outcome"]
    assert [(each["outcome"], each["certainty"]) for each in outcomes] == [("not_executed", "C0"), ("ok", "C3")]


async def test_call_is_not_sent_if_its_intent_cannot_be_written(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = log.parent / "effects"
    async with Hub({"s": fake_server(era="modern", effects=str(effects))}, audit_log=log) as hub:
        await hub.wait_ready()

        def full(file: int) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(os, "fdatasync", full)
        with pytest.raises(ServerUnavailable, match="audit log cannot be written") as refused:
            await hub.call_tool("s.counter", {"nonce": "x"})
        assert (refused.value.code, refused.value.executed) == ("E-AUDIT", "no")
        used_plan = os.environ.get("TOOLWAY_PLANS") != "off"
        assert (hub._core.calls.flights.taken_over, effects.exists()) == (int(used_plan), False)
        monkeypatch.undo()


async def test_concurrent_calls_share_a_write(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.wait_ready()
        await asyncio.gather(*(hub.call_tool("s.counter", {"nonce": str(n)}) for n in range(100)))
        assert hub._core._audit_log is not None and hub._core._audit_log.writer is not None
        ledger = hub._core._audit_log.writer
        await ledger.flush()
        assert ledger.written >= 200
        assert ledger.groups < 60
    assert len(calls(log)) == 200


async def test_call_is_found_by_idempotency_key_and_replay_is_marked(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        for _ in range(2):
            await hub.call_tool("s.counter", {"nonce": "a"}, idempotency_key="order-1")
    intent, outcome, replay = calls(log)
    assert intent["key"] == load_redactor(AuditSettings.from_location(log)).digest("order-1")
    assert (outcome["outcome"], replay["outcome"], replay["source"]) == ("ok", "ok", "replay")
    assert replay["call"] != outcome["call"] == intent["call"]


async def test_unknown_outcome_and_late_result_are_recorded(log: Path) -> None:
    late_server = {"command": sys.executable, "args": [str(Path(__file__).with_name("late_server.py"))]}
    async with Hub({"s": late_server}, audit_log=log) as hub:
        await hub.wait_ready()
        with pytest.raises(CallTimeout):
            await hub.call_tool("s.slow", timeout=0.2)
        async with asyncio.timeout(30):
            while len(calls(log)) < 3:
                await asyncio.sleep(0.05)
    intent, outcome, late = calls(log)
    assert (outcome["outcome"], outcome["certainty"], outcome["code"]) == ("unknown", "C2", "E-TIMEOUT")
    assert late["kind"] == "call.late_result" and len(late["result"]) == 32
    assert intent["call"] == outcome["call"] == late["call"]
    assert b"canary" not in log.read_bytes()


async def test_open_calls_of_killed_process_become_unknown(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.call_tool("s.counter", {})
        await hub.call_tool("s.counter", {}, idempotency_key="k")
    with closing(sqlite3.connect(log)) as db, db:  # as if the process had ended before the last outcome was written
        seqs = db.execute("SELECT seq FROM records WHERE body LIKE '%call.outcome%' ORDER BY seq").fetchall()
        db.execute("DELETE FROM records WHERE seq >= ?", seqs[-1])
    for note in log.parent.glob("*.checkpoints-*"):  # such a process has signed no end
        note.unlink()
    heard: list[Event] = []

    class NullSink:
        wants_attempts = False

        def on_call(self, event: Event) -> None: ...

        def on_event(self, event: Event) -> None:
            heard.append(event)

    hub = Hub({"s": fake_server()}, audit_log=log)
    hub.add_sink(NullSink())
    async with hub:
        pass
    last = calls(log)[-1]
    assert (last["outcome"], last["recovered"], last["tool"], last["certainty"]) == ("unknown", True, "counter", "C2")
    assert last["key"]
    assert [type(fact) for fact in heard][:1] == [CallRecovered]
    async with Hub({"s": fake_server()}, audit_log=log):
        pass
    assert calls(log)[-1] == last, "it was told twice"


async def test_other_events_are_recorded(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.change_tools")
        async with asyncio.timeout(10):
            while not any(tool.name == "extra_1" for tool in hub.known_tools()):
                await asyncio.sleep(0.05)
    kinds = [each["kind"] for each in records(log)]
    assert kinds[0] == "log.open" and kinds[-1] == "log.close"
    assert {"process.start", "definition.change"} <= set(kinds)
    changes = records(log, "definition.change")
    assert any(each["added"] == ["extra_1"] for each in changes)


async def test_arguments_are_recorded_only_if_enabled_and_redacted(log: Path) -> None:
    remember_secret("canary-fetched-secret")
    settings = AuditSettings(file=str(log), arguments=True, redact=("iban",))
    given = {
        "nonce": "plain",
        "password": "canary-password",
        "deep": [{"api_key": "canary-key", "note": "it is canary-fetched-secret"}],
        "token_like": "ghp_" + "canary" * 6,
        "iban": "canary-iban",
        "url": "https://u:canary-pw@example.com/x?token=canary-query",
    }
    async with Hub({"s": fake_server()}, audit_log=settings) as hub:
        await hub.call_tool("s.counter", given)
        await hub.call_tool("s.echo", given)
    whole = "".join(str(each) for each in records(log))
    assert "canary" not in whole
    assert "canary" not in b"".join(path.read_bytes() for path in log.parent.glob("audit*")).decode("latin-1")
    shown = calls(log)[0]["given"]
    assert shown["nonce"] == "plain"
    assert shown["url"] == "https://example.com/x?***"
    assert shown["password"].startswith("***")


@pytest.mark.promise("C11")
async def test_long_strings_are_truncated(log: Path) -> None:
    settings = AuditSettings(file=str(log), arguments=True, max_text_chars=50)
    async with Hub({"s": fake_server()}, audit_log=settings) as hub:
        await hub.call_tool("s.counter", {"nonce": "short", "body": "b" * 200, "deep": [{"text": "d" * 51}]})
    shown = calls(log)[0]["given"]
    assert shown == {"nonce": "short", "body": "b" * 50 + "…", "deep": [{"text": "d" * 50 + "…"}]}


@pytest.mark.promise("C11")
async def test_arguments_are_not_recorded_by_default(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.call_tool("s.counter", {"body": "canary-text"})
    assert "canary" not in b"".join(path.read_bytes() for path in log.parent.glob("audit*")).decode("latin-1")


async def test_tampered_log_prevents_start(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log) as hub:
        await hub.call_tool("s.counter", {})
    with closing(sqlite3.connect(log)) as db, db:
        db.execute("UPDATE records SET body = replace(body, 'counter', 'another') WHERE body LIKE '%call.intent%'")
    hub = Hub({"s": fake_server()}, audit_log=log)
    with pytest.raises(ConfigError, match="changed or damaged") as caught:
        await hub.__aenter__()
    assert caught.value.code == "E-AUDIT-ALTERED"
    assert "record" in caught.value.detail


async def test_second_hub_cannot_write_to_the_same_log(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit_log=log):
        with pytest.raises(ConfigError) as caught:
            async with Hub({"s": fake_server()}, audit_log=log):
                pass
    assert caught.value.code == "E-AUDIT-IN-USE"


def test_hub_without_log_has_no_audit_stage() -> None:
    hub = Hub({"s": fake_server()})
    with_log, without = (
        hub._core.calls._build_middleware(hub._core.calls._idempotency_store, lambda: 0.0, lambda c, n: n(c)),
        hub._core.calls._build_middleware(hub._core.calls._idempotency_store, lambda: 0.0, None),
    )
    assert len(with_log.stages) == len(without.stages) + 1
