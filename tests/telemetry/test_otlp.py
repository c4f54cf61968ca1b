"""Traces and metrics at a collector, from real processes: a client, a gateway and two servers of the SDK."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.gateway.program import Program, program
from tests.telemetry.collector import Collector, Span

pytestmark = pytest.mark.anyio
TRACED = str(Path(__file__).parent / "traced.py")
long = pytest.mark.skipif(not os.environ.get("TOOLWAY_LONG"), reason="ten seconds of CPU: make long-tests ARGS=traces")
CANARY = "canary-of-arguments-5f1c"
SECRET = "canary-of-a-header-77aa31"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        yield found


@asynccontextmanager
async def running(*words: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, TRACED, *words, env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def first_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return (await process.stdout.readline()).decode()


@asynccontextmanager
async def scene(folder: Path, url: str, era: str = "auto", **block: object) -> AsyncIterator[Program]:
    """A gateway before a server over HTTP that refuses its first call, and one over pipes."""
    collected = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    async with running("http", **collected) as one:
        address = f"http://127.0.0.1:{int(await first_line(one))}/mcp"
        servers = {
            "one": {"url": address, "headers": {"Authorization": f"Bearer {SECRET}"}},
            "two": {
                "command": sys.executable,
                "args": [TRACED, "stdio"],
                "env": {**collected, "API_KEY": SECRET},
                "era": era,
            },
        }
        async with program(folder, servers, **block) as gateway:
            yield gateway


async def called(gateway: Program, url: str, era: str) -> list[str]:
    """What the client got with a server's question, in the era that has them."""
    words = ("client", f"http://127.0.0.1:{gateway.port}/mcp", gateway.token)
    async with running(*words, OTEL_EXPORTER_OTLP_ENDPOINT=url, ERA=era, CANARY=CANARY) as client:
        one, two, *asked = json.loads(await first_line(client))
        assert (one, two) == (f"one saw {CANARY}", f"two saw {CANARY}")
        return list(asked)


async def metrics_of(gateway: Program) -> str:
    headers = {"authorization": f"Bearer {gateway.token}"}
    async with httpx2.AsyncClient(trust_env=False, headers=headers) as http:
        return (await http.get(f"http://127.0.0.1:{gateway.port}/metrics")).text


def named(spans: list[Span], service: str, name: str, kind: str) -> list[Span]:
    found = [span for span in spans if (span.service, span.name, span.kind) == (service, name, kind)]
    return sorted(found, key=lambda span: span.began)


@long
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_one_trace_spans_client_gateway_retry_and_servers(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    async with scene(tmp_path, collector.url, era) as gateway:
        asked_back = await called(gateway, collector.url, era)
        scraped = await metrics_of(gateway)
        assert await gateway.stop() == 0  # which sends what is left
        log = gateway.log
    spans = collector.spans
    (agent,) = named(spans, "client", "agent", "INTERNAL")
    mine = [span for span in spans if span.trace == agent.trace]
    by_id = {span.id: span for span in mine}
    assert all(span.parent in by_id for span in mine if span is not agent)

    # The client's own span of the SDK, ours of the call, ours of both tries, the server's of the SDK, and its work.
    (asked,) = named(mine, "client", "MCP send tools/call one__look", "CLIENT") or named(
        mine, "client", "tools/call one__look", "CLIENT"
    )
    (call,) = named(mine, "toolway", "tools/call one__look", "SERVER")
    first, second = named(mine, "toolway", "tools/call look", "CLIENT")[:2]
    (served,) = named(mine, "one", "tools/call look", "SERVER")
    (work,) = named(mine, "one", "their own work", "INTERNAL")
    assert call.parent == asked.id
    assert first.parent == second.parent == call.id
    assert (served.parent, work.parent) == (second.id, served.id)

    about = {"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool"}
    assert call.attributes.items() >= (about | {"gen_ai.tool.name": "one__look", "network.transport": "tcp"}).items()
    assert call.attributes["jsonrpc.request.id"] == asked.attributes["jsonrpc.request.id"]
    assert call.attributes["mcp.protocol.version"] == ("2026-07-28" if era == "auto" else "2025-11-25")
    assert (call.attributes["toolway.attempts"], call.attributes["toolway.executed"]) == (2, "yes")
    assert "error.type" not in call.attributes and not call.failed
    place = {"gen_ai.tool.name": "look", "network.transport": "tcp", "server.address": "127.0.0.1"}
    for number, each in enumerate((first, second), 1):
        assert each.attributes.items() >= (about | place | {"toolway.attempt": number, "toolway.server": "one"}).items()
        assert each.attributes["server.port"] > 0 and each.attributes["mcp.protocol.version"]
    assert (first.failed, first.attributes["error.type"], second.failed) == (True, "E-HTTP-STATUS", False)
    assert first.ended <= second.began and call.began <= first.began and second.ended <= call.ended
    assert second.attributes["jsonrpc.request.id"] == served.attributes["jsonrpc.request.id"]
    phases = [span for span in mine if span.parent in (first.id, second.id) and span.service == "toolway"]
    assert {span.attributes["toolway.phase"] for span in phases} <= {"queue", "connect", "send", "server", "stream"}
    assert "server" in {span.name for span in phases}

    # The other server, over pipes, in the same trace.
    (called_two,) = named(mine, "toolway", "tools/call two__look", "SERVER")
    (tried_two,) = [span for span in mine if span.parent == called_two.id]
    (served_two,) = named(mine, "two", "tools/call look", "SERVER")
    assert (served_two.parent, tried_two.attributes["network.transport"]) == (tried_two.id, "pipe")

    # The other direction: the question of a server carries its context to the client.
    if era == "legacy":
        (question,) = [span for span in mine if span.service == "two" and "elicitation/create" in span.name]
        assert [told.split("-")[1:3] for told in asked_back] == [[agent.trace, question.id]]

    # A tool that says that it failed.
    (failed,) = named(mine, "toolway", "tools/call two__fail", "SERVER")
    assert (failed.failed, failed.attributes["error.type"]) == (True, "tool_error")

    # The same calls as metrics, with exemplars that lead to this trace.
    durations = [(about, point) for name, about, point in collector.points if name == "mcp.server.operation.duration"]
    looked = [
        point
        for about, point in durations
        if about.get("gen_ai.tool.name") == "look" and about["toolway.server"] == "one" and "error.type" not in about
    ]
    assert looked[-1].count == 1 and looked[-1].explicit_bounds[0] == 0.01
    assert looked[-1].exemplars[0].trace_id.hex() == agent.trace
    assert {about.get("error.type") for about, _ in durations} == {None, "tool_error"}

    # No secret and no argument is in any of it, nor in the log.
    ours = [span for span in spans if span.service == "toolway"]
    assert 'toolway_calls_total{code="",method="tools/call",outcome="ok",server="one",tool="look"} 1.0' in scraped
    everything = (
        scraped + repr([(span.name, span.attributes, span.message) for span in ours]) + repr(collector.points) + log
    )
    for canary in (CANARY, SECRET, gateway.token):
        assert canary not in everything
        assert not any(canary.encode() in body for body in collector.bodies)


@long
@pytest.mark.promise("E10")
async def test_nothing_is_exported_by_default(tmp_path: Path, collector: Collector) -> None:
    """Spans of clients and servers go where those say; a gateway that was not asked sends none."""
    async with scene(tmp_path, collector.url) as gateway:
        await called(gateway, collector.url, "auto")
        await gateway.stop()
    assert {span.service for span in collector.spans} == {"client", "one", "two"}
    # The context still passes through.
    (agent,) = named(collector.spans, "client", "agent", "INTERNAL")
    assert {span.trace for span in collector.spans if span.name == "their own work"} == {agent.trace}


@long
async def test_config_file_sets_endpoint_and_sample_ratio(tmp_path: Path, collector: Collector) -> None:
    settings = {"traces": {"endpoint": collector.url, "sample": 0.0}}
    with Collector() as theirs:
        async with scene(tmp_path, theirs.url, telemetry=settings) as gateway:
            await called(gateway, theirs.url, "auto")  # its caller has a trace, and decides
            await gateway.stop()
    assert {span.service for span in collector.spans} == {"toolway"}
    (agent,) = named(theirs.spans, "client", "agent", "INTERNAL")
    assert {span.trace for span in collector.spans} == {agent.trace}
