"""How far the calls of a key can be from its rate, whatever the gateways do: a simulation with the real arithmetic."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from toolway.cluster.db.client_state import RateRequest, _Bucket, _current_tokens, _grant_tokens
from toolway.cluster.replication.rate_limit import IDLE_AFTER_S, MIN_REFILL_DELAY_S, TokenLease
from toolway.gateway.rate_limit import Rate

STEP = 0.01  # seconds


@dataclass
class Record:
    """The bucket, as `record/rates.py` keeps it."""

    rate: Rate
    tokens: float
    at: float = 0.0
    up: bool = True
    questions: int = 0

    def settle(self, charge: float, want: int, now: float) -> tuple[int, float]:
        asked = RateRequest("k", self.rate.calls, self.rate.per_second, charge, want)
        grant, self.tokens = _grant_tokens(_current_tokens(_Bucket(self.tokens, self.at, now), asked), asked)
        self.at = now
        self.questions += 1
        return grant.tokens, grant.wait_s


@dataclass
class Gateway:
    record: Record
    gateways: int
    late: float = 0.02  # seconds until the record answers
    purse: TokenLease | None = None
    pending: tuple[float, float, int] | None = None  # when the answer comes, and the question
    alone: bool = False
    waits: list[float] = field(default_factory=list)

    def call(self, now: float) -> bool:
        if self.purse is None:
            self.purse = TokenLease(self.record.rate, self.gateways, now)
        wait = self.purse.take_token(now, standalone=self.alone)
        self.waits.append(wait)
        return not wait

    def turn(self, now: float) -> None:
        if self.purse is None:
            return
        if self.pending is not None and now >= self.pending[0]:
            _, charge, want = self.pending
            self.pending = None
            self.alone = not self.record.up
            if self.record.up:
                self.purse.add_granted(*self.record.settle(charge, want, now), now)
            else:
                self.purse.restore_debit(charge, now)
        if self.pending is None and self.purse.needs_refill(now):
            self.pending = (now + self.late, *self.purse.next_request(now))
        elif self.pending is None and self.purse.is_removable(now):
            self.purse = None


def _run(rate: Rate, gateways: int, demand: float, seconds: float, seed: int = 0) -> tuple[list[float], Record]:
    """The times of the calls that were let through, where `demand` calls a second come to each gateway."""
    dice = random.Random(seed)
    record = Record(rate, float(rate.calls))
    all_ = [Gateway(record, gateways) for _ in range(gateways)]
    passed: list[float] = []
    now = 0.0
    while now < seconds:
        for each in all_:
            calls = int(demand * STEP) + (dice.random() < demand * STEP % 1)
            passed += [now for _ in range(calls) if each.call(now)]
            each.turn(now)
        now += STEP
    return passed, record


def _most(times: list[float], span: float) -> int:
    """The most calls in any span of that length."""
    best = begin = 0
    for end, each in enumerate(times):
        while times[begin] <= each - span:
            begin += 1
        best = max(best, end - begin + 1)
    return best


def _credit(rate: Rate, gateways: int) -> float:
    return max(gateways, rate.calls / 4)


@pytest.mark.parametrize("gateways", [1, 3, 20])
@pytest.mark.parametrize("rate", [Rate(10, "s"), Rate(600, "min"), Rate(3, "min")], ids=str)
@pytest.mark.parametrize("demand", [0.5, 5.0, 300.0])
def test_calls_never_exceed_the_rate_plus_credit(rate: Rate, gateways: int, demand: float) -> None:
    times, _ = _run(rate, gateways, demand, 40.0)
    for span in (1.0, 5.0, 20.0):
        assert _most(times, span) <= rate.calls + rate.per_second * span + _credit(rate, gateways) + 1
    assert len(times) <= rate.calls + rate.per_second * 40.0 + _credit(rate, gateways) + 1


@pytest.mark.parametrize("gateways", [1, 3, 20])
def test_busy_caller_gets_the_promised_rate(gateways: int) -> None:
    rate = Rate(600, "min")
    times, _ = _run(rate, gateways, 40.0, 60.0)
    assert len(times) >= 0.9 * (rate.calls + rate.per_second * 60.0)


def test_occasional_caller_is_rarely_rejected() -> None:
    rate = Rate(600, "min")
    times, _ = _run(rate, 3, 2.0, 60.0)  # six a second of ten
    record = Record(rate, 600.0)
    found = Gateway(record, 3)
    assert len(times) >= 6 * 60 * 0.85
    for step in range(6000):
        now = step * STEP
        if step % 15 == 0:
            found.call(now)
        found.turn(now)
    assert not any(found.waits)


@pytest.mark.parametrize(("demand", "most"), [(0.2, 3.0), (5.0, 3.0), (300.0, 5.0)])
def test_database_queries_stay_few_under_any_load(demand: float, most: float) -> None:
    _, record = _run(Rate(1000, "s"), 1, demand, 30.0)
    assert record.questions <= most * 30.0
    for rate in (Rate(1, "min"), Rate(100, "s")):
        _, short = _run(rate, 1, demand, 30.0)
        assert short.questions <= 30.0 / MIN_REFILL_DELAY_S + 10


def test_unused_tokens_are_returned() -> None:
    rate = Rate(100, "day")
    record = Record(rate, 100.0)
    found = Gateway(record, 3)
    for step in range(100):
        if step < 10:
            found.call(step * STEP)
        found.turn(step * STEP)
    assert record.tokens < 90
    for step in range(100, 400):
        found.turn(step * STEP)
    assert record.tokens == pytest.approx(90, abs=0.1)
    assert found.purse is None


def test_gateways_without_database_keep_a_share_and_pay_later() -> None:
    rate = Rate(30, "s")
    record = Record(rate, 30.0)
    all_ = [Gateway(record, 3) for _ in range(3)]
    passed: dict[str, int] = {"before": 0, "away": 0, "after": 0}
    for step in range(6000):
        now = step * STEP
        record.up = not 20 <= now < 40
        when = "before" if now < 20 else "away" if now < 40 else "after"
        for each in all_:
            passed[when] += each.call(now)
            each.turn(now)
    assert passed["away"] == pytest.approx(20 * 30, rel=0.15)
    assert sum(passed.values()) <= 30 + 60 * 30 + 2 * _credit(rate, 3) + 30
    assert passed["after"] >= 0.7 * 20 * 30


def test_empty_bucket_reports_the_wait() -> None:
    record = Record(Rate(2, "h"), 2.0)
    found = Gateway(record, 1)
    for step in range(50):
        found.call(step * STEP)
        found.turn(step * STEP)
    assert 1700 < found.waits[-1] <= 3600
    assert sum(1 for wait in found.waits if not wait) == 3  # one on credit
    assert found.purse is not None and not found.purse.is_removable(
        IDLE_AFTER_S + 1
    )  # or it would begin on credit again


def test_token_of_an_unsent_call_is_given_back() -> None:
    lease = TokenLease(Rate(2, "h"), 1, 0.0)
    lease.add_granted(1, 0.0, 0.0)
    for _ in range(5):
        assert lease.take_token(0.0, standalone=False) == 0.0
        lease.give_back()
    assert lease.take_token(0.0, standalone=False) == 0.0 == lease.take_token(0.0, standalone=False)  # one on credit
    assert lease.take_token(0.0, standalone=False) > 0
