"""A hub that keeps a log: what stands in it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.audit.reading import calls, records
from toolway import Hub
from toolway.auditing import redactor_of
from toolway.config.audit import AuditSettings
from toolway.errors import ConfigError, NotFound, TimedOut
from toolway.events import CallRecovered, Event
from toolway.secrets.known import remember
from toolway.telemetry.audit.sqlite import SqliteSink
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.sqlite"


async def test_a_call_that_changes_something_has_an_intent_and_an_outcome(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.counter", {"nonce": "hello"})
    intent, outcome = calls(log)
    assert (intent["kind"], outcome["kind"]) == ("call.intent", "call.outcome")
    assert intent["call"] == outcome["call"] != ""
    assert (intent["server"], intent["tool"], intent["effect"]) == ("s", "counter", "unsafe")
    assert len(intent["definition"]) == 64
    assert intent["arguments"] == redactor_of(AuditSettings.of(log)).digest({"nonce": "hello"})
    assert (outcome["outcome"], outcome["certainty"], outcome["attempts"]) == ("ok", "C3", 1)
    assert "given" not in intent


async def test_a_read_has_an_outcome_alone(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.echo", {"text": "x"})
        await hub.call_tool("s.fail", {})
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


async def test_the_call_is_not_sent_before_its_intent_is_on_disk(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = SqliteSink.append

    def slow(self: SqliteSink, rows: list[Any]) -> None:
        if any(b'"call.intent"' in row.body for row in rows):
            seen.append(len(effects.read_text().splitlines()) if effects.exists() else 0)
        real(self, rows)

    effects = log.parent / "effects"
    monkeypatch.setattr(SqliteSink, "append", slow)
    async with Hub({"s": fake_server(effects=str(effects))}, audit=log) as hub:
        for number in range(5):
            await hub.call_tool("s.counter", {"nonce": str(number)})
    assert seen == [0, 1, 2, 3, 4]


async def test_many_calls_share_a_write(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log) as hub:
        await hub.wait_ready()
        await asyncio.gather(*(hub.call_tool("s.counter", {"nonce": str(n)}) for n in range(100)))
        assert hub._auditing is not None and hub._auditing.ledger is not None
        ledger = hub._auditing.ledger
        await ledger.flush()
        assert ledger.written >= 200
        assert ledger.groups < 60
    assert len(calls(log)) == 200


async def test_a_key_is_found_again_and_a_replay_says_so(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log) as hub:
        for _ in range(2):
            await hub.call_tool("s.counter", {"nonce": "a"}, key="order-1")
    intent, outcome, replay = calls(log)
    assert intent["key"] == redactor_of(AuditSettings.of(log)).digest("order-1")
    assert (outcome["outcome"], replay["outcome"], replay["source"]) == ("ok", "ok", "replay")
    assert replay["call"] != outcome["call"] == intent["call"]


async def test_an_outcome_nobody_knows_is_unknown_and_a_late_answer_is_noted(log: Path) -> None:
    late_server = {"command": sys.executable, "args": [str(Path(__file__).with_name("late_server.py"))]}
    async with Hub({"s": late_server}, audit=log) as hub:
        await hub.wait_ready()
        with pytest.raises(TimedOut):
            await hub.call_tool("s.slow", timeout=0.2)
        await asyncio.sleep(0.5)
    intent, outcome, late = calls(log)
    assert (outcome["outcome"], outcome["certainty"], outcome["code"]) == ("unknown", "C2", "E-TIMEOUT")
    assert late["kind"] == "call.late_result" and len(late["result"]) == 32
    assert intent["call"] == outcome["call"] == late["call"]
    assert b"canary" not in log.read_bytes()


async def test_what_a_killed_process_left_open_is_unknown_after_the_next_start(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log) as hub:
        await hub.call_tool("s.counter", {})
        await hub.call_tool("s.counter", {}, key="k")
    with closing(sqlite3.connect(log)) as db, db:  # as if the process had ended before the last outcome was written
        seqs = db.execute("SELECT seq FROM records WHERE body LIKE '%call.outcome%' ORDER BY seq").fetchall()
        db.execute("DELETE FROM records WHERE seq >= ?", seqs[-1])
    heard: list[Event] = []

    class Ear:
        wants_steps = False

        def on_call(self, fact: Event) -> None: ...

        def on_event(self, fact: Event) -> None:
            heard.append(fact)

    hub = Hub({"s": fake_server()}, audit=log)
    hub.listen(Ear())
    async with hub:
        pass
    last = calls(log)[-1]
    assert (last["outcome"], last["recovered"], last["tool"], last["certainty"]) == ("unknown", True, "counter", "C2")
    assert last["key"]
    assert [type(fact) for fact in heard][:1] == [CallRecovered]
    async with Hub({"s": fake_server()}, audit=log):
        pass
    assert calls(log)[-1] == last, "it was told twice"


async def test_what_else_happens_is_written_down(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.change_tools")
        async with asyncio.timeout(10):
            while not any(tool.key == "extra_1" for tool in hub.tools()):
                await asyncio.sleep(0.05)
    kinds = [each["kind"] for each in records(log)]
    assert kinds[0] == "log.open" and kinds[-1] == "log.close"
    assert {"process.start", "definition.change"} <= set(kinds)
    changes = records(log, "definition.change")
    assert any(each["added"] == ["extra_1"] for each in changes)


async def test_arguments_stand_in_the_log_only_where_wanted_and_without_secrets(log: Path) -> None:
    remember("canary-fetched-secret")
    settings = AuditSettings(file=str(log), arguments=True, redact=("iban",))
    given = {
        "nonce": "plain",
        "password": "canary-password",
        "deep": [{"api_key": "canary-key", "note": "it is canary-fetched-secret"}],
        "token_like": "ghp_" + "canary" * 6,
        "iban": "canary-iban",
        "url": "https://u:canary-pw@example.com/x?token=canary-query",
    }
    async with Hub({"s": fake_server()}, audit=settings) as hub:
        await hub.call_tool("s.counter", given)
        await hub.call_tool("s.echo", given)
    whole = "".join(str(each) for each in records(log))
    assert "canary" not in whole
    assert "canary" not in b"".join(path.read_bytes() for path in log.parent.glob("audit*")).decode("latin-1")
    shown = calls(log)[0]["given"]
    assert shown["nonce"] == "plain"
    assert shown["url"] == "https://example.com/x?***"
    assert shown["password"].startswith("***")


async def test_a_log_that_was_changed_stops_the_start(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log) as hub:
        await hub.call_tool("s.counter", {})
    with closing(sqlite3.connect(log)) as db, db:
        db.execute("UPDATE records SET body = replace(body, 'counter', 'another') WHERE body LIKE '%call.intent%'")
    hub = Hub({"s": fake_server()}, audit=log)
    with pytest.raises(ConfigError, match="changed or damaged") as caught:
        await hub.__aenter__()
    assert caught.value.code == "E-AUDIT-ALTERED"
    assert "record" in caught.value.evidence


async def test_a_second_hub_cannot_write_to_the_same_log(log: Path) -> None:
    async with Hub({"s": fake_server()}, audit=log):
        with pytest.raises(ConfigError) as caught:
            async with Hub({"s": fake_server()}, audit=log):
                pass
    assert caught.value.code == "E-AUDIT-IN-USE"


def test_without_a_log_there_is_no_stage() -> None:
    hub = Hub({"s": fake_server()})
    with_log, without = (
        hub._stages(hub._key_store, lambda: 0.0, lambda c, n: n(c)),
        hub._stages(hub._key_store, lambda: 0.0, None),
    )
    assert len(with_log) == len(without) + 1
