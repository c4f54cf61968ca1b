"""A client that fills the log and the audit log with many rejected calls."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.audit.log_reader import Records, records
from tests.gateway.load_clients import Failed, load_client
from tests.gateway.program import program
from toolway.telemetry import refusals
from toolway.telemetry.refusals import RefusalCounter, RejectedCalls
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio
CALLS = 300
POLICY = """
@id("all") permit (principal, action, resource);
@id("no-counter")
forbid (principal, action == Action::"call", resource == Tool::"s.counter") when { context.args.nonce == "x" };
"""


def total(found: Records) -> int:
    """How many refusals the records say there were, one by one or in counts."""
    for each in found:
        assert sum(each.get("rejected", {}).values()) == each.get("count", 0)
    return sum(each.get("count", 1) for each in found)


@pytest.mark.attack("A2-W5")
@pytest.mark.parametrize("plans", ["on", "off"])
async def test_flood_of_rejected_calls_is_logged_as_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: str
) -> None:
    monkeypatch.setenv("TOOLWAY_PLANS", plans)
    folder = tmp_path / "gateway"
    (tmp_path / "policy.cedar").write_text(POLICY)
    async with program(folder, {"s": fake_server()}, audit=True, policy=str(tmp_path / "policy.cedar")) as run:
        made = [
            (await run.request("POST", "/admin/keys", {"name": name, "rate": "none"}))[1] for name in ("mallory", "bob")
        ]

        async def flood(token: str, name: str, arguments: dict[str, Any], count: int) -> None:
            client = load_client("modern", run.port, token)
            for _ in range(count):
                try:
                    result = await client.call(name, arguments)
                except Failed:
                    continue
                assert result.is_error  # wrong arguments are a tool error
            client.close()

        mallory, bob = (each["token"] for each in made)
        await asyncio.gather(
            flood(mallory, "s__echo", {"text": []}, CALLS),
            flood(mallory, "s__counter", {"nonce": "x"}, CALLS),
            flood(bob, "s__echo", {"text": []}, 3),
        )
        assert await run.stop() == 0
        lines = [line for line in run.log.splitlines() if made[0]["id"] in line]
    log = folder / "state" / "audit.sqlite"
    calls, decisions = records(log, "call.outcome", "call.rejected"), records(log, "policy.decision")
    of_mallory = [each for each in calls if each["caller"] == f"key:{made[0]['id']}"]
    assert len(of_mallory) < 50 and len(decisions) < 50 and len(lines) < 50
    assert total(of_mallory) == total(decisions) == CALLS
    assert {each["who"] for each in decisions} == {made[0]["id"]}
    assert sum(json.loads(line).get("count", 1) for line in lines) == CALLS  # decisions of a policy are not logged
    assert total([each for each in calls if each not in of_mallory]) == 3  # bob is not counted with mallory


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.mark.attack("A2-W5")
@pytest.mark.parametrize("seed", range(20))
def test_every_rejected_call_is_counted_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every refusal is reported by itself or in exactly one count, whatever the order, and memory stays bounded."""
    chance, clock = random.Random(seed), Clock()
    monkeypatch.setattr(refusals, "MAX_CALLERS", 4)
    monkeypatch.setattr(refusals, "MAX_NAMES", 3)
    reported: list[RejectedCalls] = []
    counter, made, single = RefusalCounter(reported.append, clock), Counter[str](), Counter[str]()
    for _ in range(3_000):
        caller, reason = f"k{chance.randrange(8)}", f"E-{chance.randrange(5)}"
        clock.time += chance.choice((0.0, 0.001, 0.1, 30.0 if chance.random() < 0.01 else 0.0))
        made[caller] += 1
        single[caller] += counter.admits(caller, reason, f"s.t{chance.randrange(9)}" * chance.choice((1, 500)))
        assert len(counter._callers) <= 5
    counter.flush()
    counts = Counter(dict.fromkeys(made, 0))
    for each in reported:
        assert each.count == sum(each.names.values()) > 0 and len(each.names) <= 4
        assert all(len(name) < 150 for name in each.names)
        counts[each.caller] += each.count
    assert sum(single.values()) + sum(counts.values()) == sum(made.values())
    for name in made:
        assert single[name] + counts[name] <= made[name]
    counter.flush()
    assert sum(each.count for each in reported) == sum(counts.values())


def test_lasting_flood_is_one_count_per_interval() -> None:
    clock, reported = Clock(), list[RejectedCalls]()
    counter = RefusalCounter(reported.append, clock)
    single = 0
    for _ in range(1_000):
        single += counter.admits("k", "E-DENIED", "s.t")
        clock.time += 0.1
    assert single == refusals.FIRST_REFUSALS and 9 <= len(reported) <= 10
    clock.time += 2 * refusals.INTERVAL_S
    counter.flush()
    counter.flush()
    assert counter.admits("k", "E-DENIED", "s.t")


async def test_count_is_reported_at_the_end_of_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "INTERVAL_S", 0.05)
    reported: list[RejectedCalls] = []
    counter = RefusalCounter(reported.append)
    single = sum(counter.admits("k", "E-DENIED", "s.t") for _ in range(50))
    async with asyncio.timeout(10):
        while not reported:
            await asyncio.sleep(0.01)
    assert single + sum(each.count for each in reported) == 50
