"""How often a key may call: the bucket, and the error of a client that calls too often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import edge, handshake, message_of, modern
from toolway.events import AccessEvent, Event
from toolway.gateway import rate_limit
from toolway.gateway.authenticator import ThrottleLog
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.rate_limit import LocalRateLimiter, Rate
from toolway.testing import FakeHttp


def test_rate_is_parsed_from_calls_per_time() -> None:
    assert [str(Rate.parse(text)) for text in ("10/s", "600/min", "1/h", "5000/day")] == [
        *("10/s", "600/min", "1/h", "5000/day")
    ]
    assert Rate.parse("1800/h").per_second == 0.5


@pytest.mark.parametrize("text", ["", "10", "0/s", "-1/s", "10/week", "1.5/s", "10/ s", "99999999999/s", "١/s"])
def test_invalid_rate_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid rate"):
        Rate.parse(text)


def test_full_bucket_is_spent_at_once_and_refills_at_its_rate() -> None:
    now = [100.0]
    found, rate = LocalRateLimiter(lambda: now[0]), Rate(5, "s")
    assert [found.try_acquire("k", rate) for _ in range(5)] == [0.0] * 5
    assert found.try_acquire("k", rate) == pytest.approx(0.2)
    assert found.try_acquire("other", rate) == 0.0
    now[0] += 0.2001
    assert found.try_acquire("k", rate) == 0.0 < found.try_acquire("k", rate)


@pytest.mark.parametrize("step", [0.001, 0.05, 0.3])
def test_rate_is_never_exceeded_in_any_span(step: float) -> None:
    now = [0.0]
    found, rate = LocalRateLimiter(lambda: now[0]), Rate(10, "s")
    times = []
    for _ in range(3000):
        if found.try_acquire("k", rate) == 0.0:
            times.append(now[0])
        now[0] += step
    for span in (0.5, 1.0, 3.0):
        most = max(sum(1 for each in times if start <= each < start + span) for start in times[:200])
        assert most <= 10 * (1 + span)
    assert len(times) >= min(3000, 10 * (1 + (3000 - 1) * step) - 1)  # and no less


def test_key_with_a_new_rate_starts_with_a_full_bucket() -> None:
    found = LocalRateLimiter(lambda: 0.0)
    assert found.try_acquire("k", Rate(1, "h")) == 0.0 < found.try_acquire("k", Rate(1, "h"))
    assert found.try_acquire("k", Rate(2, "h")) == 0.0


def test_token_of_an_unsent_call_is_given_back() -> None:
    found, rate = LocalRateLimiter(lambda: 0.0), Rate(2, "h")
    for _ in range(5):
        assert found.try_acquire("k", rate) == 0.0
        found.give_back("k")
    assert found.try_acquire("k", rate) == 0.0 == found.try_acquire("k", rate) < found.try_acquire("k", rate)
    for _ in range(5):
        found.give_back("k")
    assert found._buckets["k"].tokens == 2  # a bucket cannot be more than full


def test_unused_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MAX_BUCKETS", 50)
    now = [0.0]
    found, rate = LocalRateLimiter(lambda: now[0]), Rate(1, "s")
    for number in range(500):
        found.try_acquire(f"k{number}", rate)
        now[0] += 0.1
    assert len(found._buckets) <= 51


def test_rate_of_a_key_is_stored(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner-of-this")
    token, _ = keyring.create_key_sync("ci", None, False, 0.0, Rate(600, "min"))
    again = FileApiKeyStore(tmp_path / "keys.json", "tw_owner-of-this").authenticate(token)
    assert again is not None and again.rate == Rate(600, "min")


@pytest.mark.anyio
async def test_rate_limited_call_gets_retry_after_and_is_not_sent(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        limited = found.keyring.create_key_sync("limited", None, False, 0.0, Rate(2, "h"))[0]
        other = found.keyring.create_key_sync("other", None, False, 0.0, Rate(2, "h"))[0]
        for _ in range(2):
            assert "result" in await found.call("a__echo", {"text": "x"}, token=limited)
        body, fields = modern("tools/call", {"name": "a__echo", "arguments": {"text": "x"}})
        before = found.calls("a")
        answer = await found.ask("POST", "/mcp", body, fields, token=limited)
        assert answer.status == 429 and int(answer.headers["retry-after"]) > 1000
        refused = message_of(answer)["error"]
        assert refused["code"] == -31004
        facts = refused["data"]
        assert (facts["executed"], facts["retryable"], facts["code"]) == ("no", True, "E-RATE")
        assert 1_790_000 < facts["retryAfterMs"] <= 1_800_000
        assert found.calls("a") == before
        assert await found.tools(token=limited)  # a list is not limited
        assert "result" in await found.call("a__echo", {"text": "x"}, token=other)
        assert "result" in await found.call("a__echo", {"text": "x"})


@pytest.mark.anyio
async def test_rate_limit_applies_to_sessions(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token = found.keyring.create_key_sync("limited", None, False, 0.0, Rate(1, "h"))[0]
        session = {"Mcp-Session-Id": await found.initialize(token=token)}
        call = handshake("tools/call", {"name": "a__echo", "arguments": {"text": "x"}})
        assert "result" in message_of(await found.ask("POST", "/mcp", call, session, token=token))
        refused = message_of(await found.ask("POST", "/mcp", call, session, token=token))
        assert refused["error"]["code"] == -31004


@pytest.mark.anyio
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_calls_of_a_limited_key_are_flights_charged_once(tmp_path: Path, era: str) -> None:
    async with edge(tmp_path, servers={"a": FakeHttp(name="a", era="modern")}) as found:
        token = found.keyring.create_key_sync("limited", None, False, 0.0, Rate(5, "h"))[0]
        session = {"Mcp-Session-Id": await found.initialize(token=token)} if era == "legacy" else {}

        async def call(number: object = 1) -> Any:
            params = {"name": "a__add", "arguments": {"a": number, "b": 1}}
            body, fields = (handshake("tools/call", params), session) if session else modern("tools/call", params)
            return message_of(await found.ask("POST", "/mcp", body, fields, token=token))

        for _ in range(3):
            assert "result" in await call()
        landed = found.hub.calls.flights.landed
        assert landed >= 1
        assert (await call("x"))["result"]["isError"]  # no flight: the router charges it, and rejects its arguments
        assert "result" in await call()
        assert found.hub.calls.flights.landed == landed + 1
        assert (await call())["error"]["code"] == -31004
        assert found.calls("a") == 4


@pytest.mark.anyio
async def test_administrator_sets_the_rate_of_a_key(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        made = message_of(await found.ask("POST", "/admin/keys", {"name": "ci", "rate": "1/h"}))
        assert made["rate"] == "1/h"
        listed = message_of(await found.ask("GET", "/admin/keys"))["keys"]
        assert [key["rate"] for key in listed] == ["1/h"]
        assert (await found.ask("POST", "/admin/keys", {"name": "ci", "rate": "often"})).status == 400
        assert "result" in await found.call("a__echo", {"text": "x"}, token=made["token"])
        assert "error" in await found.call("a__echo", {"text": "x"}, token=made["token"])


def test_throttled_key_is_logged_once_a_minute() -> None:
    now, told = [0.0], list[Event]()
    found = ThrottleLog(told.append, lambda: now[0])
    for _ in range(500):
        found.add("k1", Rate(10, "s"))
        now[0] += 0.1
    found.add("k2", Rate(2, "h"))
    now[0] = 61.0
    found.add("k1", Rate(10, "s"))
    assert [(each.principal_id, each.reason) for each in told if isinstance(each, AccessEvent)] == [
        ("k1", "rate limit of 10/s exceeded"),
        ("k2", "rate limit of 2/h exceeded"),
        ("k1", "rate limit of 10/s exceeded, and 499 earlier calls rejected"),
    ]
    for number in range(5000):
        found.add(f"n{number}", Rate(1, "s"))
    assert len(found._keys) <= 1001


@pytest.mark.anyio
async def test_throttled_key_appears_in_admin_events(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token, key = found.keyring.create_key_sync("limited", None, False, 0.0, Rate(1, "h"))
        for _ in range(3):
            await found.call("a__echo", {"text": "x"}, token=token)
        seen = await found.ask("GET", "/admin/events")
        assert seen.body.count(b"rate limit of 1/h exceeded") == 1 and key.id.encode() in seen.body
