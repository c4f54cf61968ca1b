"""Events of calls: their content, and that a sink does not affect calls."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from toolway import Hub, NotFound
from toolway.config.schema import RetryPolicy, Server
from toolway.errors import Certainty
from toolway.events import AttemptFinished, CallFinished, CallStarted, Event, ServerLog, StateChanged
from toolway.hub.event_stream import EventBroadcaster, mask_event
from toolway.hub.instrumentation import Instrumentation
from toolway.telemetry.call_batch import MAX_CALLS, is_small, limit_size
from toolway.telemetry.metrics import Metrics, summarize_stats
from toolway.telemetry.recent_calls import CallQuery, RecentCalls, call_details_to_json, call_to_json
from toolway.testing import FakeHttp, fake_server
from toolway.types import CallState, TimedCallState

pytestmark = pytest.mark.anyio


class RecordingSink:
    """A sink that keeps all."""

    wants_attempts = True

    def __init__(self) -> None:
        self.calls: list[CallFinished] = []
        self.events: list[Event] = []

    def on_call(self, event: CallFinished) -> None:
        self.calls.append(event)

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def phases(fact: CallFinished) -> list[list[str]]:
    return [[phase.name for phase in each.phases] for each in fact.attempt_timings]


async def test_calls_are_not_timed_without_a_sink() -> None:
    async with Hub({"fake": fake_server()}, catalog_storage=None) as hub:
        assert type(hub._core.calls.new_call_state(keep_raw=True)) is CallState
        await hub.call_tool("fake.echo", {"text": "x"})
        assert hub._core.calls.running() == []
        ears = RecordingSink()
        remove = hub.add_sink(ears)
        assert type(hub._core.calls.new_call_state(keep_raw=True)) is TimedCallState
        remove()
        assert type(hub._core.calls.new_call_state(keep_raw=True)) is CallState
        watching = hub.events(CallFinished)
        assert type(hub._core.calls.new_call_state(keep_raw=True)) is TimedCallState
        await hub.call_tool("fake.echo", {"text": "y"})
        assert isinstance(await anext(watching), CallFinished)
        del watching
        gc.collect()


async def test_events_are_masked_for_subscribers_but_not_for_sinks() -> None:
    ears, address = RecordingSink(), "127.0.0.1:9"  # nothing listens there; the reason of the failure names it
    server = Server(url=f"http://{address}/mcp", headers={"X-Key": address})
    async with Hub({"s": server}, catalog_storage=None) as hub:
        events = hub.events(StateChanged)
        hub.add_sink(ears)
        reason = ""
        async for event in events:
            if isinstance(event, StateChanged) and event.new == "backing_off":
                reason = event.reason
                break
    assert "cannot connect to http://***" in reason
    assert any(address in each.reason for each in ears.events if isinstance(each, StateChanged))


def test_log_message_is_masked_in_every_string() -> None:
    log = ServerLog("s", "info", {"a": ["hunter2!", 1, None]}, "hunter2!")
    masked = mask_event(log, lambda text: text.replace("hunter2!", "***"))
    assert isinstance(masked, ServerLog) and masked.data == {"a": ["***", 1, None]}
    assert mask_event(log, str) is log  # nothing to mask: no copy


async def test_retried_call_reports_each_attempt_and_its_phases() -> None:
    ears = RecordingSink()
    async with (
        FakeHttp() as fake,
        Hub({"s": fake.url}, retry=RetryPolicy(max_attempts=3, initial_backoff=0.05), catalog_storage=None) as hub,
    ):
        hub.add_sink(ears)
        await hub.wait_ready()
        fake.set_mode("status=503;on=echo;times=1")
        await hub.call_tool("s.echo", {"text": "x"})
    (call,) = ears.calls
    assert (call.server, call.tool, call.name, call.outcome, call.executed) == ("s", "echo", "s.echo", "ok", "yes")
    assert (call.attempts, call.certainty, call.effect) == (2, Certainty.EXECUTED, "read")
    first, second = call.attempt_timings
    assert (first.number, first.certainty, second.outcome) == (1, Certainty.UNKNOWN, "ok")
    assert first.code.startswith("E-") and first.outcome == "unknown"
    names = [[name for name in names if name != "connect"] for names in phases(call)]  # one may have been kept
    assert names == [["queue", "send", "server", "retry"], ["queue", "send", "server"]]
    assert second.offset >= first.offset + first.seconds
    whole = first.offset + sum(phase.seconds for each in call.attempt_timings for phase in each.phases)
    assert whole == pytest.approx(call.seconds, abs=1e-6)
    steps = [event for event in ears.events if isinstance(event, CallStarted | AttemptFinished)]
    assert [type(event).__name__ for event in steps] == ["CallStarted", "AttemptFinished", "AttemptFinished"]
    assert {event.id for event in steps} == {call.id}
    failed, well = steps[1:]
    assert isinstance(failed, AttemptFinished) and isinstance(well, AttemptFinished)
    assert (failed.number, failed.outcome, well.number, well.outcome, well.retry_delay) == (
        1,
        first.outcome,
        2,
        "ok",
        None,
    )
    assert failed.retry_delay is not None


@pytest.mark.promise("B21")
async def test_call_retry_policy_overrides_the_servers() -> None:
    once = RetryPolicy(max_attempts=1)
    async with FakeHttp() as fake, Hub({"s": fake.url}, retry=once, catalog_storage=None) as hub:
        await hub.wait_ready()
        fake.set_mode("status=503;on=echo;times=2")
        own = RetryPolicy(max_attempts=3, initial_backoff=0.01, backoff_multiplier=1.0)
        assert (await hub.call_tool("s.echo", {"text": "x"}, retry=own)).attempts == 3


async def test_waiting_for_a_start_is_a_phase() -> None:
    ears = RecordingSink()
    async with Hub({"s": {**fake_server(), "lazy": True}}, catalog_storage=None) as hub:
        hub.add_sink(ears)
        await hub.call_tool("s.echo", {"text": "x"})
    (call,) = ears.calls
    (names,) = phases(call)
    assert names[:2] == ["queue", "start"] and names[-2:] == ["send", "server"]
    start = next(phase for phase in call.attempt_timings[0].phases if phase.name == "start")
    assert start.seconds > 0.01  # a process was started in the meantime
    assert [event.new for event in ears.events if isinstance(event, StateChanged)][:2] == ["starting", "ready"]


async def test_opening_a_connection_is_a_phase() -> None:
    ears = RecordingSink()
    async with FakeHttp(answer="sse") as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        hub.add_sink(ears)
        await hub.wait_ready()
        calls = [hub.call_tool("s.sleep", {"seconds": 0.05}) for _ in range(3)]
        await asyncio.gather(*calls)
    assert any("connect" in names for call in ears.calls for names in phases(call))
    assert all("stream" in names for call in ears.calls for names in phases(call))


async def test_waiting_for_a_slot_is_the_queue_phase() -> None:
    ears = RecordingSink()
    async with Hub({"s": {**fake_server(), "limits": {"maxConcurrent": 1}}}, catalog_storage=None) as hub:
        hub.add_sink(ears)
        await hub.wait_ready()
        await asyncio.gather(*(hub.call_tool("s.sleep", {"seconds": 0.1}) for _ in range(2)))
    longest = max(phase.seconds for call in ears.calls for each in call.attempt_timings for phase in each.phases[:1])
    assert longest >= 0.09


async def test_error_is_reported_with_reason_and_certainty() -> None:
    ears = RecordingSink()
    async with Hub({"s": fake_server()}, catalog_storage=None) as hub:
        hub.add_sink(ears)
        await hub.wait_ready()
        with pytest.raises(NotFound):
            await hub.call_tool("s.nothing")
        gone = asyncio.create_task(hub.call_tool("s.sleep", {"seconds": 30}))
        while not any(call.state.phase == "server" for call in hub._core.calls.running()):
            await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert hub._core.calls.running() == []
    missing, cancelled = ears.calls
    assert (missing.outcome, missing.code, missing.attempts, missing.attempt_timings) == (
        "not run",
        "E-NOT-FOUND",
        0,
        (),
    )
    assert "no tool" in missing.message
    assert (cancelled.outcome, cancelled.code) == ("unknown", "cancelled")


async def test_trace_id_of_the_caller_is_reported() -> None:
    ears, parent = RecordingSink(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with Hub({"s": fake_server()}, catalog_storage=None) as hub:
        hub.add_sink(ears)
        await hub.call_tool("s.echo", {"text": "x"}, meta={"traceparent": parent})
        await hub.call_tool("s.echo", {"text": "x"}, meta={"traceparent": "nonsense" * 5})
    assert [call.trace_id for call in ears.calls] == ["0af7651916cd43dd8448eb211c80319c", ""]


async def test_failing_sink_is_logged_and_does_not_affect_calls(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RecordingSink):
        def on_call(self, event: CallFinished) -> None:
            raise ValueError("broken")

        def on_event(self, event: Event) -> None:
            raise ValueError("broken")

    ears = RecordingSink()
    async with Hub({"s": fake_server()}, catalog_storage=None) as hub:
        hub.add_sink(Broken())
        hub.add_sink(ears)
        assert (await hub.call_tool("s.echo", {"text": "x"})).text == "x"
    assert len(ears.calls) == 1
    assert "event sink failed" in caplog.text


async def test_shared_reads_show_timings_of_one_request() -> None:
    ears = RecordingSink()
    async with Hub({"s": {**fake_server(), "trusted": True}}, catalog_storage=None) as hub:
        hub.add_sink(ears)
        await hub.wait_ready()
        await asyncio.gather(*(hub.call_tool("s.sleep", {"seconds": 0.1}) for _ in range(2)))
    assert {call.source for call in ears.calls} == {"shared"}
    assert all(names[-1] == "server" for call in ears.calls for names in phases(call))


# -- the last calls ---------------------------------------------------------------------------------------------------


def ended(number: int, outcome: str = "ok", **facts: Any) -> CallFinished:
    return CallFinished(
        "s", "tools/call", "s.t", outcome, "yes", 0.01, id=f"c{number}", tool="t", started_at=number, **facts
    )


def test_recent_calls_are_bounded_and_failures_kept_longer() -> None:
    recent = RecentCalls(max_calls=10, max_failed=5)
    for number in range(100):
        recent.on_calls([ended(number, "E-TIMEOUT" if number % 20 == 0 else "ok")])
    assert recent.count == 100
    assert [fact.id for fact in recent.find_newest(limit=3)] == ["c99", "c98", "c97"]
    assert [fact.id for fact in recent.find_newest(CallQuery(failed=True))] == ["c80", "c60", "c40", "c20", "c0"]
    assert len(recent.find_newest()) == 15
    assert recent.find("c0") is not None
    assert recent.find("c1") is None


def test_recent_calls_are_found_by_their_fields() -> None:
    recent = RecentCalls()
    recent.on_calls([ended(1, caller="key:1"), ended(2, "E-TIMEOUT", message="it took longer")])
    assert [fact.id for fact in recent.find_newest(CallQuery(caller="key:1"))] == ["c1"]
    assert [fact.id for fact in recent.find_newest(CallQuery(text="LONGER"))] == ["c2"]
    assert recent.find_newest(CallQuery(slow=1.0)) == []
    assert recent.find_newest(CallQuery(server="other")) == []


def test_large_arguments_and_texts_are_dropped() -> None:
    small = ended(1, params={"name": "t", "arguments": {"text": "x"}})
    assert limit_size(small) is small
    assert limit_size(ended(2, params={"name": "t", "arguments": {"text": "x" * 100_000}})).params is None
    assert limit_size(ended(3, params={"name": "t", "arguments": {"list": list(range(10_000))}})).params is None
    assert limit_size(ended(4, params={"arguments": {str(number): "x" for number in range(300)}})).params is None
    assert len(limit_size(ended(5, "E-TIMEOUT", detail="x" * 100_000)).detail) < 3000
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert not is_small(deep)


def test_call_json_has_no_arguments() -> None:
    fact = ended(1, params={"name": "t", "arguments": {"password": "hunter2"}})
    assert "hunter2" not in str(call_to_json(fact)) + str(call_details_to_json(fact))


# -- batches ----------------------------------------------------------------------------------------------------------


class Batches(RecordingSink):
    """Sink that takes finished calls in batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.take_waiting: Callable[[], None] = lambda: None

    def on_calls(self, calls: Sequence[CallFinished]) -> None:
        self.batches.append([call.name for call in calls])


async def test_batched_calls_are_delivered_on_demand_and_on_close() -> None:
    at_once, later = RecordingSink(), Batches()
    async with Hub({"s": fake_server()}, catalog_storage=None) as hub:
        hub.add_sink(at_once)
        hub.add_sink(later)
        for _ in range(3):
            await hub.call_tool("s.echo", {"text": "x"})
        assert len(at_once.calls) == 3
        before = sum(map(len, later.batches))
        later.take_waiting()
        assert sum(map(len, later.batches)) == 3 and before <= 3
        await hub.call_tool("s.echo", {"text": "x"})
    assert sum(map(len, later.batches)) == 4  # the hub delivers the rest when it closes
    assert later.calls == []


def test_batches_have_at_most_30_calls() -> None:
    assert MAX_CALLS <= 30  # with 100, counting them was the p99 that the gateway adds for one client


async def test_calls_are_batched_and_removed_sink_loses_none() -> None:
    recorder, later = Instrumentation(EventBroadcaster()), Batches()
    recorder.add_sink(later)
    recorder.add_sink(later)  # a sink is added once
    for number in range(MAX_CALLS + 5):
        recorder.record(ended(number))
    assert [len(batch) for batch in later.batches] == [MAX_CALLS]
    recorder.remove_sink(later)
    assert [len(batch) for batch in later.batches] == [MAX_CALLS, 5]
    recorder.record(ended(1))
    assert not recorder.enabled and len(later.batches) == 2


async def test_sink_gets_successful_calls_only_if_it_wants_them() -> None:
    class Failures(RecordingSink):
        wants_successes = False

    recorder, failures, broken = Instrumentation(EventBroadcaster()), Failures(), Batches()
    broken.on_calls = None  # type: ignore[assignment,method-assign]  # calling it raises
    metrics = Metrics()
    for sink in (failures, broken, metrics):
        recorder.add_sink(sink)
    recorder.record(ended(1))
    recorder.record(ended(2, "E-TIMEOUT"))
    assert [call.id for call in failures.calls] == ["c2"]
    assert sum(series.total().count for series in metrics.store.series.values()) == 2
    assert summarize_stats(metrics.store.minutes.values(), 3.0)["errors"] == 1
