"""`X-Request-ID`: accepted, returned, logged, and sent to servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.audit.log_reader import records
from tests.gateway.edge_lab import Edge, edge, handshake, message_of, modern
from tests.gateway.load_clients import Connection
from tests.gateway.program import program
from toolway.events import CallFinished
from toolway.testing import FakeHttp, fake_server
from toolway.types import Json

pytestmark = [pytest.mark.anyio, pytest.mark.promise("D18")]
UUID = "6f1c2a58-5b57-4b0e-9d9f-0d3c6f1e2a11"


def watch_headers(found: Edge, server: str) -> list[str | None]:
    """Return a list that gets the X-Request-ID of each POST to a fake server."""
    seen: list[str | None] = []
    endpoint: Any = found.fakes[server].endpoint
    check = endpoint._check_headers

    def watching(exchange: Any) -> int | None:
        seen.append(exchange.request.headers.get("x-request-id"))
        status: int | None = check(exchange)
        return status

    endpoint._check_headers = watching
    return seen


async def call(found: Edge, headers: dict[str, str], era: str = "modern", tool: str = "echo") -> tuple[str, Json]:
    """Call a tool of `a`; return the X-Request-ID of the response, and the message in it."""
    params: Json = {"name": f"a__{tool}", "arguments": {"text": "x"}}
    if era == "modern":
        body, fields = modern("tools/call", params)
    else:
        body = handshake("tools/call", params)
        fields = {"Mcp-Session-Id": await found.initialize()} if era == "legacy" else {}
    answer = await found.ask("POST", "/mcp", body, {**fields, **headers})
    return answer.headers.get("x-request-id", ""), message_of(answer)


@pytest.mark.parametrize("era", ["modern", "legacy", "stateless"])
async def test_client_request_id_is_returned_logged_and_forwarded(tmp_path: Path, era: str) -> None:
    async with edge(tmp_path) as found:
        seen, events = watch_headers(found, "a"), found.hub.events(CallFinished)
        returned, message = await call(found, {"X-Request-ID": UUID}, era)
        event = await asyncio.wait_for(anext(events), 10)
        assert isinstance(event, CallFinished)
    assert "result" in message
    assert (returned, event.request_id, seen) == (UUID, UUID, [UUID])
    assert event.id != UUID  # a client cannot choose the id of a call


async def test_repeated_client_request_id_is_returned_each_time(tmp_path: Path) -> None:
    """The head of such requests is always the same, so a call could be a flight, which knows no id."""
    async with edge(tmp_path, servers={"a": FakeHttp(name="a", era="modern")}) as found:
        seen = watch_headers(found, "a")
        returned = [(await call(found, {"X-Request-ID": UUID}, tool="fail"))[0] for _ in range(3)]
    assert (returned, seen) == ([UUID] * 3, [UUID] * 3)


@pytest.mark.parametrize("era", ["modern", "legacy", "stateless"])
async def test_request_without_an_id_gets_the_call_id(tmp_path: Path, era: str) -> None:
    async with edge(tmp_path) as found:
        seen, events = watch_headers(found, "a"), found.hub.events(CallFinished)
        first, _ = await call(found, {}, era)
        event = await asyncio.wait_for(anext(events), 10)
        assert isinstance(event, CallFinished)
        second, _ = await call(found, {}, era)
    assert first and second and first != second
    assert (event.id, event.request_id) == (first, "")
    assert seen == [None, None]


@pytest.mark.parametrize(
    "bad", ["", "x" * 129, "two words", "tab\tinside", "gr\xfc\xdfe", "a\r\nX-Request-ID: b"], ids=range(6)
)
async def test_unacceptable_request_id_is_replaced(tmp_path: Path, bad: str) -> None:
    async with edge(tmp_path) as found:
        returned, message = await call(found, {"X-Request-ID": bad})
    assert returned.isalnum() and returned != bad and "result" in message


async def test_every_kind_of_response_has_a_request_id(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        answers = [
            await found.ask("GET", "/healthz", token=None),
            await found.ask("GET", "/admin/servers", fields={"X-Request-ID": "mine"}),
            await found.ask("POST", "/mcp", b"{", fields={"X-Request-ID": "mine"}, token="wrong"),
            await found.ask("POST", "/mcp", b"{", fields={"X-Request-ID": "mine"}),
            await found.ask("GET", "/nothing", fields={"X-Request-ID": "mine"}),
        ]
    assert [answer.status for answer in answers] == [200, 200, 401, 400, 404]
    assert answers[0].headers["x-request-id"].isalnum()
    assert [answer.headers["x-request-id"] for answer in answers[1:]] == ["mine"] * 4


async def test_audit_log_contains_the_request_id(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    async with program(folder, {"s": fake_server()}, audit=True) as run:
        for tool in ("counter", "echo"):  # one that changes something, and one that reads
            body, fields = modern("tools/call", {"name": f"s__{tool}", "arguments": {"text": "x", "nonce": "n"}})
            connection = await Connection.to(run.port)
            headers = {**fields, "X-Request-ID": UUID, "authorization": f"Bearer {run.token}"}
            headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            answer = await connection.request("POST", "/mcp", headers, json.dumps(body).encode())
            connection.close()
            assert answer.status == 200
        assert await run.stop() == 0
    log = folder / "state" / "audit.sqlite"
    made = {
        each["tool"]: each.get("request")
        for kind in ("call.intent", "call.outcome")
        for each in audit_records(log, kind)
    }
    assert made == {"counter": UUID, "echo": UUID}


def audit_records(log: Path, kind: str) -> list[Json]:
    """Return the records of a kind that name the request: an outcome after an intent has only the id of the call."""
    return [each for each in records(log, kind) if kind == "call.intent" or "method" in each]
