"""Spans of agent runs by the GenAI conventions, in one trace with the calls, a gateway and its server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
pytest.importorskip("opentelemetry.sdk", reason="the extra toolway[otel] is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.gateway.bridge_lab import lab
from toolway import Hub
from toolway.agents import Agent, agent_workflow
from toolway.testing import FakeHttp, FakeLLM, LLMFault, TokenUsage, ToolUse, Turn
from toolway.testing.server import FakeServer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> tuple[TracerProvider, InMemorySpanExporter]:
    """A provider that keeps its spans in memory. Fake servers have spans in it too, by the context that they get."""
    made, kept = TracerProvider(), InMemorySpanExporter()
    made.add_span_processor(SimpleSpanProcessor(kept))
    handle = FakeServer.handle

    def traced(self: FakeServer, message: Any, *more: Any, **named: Any) -> Any:
        if message.get("method") == "tools/call":
            context = TraceContextTextMapPropagator().extract(message["params"]["_meta"])
            made.get_tracer("server").start_span("work of the server", context=context).end()
        return handle(self, message, *more, **named)

    monkeypatch.setattr(FakeServer, "handle", traced)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return made, kept


def chain(spans: tuple[ReadableSpan, ...], name: str) -> list[str]:
    """Return the names of a span and its parents, the span first."""
    by_id = {each.context.span_id: each for each in spans}
    span: ReadableSpan | None = next(each for each in spans if each.name == name)
    found = []
    while span is not None:
        found.append(span.name)
        span = by_id.get(span.parent.span_id) if span.parent is not None else None
    return found


@pytest.mark.anyio
async def test_one_trace_spans_run_gateway_and_server(
    provider: tuple[TracerProvider, InMemorySpanExporter],
) -> None:
    made, kept = provider
    first = Turn(
        calls=[ToolUse("gate__demo__add", {"a": 1, "b": 2}, id="call-7")], usage=TokenUsage(900, 80, 600, 0, 50)
    )
    with FakeLLM([first, Turn("3", fault=LLMFault("500", retry_after=0.01))]) as llm:
        async with FakeHttp() as fake, lab({"demo": {"url": fake.url}}) as gateway:
            gateway.hub.enable_tracing(made, sample_ratio=1.0)
            async with Hub({"gate": gateway.url()}, catalog_storage=None) as hub:
                await hub.wait_ready()
                hub._core.enable_tracing(made)
                async with Agent("openai-chat:gpt-4o", hub, approve="none", base_url=llm.openai_url) as agent:
                    run = await agent.start("What is 1 + 2?")
                    assert (await run.result()).output == "3"
    spans = kept.get_finished_spans()
    assert len({span.context.trace_id for span in spans}) == 1
    call = "tools/call gate.demo__add", "tools/call demo__add"
    assert chain(spans, "work of the server") == [
        "work of the server",
        "tools/call add",  # attempt of the gateway
        call[1],  # call at the gateway
        call[1],  # attempt of the hub
        call[0],
        "execute_tool gate.demo__add",
        "invoke_agent",
    ]
    assert [span.kind for span in spans if span.name == call[1]] == [SpanKind.SERVER, SpanKind.CLIENT]
    tool = next(dict(span.attributes or {}) for span in spans if span.name == "execute_tool gate.demo__add")
    assert tool["gen_ai.operation.name"] == "execute_tool"
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.call.id"]) == ("gate.demo__add", "call-7")
    chats = [span for span in spans if span.name == "chat gpt-4o"]
    assert {(span.kind, chain(spans, span.name)[1]) for span in chats} == {(SpanKind.CLIENT, "invoke_agent")}
    answered, failed, again = (dict(span.attributes or {}) for span in chats)
    assert {key: value for key, value in answered.items() if key.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o",
        "gen_ai.response.id": "fake-1",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.conversation.id": run.id,
        "gen_ai.usage.input_tokens": 900,
        "gen_ai.usage.output_tokens": 80,
        "gen_ai.usage.cache_read.input_tokens": 600,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 50,
    }
    assert (failed["error.type"], "error.type" in again) == ("no_answer", False)
    assert "What is" not in str([span.to_json() for span in spans])  # no text of the conversation


@pytest.mark.anyio
async def test_agent_step_is_in_its_workflow_trace(
    provider: tuple[TracerProvider, InMemorySpanExporter],
) -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    from toolway.workflows import Workflows
    from toolway.workflows.sqlite_journal import SqliteJournal

    made, kept = provider
    with FakeLLM(["Hello."]) as llm:
        agent = {"prompt": "Greet.", "model": "openai-chat:gpt-4o", "base_url": llm.openai_url, "tools": []}
        async with (
            Hub({}) as hub,
            Workflows(hub, SqliteJournal(None), code=[agent_workflow(hub, model_urls=[llm.openai_url])]) as workflows,
        ):
            hub._core.enable_tracing(made)
            run = await workflows.start({"name": "w", "steps": [{"name": "greet", "agent": agent}]})
            assert await run.result() == "Hello."
            while workflows.active_runs:
                await asyncio.sleep(0.01)
    spans = kept.get_finished_spans()
    assert len({span.context.trace_id for span in spans}) == 1
    assert chain(spans, "chat gpt-4o") == ["chat gpt-4o", "invoke_agent", "workflow w"]
