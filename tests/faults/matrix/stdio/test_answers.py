"""Stdio servers that write something other than an answer, or the wrong answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.faults.fault_lab import ERAS, Bench, lab, odd_server
from tests.timing import within
from toolway import CallTimeout, ProtocolError
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


async def check_fails_only_its_call(bench: Bench, mode: str) -> None:
    """The answer fails its own call at once; a call that shares the pipe and the link itself continue."""
    beside = bench.start("bad.sleep", {"seconds": 0.1})
    spoiled = (await bench.call("bad.bad", {"mode": mode, "effect": True})).expect(ProtocolError, "unknown")
    assert spoiled.seconds < within(1)
    assert bench.happened(spoiled) == 1
    (await beside).expect(None)
    (await bench.call("bad.bad", {"effect": True})).expect(None)
    assert bench.hub.status()["bad"].restarts == 0


@ERAS
@pytest.mark.fault("A7")
async def test_text_between_messages_is_ignored_and_kept_in_stderr(era: str) -> None:
    async with lab({"bad": fake_server("garbage", era=era)}) as bench:
        for _ in range(3):
            (await bench.call("bad.bad", {"effect": True})).expect(None)
        status = bench.hub.status()["bad"]
        assert status.restarts == 0
        assert "Server starting on stdio..." in status.stderr
        assert bench.link("bad").invalid_lines > 0


@ERAS
@pytest.mark.fault("A8")
async def test_invalid_bytes_fail_only_their_own_line(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        for mode in ("bom", "nul", "bad_utf8=inside"):
            await check_fails_only_its_call(bench, mode)
        (await bench.call("bad.bad", {"mode": "bad_utf8=stray", "effect": True})).expect(None)
        assert bench.hub.status()["bad"].restarts == 0


@ERAS
@pytest.mark.fault("A8", "A15")
async def test_read_with_spoiled_answers_is_tried_three_times(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        spoiled = await bench.call("bad.bad_read", {"mode": "nul", "effect": True})
        spoiled.expect(ProtocolError, "unknown")
        assert spoiled.error is not None
        assert spoiled.error.attempts == bench.happened(spoiled) == 3


@ERAS
@pytest.mark.fault("A9")
async def test_truncated_answer_with_readable_id_fails_its_call(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        await check_fails_only_its_call(bench, "truncated")


@ERAS
@pytest.mark.fault("A9")
async def test_answer_truncated_before_its_id_times_out(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        cut = await bench.call("bad.bad", {"mode": "truncated=noid", "effect": True}, timeout=0.5)
        cut.expect(CallTimeout, "unknown")
        (await bench.call("bad.counter")).expect(None)
        assert bench.hub.status()["bad"].restarts == 0


@ERAS
@pytest.mark.fault("A13")
@pytest.mark.parametrize("mode", ["twice", "unknown_id"])
async def test_unexpected_answers_are_dropped_and_counted(mode: str, era: str) -> None:
    async with lab({"bad": fake_server(mode, era=era)}) as bench:
        calls = [bench.start("bad.bad", {"effect": True}) for _ in range(10)]
        for call in calls:
            (await call).expect(None)
        expected = {"twice": 10, "unknown_id": 20}[mode]
        await bench.until(lambda: bench.link("bad").unmatched_responses == expected, 2)
        assert bench.hub.status()["bad"].restarts == 0


@ERAS
@pytest.mark.fault("A13")
async def test_answer_id_of_other_json_type_fails_its_call(era: str) -> None:
    async with lab({"bad": fake_server("foreign_id_type", era=era)}) as bench:
        calls = [bench.start("bad.bad", {"effect": True}) for _ in range(10)]
        for call in calls:
            (await call).expect(ProtocolError, "unknown")
        assert bench.link("bad").unmatched_responses == 10


@ERAS
@pytest.mark.fault("A14")
async def test_answer_with_id_of_another_link_is_dropped(era: str) -> None:
    """All links count their ids from one, so the same ids are in use on the other link."""
    servers = {"bad": fake_server("wrong_id", era=era), "other": fake_server(era=era)}
    async with lab(servers) as bench:
        others = [bench.start("other.sleep", {"seconds": 0.8}) for _ in range(50)]
        await asyncio.sleep(0.05)
        (await bench.call("bad.bad", {"effect": True}, timeout=0.4)).expect(CallTimeout, "unknown")
        for other in others:
            (await other).expect(None)
        (await bench.call("bad.counter")).expect(None)


@ERAS
@pytest.mark.fault("A15")
async def test_json_beyond_limits_fails_only_its_own_call(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        for mode in ("deep=10000", "duplicate_keys", "nan", "huge_number", "huge_keys"):
            await check_fails_only_its_call(bench, mode)


@ERAS
@pytest.mark.fault("A15")
async def test_twenty_unreadable_messages_in_a_minute_end_the_link(era: str) -> None:
    async with lab({"bad": fake_server(era=era)}) as bench:
        began = time.monotonic()
        calls = [bench.start("bad.bad", {"mode": "truncated=noid", "effect": True}, timeout=10) for _ in range(20)]
        for call in calls:
            (await call).expect(ProtocolError, "unknown")
        assert time.monotonic() - began < within(5)
        await bench.until(lambda: bench.hub.status()["bad"].restarts == 1, 10)
        (await bench.call("bad.counter", timeout=15)).expect(None)


@ERAS
@pytest.mark.fault("A15")
async def test_answer_slow_to_validate_delays_no_other_call(era: str) -> None:
    async with lab({"bad": odd_server("digits", era=era)}, memory=64) as bench:
        (await bench.call("bad.bad", {"effect": True}, timeout=30)).expect(None)


@pytest.mark.alone
@pytest.mark.fault("A15")
@pytest.mark.parametrize(("value", "era"), [("{}", "modern"), ("1", "legacy"), ('""', "modern"), ("[]", "legacy")])
async def test_answer_with_a_million_values_delays_no_other_call(value: str, era: str) -> None:
    async with lab({"bad": odd_server(f"many_values={value}", era=era)}, memory=256) as bench:
        outcome = (await bench.call("bad.bad", {"effect": True}, timeout=30)).expect(ProtocolError, "unknown")
        assert outcome.error is not None
        assert outcome.error.code == "E-ANSWER-LIMIT"
        assert "250000 values" in outcome.error.detail
        assert "pages" in outcome.error.hint
        (await bench.call("bad.counter")).expect(None)
