"""B7, B8, B19, B30: answers that say by their status, or by what they are, that there is no answer."""

from __future__ import annotations

import pytest

from tests.faults.fault_lab import ERAS, WAYS, lab
from tests.faults.matrix.b_web import calm_down, web
from tests.timing import within
from toolway import OutcomeUnknown, Overloaded, ProtocolError, ServerUnavailable
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio


@WAYS
@pytest.mark.row("B7", "B8")
@pytest.mark.promise("B7")
async def test_a_server_that_failed_may_have_done_the_work(era: str) -> None:
    async with lab({"bad": web(era)}) as bench:
        for status in (500, 502, 503, 504, 507, 599):
            arguments = {"mode": f"status={status}", "effect": True}
            outcome = (await bench.call("bad.bad", arguments)).expect(OutcomeUnknown, "unknown")
            assert outcome.error is not None
            assert (outcome.error.attempts, bench.happened(outcome)) == (1, 1)
            assert str(status) in str(outcome.error)
            await calm_down(bench)


@WAYS
@pytest.mark.row("B7", "B8")
@pytest.mark.promise("B7")
async def test_a_read_is_made_again_after_a_failure_of_the_server(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        for status in (500, 502, 503, 504):
            fake.set_mode(f"status={status};on=bad_read;effect=1;times=2")
            read = (await bench.call("bad.bad_read", {"effect": True})).expect(None)
            assert read.reply is not None
            assert (read.reply.attempts, bench.happened(read)) == (3, 3)
            fake.set_mode(f"status={status};on=counter;effect=1;times=1")
            said = (await bench.call("bad.counter", idempotent=True)).expect(None)
            assert bench.happened(said) == 2
            await calm_down(bench)


@WAYS
@pytest.mark.row("B8")
async def test_a_server_that_says_when_to_come_back_has_done_nothing_yet(era: str) -> None:
    fake = web(era, modes=["status=503;retry_after=1;on=counter;times=1"])
    async with lab({"bad": fake}) as bench:
        outcome = (await bench.call("bad.counter")).expect(None)
        assert outcome.reply is not None
        assert (outcome.reply.attempts, bench.happened(outcome)) == (2, 1)
        assert 1.0 <= outcome.seconds < within(2.5)
        refused = await bench.call("bad.bad", {"mode": "status=503;retry_after=30"}, timeout=5)
        refused.expect(Overloaded, "no")
        assert refused.error is not None and refused.error.retry_after == 30
        assert refused.seconds < within(1)


@ERAS
@pytest.mark.row("B7")
async def test_a_call_that_may_have_run_is_unknown_even_if_its_last_attempt_was_never_sent(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        (await bench.call("bad.echo")).expect(None)
        arguments = {"mode": "reset_before_response", "effect": True}
        call = bench.start("bad.bad", arguments, idempotent=True, timeout=10)
        await bench.until(lambda: fake.stats.effects, 5)
        await fake.stop()
        outcome = await call
        assert bench.happened(outcome)
        assert outcome.executed == "unknown"
        assert not isinstance(outcome.error, ServerUnavailable)


@ERAS
@pytest.mark.row("B19")
async def test_what_is_no_answer_is_none(era: str) -> None:
    modes = ("html", "empty_202", "no_content", "content_type=text/plain", "content_type=application/octet-stream")
    async with lab({"bad": FakeHttp(era=era)}) as bench:
        for mode in modes:
            outcome = await bench.call("bad.bad", {"mode": mode, "effect": True})
            outcome.expect(ProtocolError, "unknown")
            assert (outcome.seconds < within(1), bench.happened(outcome)) == (True, 1)
            await calm_down(bench)


@ERAS
@pytest.mark.row("B19")
async def test_a_read_that_brought_no_answer_is_made_again(era: str) -> None:
    fake = FakeHttp(era=era)
    async with lab({"bad": fake}) as bench:
        for mode in ("html", "empty_202", "no_content"):
            fake.set_mode(f"{mode};on=bad_read;times=1")
            read = (await bench.call("bad.bad_read", {"effect": True})).expect(None)
            assert bench.happened(read) == 2


REFUSALS = (400, 405, 409, 410, 413, 415, 422)


@WAYS
@pytest.mark.row("B30")
@pytest.mark.promise("B9")
async def test_a_request_that_the_server_refused_was_not_executed_and_is_not_sent_again(era: str) -> None:
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        for status in REFUSALS:
            for tool in ("bad", "bad_read"):
                before = fake.stats.requests.get("tools/call", 0)
                outcome = await bench.call(f"bad.{tool}", {"mode": f"status={status}"})
                outcome.expect(ProtocolError, "no")
                assert outcome.error is not None
                assert (outcome.error.attempts, outcome.error.retryable) == (1, False)
                assert fake.stats.requests.get("tools/call", 0) == before + 1
                assert str(status) in str(outcome.error)


@WAYS
@pytest.mark.row("B30")
@pytest.mark.promise("B9")
async def test_refused_requests_of_one_caller_close_the_server_for_nobody(era: str) -> None:
    async with lab({"bad": web(era)}) as bench:
        for _ in range(12):
            (await bench.call("bad.bad", {"mode": "status=400"})).expect(ProtocolError, "no")
        (await bench.call("bad.counter")).expect(None)
        (await bench.call("bad.bad", {"effect": True})).expect(None)
        assert bench.hub._core.servers.breaker_status() == {}


@ERAS
@pytest.mark.row("B30")
@pytest.mark.promise("B9")
async def test_an_address_without_a_server_was_not_called(era: str) -> None:
    """To a session, 404 means that the session is over: it is opened anew, and the call made once more."""
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        (await bench.call("bad.bad", {"mode": "status=404"})).expect(ProtocolError, "no")
        (await bench.call("bad.counter")).expect(None)
        assert fake.stats.requests.get("initialize", 0) == (2 if era == "legacy" else 0)
