"""Responses whose status or content type says that they are not an answer."""

from __future__ import annotations

import pytest

from tests.faults.fault_lab import ERAS, WAYS, lab
from tests.faults.matrix.http.web_servers import calm_down, web
from tests.timing import within
from toolway import OutcomeUnknown, Overloaded, ProtocolError, ServerUnavailable
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio


@WAYS
@pytest.mark.fault("B7", "B8")
@pytest.mark.promise("B7")
async def test_server_failure_status_is_unknown_and_not_repeated(era: str) -> None:
    async with lab({"bad": web(era)}) as bench:
        for status in (500, 502, 503, 504, 507, 599):
            arguments = {"mode": f"status={status}", "effect": True}
            outcome = (await bench.call("bad.bad", arguments)).expect(OutcomeUnknown, "unknown")
            assert outcome.error is not None
            assert (outcome.error.attempts, bench.happened(outcome)) == (1, 1)
            assert str(status) in str(outcome.error)
            await calm_down(bench)


@WAYS
@pytest.mark.fault("B7", "B8")
@pytest.mark.promise("B7")
async def test_read_is_repeated_after_server_failure(era: str) -> None:
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
@pytest.mark.fault("B8")
async def test_status_503_with_retry_after_is_retried(era: str) -> None:
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
@pytest.mark.fault("B7")
async def test_possibly_executed_call_stays_unknown_after_unsent_retry(era: str) -> None:
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
@pytest.mark.fault("B19")
async def test_non_answer_response_is_unknown(era: str) -> None:
    modes = ("html", "empty_202", "no_content", "content_type=text/plain", "content_type=application/octet-stream")
    async with lab({"bad": FakeHttp(era=era)}) as bench:
        for mode in modes:
            outcome = await bench.call("bad.bad", {"mode": mode, "effect": True})
            outcome.expect(ProtocolError, "unknown")
            assert (outcome.seconds < within(1), bench.happened(outcome)) == (True, 1)
            await calm_down(bench)


@ERAS
@pytest.mark.fault("B19")
async def test_read_without_answer_is_repeated(era: str) -> None:
    fake = FakeHttp(era=era)
    async with lab({"bad": fake}) as bench:
        for mode in ("html", "empty_202", "no_content"):
            fake.set_mode(f"{mode};on=bad_read;times=1")
            read = (await bench.call("bad.bad_read", {"effect": True})).expect(None)
            assert bench.happened(read) == 2


REFUSALS = (400, 405, 409, 410, 413, 415, 422)


@WAYS
@pytest.mark.fault("B30")
@pytest.mark.promise("B9")
async def test_rejected_request_is_not_executed_and_not_repeated(era: str) -> None:
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
@pytest.mark.fault("B30")
@pytest.mark.promise("B9")
async def test_rejected_requests_do_not_open_the_breaker(era: str) -> None:
    async with lab({"bad": web(era)}) as bench:
        for _ in range(12):
            (await bench.call("bad.bad", {"mode": "status=400"})).expect(ProtocolError, "no")
        (await bench.call("bad.counter")).expect(None)
        (await bench.call("bad.bad", {"effect": True})).expect(None)
        assert bench.hub._core.servers.breaker_status() == {}


@ERAS
@pytest.mark.fault("B30")
@pytest.mark.promise("B9")
async def test_status_404_reports_not_executed(era: str) -> None:
    """To a session, 404 means that the session is over: it is opened anew, and the call made once more."""
    fake = web(era)
    async with lab({"bad": fake}) as bench:
        (await bench.call("bad.bad", {"mode": "status=404"})).expect(ProtocolError, "no")
        (await bench.call("bad.counter")).expect(None)
        assert fake.stats.requests.get("initialize", 0) == (2 if era == "legacy" else 0)
