"""Sampled calls, propagated trace contexts and the content of spans."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from toolway import CallTimeout, Hub, ProtocolError
from toolway.config.schema import RetryPolicy
from toolway.config.settings import TelemetrySettings, TraceSettings
from toolway.telemetry import otlp
from toolway.telemetry.otel_attributes import TRACEPARENT_PATTERN as TRACEPARENT
from toolway.telemetry.tracing import OtelTracer
from toolway.testing import FakeHttp, fake_server
from toolway.testing.server import FakeServer
from toolway.types import Call, TimedCallState

pytestmark = pytest.mark.anyio
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUIET = PARENT[:-2] + "00"


def provider(**options: Any) -> tuple[TracerProvider, InMemorySpanExporter]:
    made, kept = TracerProvider(**options), InMemorySpanExporter()
    made.add_span_processor(SimpleSpanProcessor(kept))
    return made, kept


@asynccontextmanager
async def traced(sample: float | None = 1.0, **options: Any) -> AsyncIterator[tuple[Hub, InMemorySpanExporter]]:
    made, kept = provider(**options)
    async with Hub(
        {"s": fake_server()}, retry=RetryPolicy(max_attempts=2, initial_backoff=0.01), catalog_storage=None
    ) as hub:
        await hub.wait_ready()
        hub.enable_tracing(made, sample_ratio=sample)
        yield hub, kept


def named(spans: Sequence[ReadableSpan], kind: trace.SpanKind) -> list[ReadableSpan]:
    return [span for span in spans if span.kind is kind]


@pytest.mark.promise("E10")
async def test_ambient_span_is_parent_of_a_library_call() -> None:
    async with traced() as (hub, kept):
        made, own = provider()
        with made.get_tracer("mine").start_as_current_span("mine") as around:
            await hub.call_tool("s.echo", {"text": "x"})
        spans = kept.get_finished_spans()
        (call,) = [span for span in spans if span.name == "tools/call s.echo"]
        (tried,) = named(spans, trace.SpanKind.CLIENT)
        assert call.parent is not None and call.parent.span_id == around.get_span_context().span_id
        assert tried.parent is not None and tried.parent.span_id == call.context.span_id
        assert own.get_finished_spans()[0].name == "mine"


async def test_call_without_a_trace_starts_one() -> None:
    async with traced() as (hub, kept):
        await asyncio.gather(*(hub.call_tool("s.echo", {"text": "x"}) for _ in range(3)))
        calls = [span for span in kept.get_finished_spans() if span.parent is None]
    assert len({span.context.trace_id for span in calls}) == 3


async def test_unsampled_trace_of_a_caller_is_not_recorded() -> None:
    async with traced() as (hub, kept):
        await hub.call_tool("s.echo", {"text": "x"}, meta={"traceparent": QUIET})
        assert kept.get_finished_spans() == ()


async def test_new_traces_are_sampled_by_ratio() -> None:
    async with traced(sample=0.2) as (hub, kept):
        for _ in range(200):
            await hub.call_tool("s.echo", {"text": "x"})
        calls = [span for span in kept.get_finished_spans() if span.parent is None]
        assert 10 <= len(calls) <= 80
        kept.clear()
        await hub.call_tool("s.echo", {"text": "x"}, meta={"traceparent": PARENT})
        assert kept.get_finished_spans()  # its caller wants it


async def test_unsampled_call_stays_on_fast_path_and_sends_context(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    real = FakeServer.handle

    def handle(self: FakeServer, message: Any, *more: Any, **named: Any) -> Any:
        if message.get("method") == "tools/call":
            heard.append(message["params"]["_meta"].get("traceparent", ""))
        return real(self, message, *more, **named)

    monkeypatch.setattr(FakeServer, "handle", handle)
    made, kept = provider()
    async with FakeHttp() as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.counter", {})  # the first call may find no free connection, and uses the chain then
        heard.clear()
        hub.enable_tracing(made, sample_ratio=0.5)
        flights = hub._core.calls.flights
        before = flights.landed + flights.taken_over
        for _ in range(60):
            await hub.call_tool("s.counter", {})
        left_out = [each for each in heard if each.endswith("-00")]
        assert len(heard) == 60 and all(TRACEPARENT.fullmatch(each) for each in heard)
        assert flights.landed + flights.taken_over - before == len(left_out) > 5
        calls = [span for span in kept.get_finished_spans() if span.parent is None]
        assert len(calls) == 60 - len(left_out)  # the others are recorded: nothing is decided twice
        assert len(set(heard)) == 60

        with made.get_tracer("mine").start_as_current_span("mine"):  # in a trace of the program
            await hub.call_tool("s.counter", {})
        assert int(heard[-1][-2:], 16) & 1


async def test_provider_sampler_decides_without_a_ratio() -> None:
    async with traced(sample=None, sampler=ALWAYS_OFF) as (hub, kept):
        await hub.call_tool("s.echo", {"text": "x"})
        assert kept.get_finished_spans() == ()


def stamped(tracer: OtelTracer, **meta: Any) -> dict[str, Any]:
    """The trace context that the server gets."""
    params: dict[str, Any] = {"name": "t", "arguments": {}}
    if meta:
        params["_meta"] = meta
    call = Call("s.t", "tools/call", params, "s", "t", state=TimedCallState())
    call.state.begin_attempt()
    found = tracer.start_trace(call)
    told = found.inject(call).params if found is not None else call.params
    assert told["arguments"] == {}
    return dict(told.get("_meta", {}))


def tracer(ratio: float | None) -> OtelTracer:
    return OtelTracer(provider()[0].get_tracer("t"), lambda _: {}, ratio)


def test_each_attempt_sends_its_span_and_keeps_other_meta() -> None:
    told = stamped(tracer(1.0), traceparent=PARENT, tracestate="vendor=1", baggage="user=7", other={"kept": True})
    version, id_, span, flags = told["traceparent"].split("-")
    assert (version, id_, flags) == ("00", PARENT.split("-")[1], "01") and span != PARENT.split("-")[2]
    assert (told["tracestate"], told["baggage"], told["other"]) == ("vendor=1", "user=7", {"kept": True})


def test_unrecorded_call_sends_unsampled_context() -> None:
    told = stamped(tracer(0.0))
    assert told["traceparent"].endswith("-00") and len(told["traceparent"]) == 55
    assert stamped(tracer(0.0), traceparent=QUIET) == {"traceparent": QUIET}  # as it came
    assert stamped(tracer(0.0)) != stamped(tracer(0.0))


@pytest.mark.parametrize(
    "nonsense", ["", "00-xyz", 7, None, {"a": 1}, "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 9999]
)
def test_invalid_trace_context_starts_a_new_trace(nonsense: Any, caplog: pytest.LogCaptureFixture) -> None:
    told = stamped(tracer(1.0), traceparent=nonsense)
    assert len(told["traceparent"]) == 55 and int(told["traceparent"][-2:], 16) & 1  # recorded
    assert caplog.text == ""  # no one can fill our log so


async def test_spans_name_errors_without_their_text() -> None:
    async with traced() as (hub, kept):
        with pytest.raises(CallTimeout):
            await hub.call_tool("s.sleep", {"seconds": 30}, timeout=0.2)
        with pytest.raises(ProtocolError):
            await hub.call_tool("s.bad", {"mode": "error", "message": "secret-of-a-server"})
        await hub.call_tool("s.fail", {}, raise_on_error=False)
        spans = kept.get_finished_spans()
    types = [dict(span.attributes or {}).get("error.type") for span in spans if span.parent is None]
    assert types[0] == "E-TIMEOUT" and str(types[1]).startswith("-3") and types[2] == "tool_error"
    assert all(span.status.description is None and not span.events for span in spans)
    assert "secret-of-a-server" not in json.dumps([span.to_json() for span in spans])


async def test_rejected_attempt_has_a_span() -> None:
    made, kept = provider()
    async with Hub(
        {"s": {**fake_server(), "limits": {"maxConcurrent": 1, "maxQueued": 1}}}, catalog_storage=None
    ) as hub:
        await hub.wait_ready()
        hub.enable_tracing(made, sample_ratio=1.0)
        calls = [asyncio.create_task(hub.call_tool("s.sleep", {"seconds": 0.2})) for _ in range(3)]
        await asyncio.gather(*calls, return_exceptions=True)
    spans = kept.get_finished_spans()
    refused = [span for span in spans if dict(span.attributes or {}).get("error.type") == "E-OVERLOADED"]
    assert {span.kind for span in refused} == {trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT}
    assert {span.name for span in spans} >= {"queue", "server"}


# -- what the settings and variables say ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "environ", "wanted", "ratio"),
    [
        (None, {}, False, 1.0),
        (TraceSettings(), {}, True, 1.0),
        (TraceSettings("http://c:4318", 0.25), {}, True, 0.25),
        (None, {otlp.OTLP_ENDPOINT_VAR: "http://c:4318"}, True, 1.0),
        (None, {otlp.OTLP_TRACES_ENDPOINT_VAR: "http://c:4318/v1/traces"}, True, 1.0),
        (None, {otlp.OTLP_ENDPOINT_VAR: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False, 1.0),
        (TraceSettings(), {"OTEL_SDK_DISABLED": "true"}, False, 1.0),
        (
            None,
            {
                otlp.OTLP_ENDPOINT_VAR: "x",
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "0.1",
            },
            True,
            0.1,
        ),
        (
            None,
            {
                otlp.OTLP_ENDPOINT_VAR: "x",
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "?",
            },
            True,
            1.0,
        ),
        (None, {otlp.OTLP_ENDPOINT_VAR: "x", "OTEL_TRACES_SAMPLER": "parentbased_always_off"}, True, 0.0),
        (None, {otlp.OTLP_ENDPOINT_VAR: "x", "OTEL_TRACES_SAMPLER": "traceidratio"}, True, None),
    ],
)
def test_traces_are_recorded_only_if_enabled(
    settings: TraceSettings | None, environ: dict[str, str], wanted: bool, ratio: float | None
) -> None:
    assert otlp.is_trace_export_enabled(TelemetrySettings(traces=settings), environ) is wanted
    assert otlp.get_sample_ratio(settings, environ) == ratio


async def test_workflow_run_is_a_trace_of_its_steps_and_calls(tmp_path: Path) -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    from toolway.workflows import Workflows

    step = {"tool": "s.echo", "params": {"text": "x"}}
    async with traced() as (hub, kept), Workflows(hub, tmp_path / "runs.db") as workflows:
        body = {"name": "w", "steps": [{**step, "name": "a"}, {"name": "ok", "approve": "?"}, {**step, "name": "b"}]}
        run = await workflows.start(body)
        await run.wait()
        await workflows.answer(run.id, None, {"yes": True})
        await run.result()
        while workflows.active_runs:
            await asyncio.sleep(0.01)
        spans = kept.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}

    def parent(span: ReadableSpan) -> ReadableSpan:
        assert span.parent is not None
        return by_id[span.parent.span_id]

    calls = [span for span in spans if span.name == "tools/call s.echo" and span.kind is trace.SpanKind.INTERNAL]
    assert [parent(call).name for call in calls] == ["step a", "step b"]
    lives = [parent(parent(call)) for call in calls]
    assert [(dict(span.attributes or {}))["toolway.state"] for span in lives] == ["asks", "done"]
    assert {span.name for span in lives} == {"workflow w"}
    expected = hashlib.sha256(run.id.encode()).hexdigest()[:32]
    assert {f"{span.context.trace_id:032x}" for span in (*lives, *calls)} == {expected}
