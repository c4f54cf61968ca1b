"""Calls with an idempotency key."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

import pytest

from tests.faults.effects_log import effects_in
from tests.faults.fault_lab import ERAS, lab, until
from tests.faults.results import results
from toolway import Hub, OutcomeUnknown, ProtocolError
from toolway.testing import fake_server

pytestmark = [pytest.mark.anyio, pytest.mark.fault("C9")]


@ERAS
async def test_fifty_parallel_calls_with_one_key_execute_once(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        calls = [bench.start("bad.counter", {"nonce": "one"}, idempotency_key="k") for _ in range(50)]
        outcomes = [(await call).expect(None) for call in calls]
        assert sum(each.reply is not None and not each.reply.replayed for each in outcomes) == 1
        assert bench.happened(outcomes[0]) == 1


@ERAS
async def test_sequential_calls_with_one_key_execute_once(era: str, dice: random.Random) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        key = f"{dice.getrandbits(128):x}"
        first = (await bench.call("bad.counter", {"nonce": "one"}, idempotency_key=key)).expect(None)
        for _ in range(5):
            again = (await bench.call("bad.counter", {"nonce": "one"}, idempotency_key=key)).expect(None)
            assert again.reply is not None
            assert first.reply is not None
            assert again.reply.replayed
            assert again.reply.raw == first.reply.raw
        assert bench.happened(first) == 1


@ERAS
@pytest.mark.parametrize("when", ["while it runs", "afterwards"])
async def test_key_reused_for_another_call_is_rejected(when: str, era: str) -> None:
    async with lab({"bad": fake_server("one_byte_per_second=0.002;on=counter", era=era)}) as bench:
        first = bench.start("bad.counter", {"nonce": "one"}, idempotency_key="k")
        await (asyncio.sleep(0.02) if when == "while it runs" else first)
        assert first.done() is (when == "afterwards")
        other = (await bench.call("bad.counter", {"nonce": "two"}, idempotency_key="k")).expect(ProtocolError, "no")
        assert other.error is not None
        assert other.error.code == "E-KEY-MISMATCH"
        assert bench.happened(other) == 0
        (await first).expect(None)


@ERAS
async def test_key_with_unknown_outcome_is_not_executed_again(era: str) -> None:
    async with lab({"bad": fake_server("exit_mid_call", era=era)}) as bench:
        arguments = {"nonce": "one", "effect": True}
        (await bench.call("bad.bad", arguments, idempotency_key="k")).expect(OutcomeUnknown, "unknown")
        (await bench.call("bad.bad", arguments, idempotency_key="k")).expect(OutcomeUnknown, "unknown")
        assert bench.happened(bench.calls[0]) == 1


@ERAS
async def test_key_of_an_unexecuted_call_can_be_used_again(era: str) -> None:
    async with lab({}) as bench:
        await bench.add("bad", {**fake_server(era=era), "command": "/nonexistent"})
        refused = await bench.call("bad.counter", {"nonce": "one"}, idempotency_key="k")
        assert refused.executed == "no"
        await bench.hub.remove_server("bad")
        await bench.add("bad", fake_server(era=era))
        (await bench.call("bad.counter", {"nonce": "one"}, idempotency_key="k", timeout=10)).expect(None)


KILLED = """
import asyncio, json, sys
from toolway import Hub
from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore

async def main(entry, store):
    async with Hub({"bad": entry}, idempotency_store=SqliteIdempotencyStore(store), catalog_storage=None) as hub:
        await hub.call_tool("bad.counter", {"nonce": "done"}, idempotency_key="done")
        await hub.call_tool("bad.bad", {"nonce": "lost", "effect": True, "mode": "never"}, idempotency_key="lost")

asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
"""


async def test_key_used_before_our_crash_is_not_executed_again(tmp_path: Path) -> None:
    stores = pytest.importorskip("toolway.middleware.idempotency_sqlite")
    store, effects = tmp_path / "keys.db", tmp_path / "effects"
    entry = fake_server(effects=str(effects))
    hub = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, json.dumps(entry), str(store))
    try:
        await until(lambda: effects_in(effects)["lost"], 20)
    finally:
        hub.kill()
        await hub.wait()
    keys = stores.SqliteIdempotencyStore(store)
    async with Hub({"bad": entry}, idempotency_store=keys, catalog_storage=None) as again:
        assert (await again.call_tool("bad.counter", {"nonce": "done"}, idempotency_key="done")).replayed
        lost = {"nonce": "lost", "effect": True, "mode": "never"}
        with pytest.raises(OutcomeUnknown):
            await again.call_tool("bad.bad", lost, idempotency_key="lost", timeout=5)
    keys.close()
    assert effects_in(effects) == {"done": 1, "lost": 1}
    results.checked("I3", "I4")
