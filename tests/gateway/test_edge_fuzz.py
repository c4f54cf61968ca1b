"""Requests with a good token that are wrong in every other way: each gets an answer, and none is a failure of ours."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.edge_lab import HELLO, META, MODERN, TYPES, Edge, edge
from tests.http.raw_client import until

METHODS = (
    *("tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/templates/list"),
    *("resources/read", "resources/subscribe", "resources/unsubscribe", "completion/complete", "logging/setLevel"),
    *("initialize", "notifications/initialized", "notifications/cancelled", "ping", "server/discover", "tasks/get"),
    *("tasks/update", "tasks/cancel", "roots/list", "sampling/createMessage", "", "nothing/such"),
)
KEYS = (
    *("name", "arguments", "uri", "cursor", "ref", "argument", "level", "taskId", "requestId", "requestState"),
    *("inputResponses", "protocolVersion", "capabilities", "clientInfo", "_meta", "notifications", "type", "value"),
)
WORDS = (
    *(
        "a__echo",
        "a__add",
        "a__elicit",
        "a__greet",
        "b__echo",
        "fake://text",
        "fake://item/{id}",
        "toolway:a/fake://text",
    ),
    *(
        "ref/prompt",
        "ref/resource",
        MODERN,
        "2025-11-25",
        "debug",
        "",
        "=?base64?YV9fZWNobw==?=",
        "\u0000",
        "ü",
        "x" * 300,
    ),
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
meta: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        f"{META}protocolVersion": st.sampled_from((MODERN, "2025-11-25", "1")) | values,
        f"{META}clientCapabilities": st.just({}) | st.just({"elicitation": {"form": {}}}) | values,
        f"{META}logLevel": st.sampled_from(("debug", "loud")) | values,
        "progressToken": values,
        "toolway/timeoutMs": values,
        "toolway/idempotencyKey": values,
    },
)
good_meta = st.just({f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}})
params = st.fixed_dictionaries(
    {"_meta": good_meta | meta | values},
    optional={
        "name": st.sampled_from(WORDS) | values,
        "uri": st.sampled_from(WORDS) | values,
        "arguments": st.dictionaries(st.sampled_from(("text", "a", "b")), values, max_size=3) | values,
        **dict.fromkeys(("cursor", "ref", "argument", "level", "taskId", "requestState", "inputResponses"), values),
    },
)
bodies = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | values, "method": st.sampled_from(METHODS)},
    optional={"id": st.integers(0, 5) | values, "params": params | values, "result": values, "error": values},
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "Mcp-Protocol-Version": st.sampled_from((MODERN, "2025-11-25", "1", "")),
        "Mcp-Session-Id": st.sampled_from(("SESSION", "", "x", "A" * 200)),
        "Mcp-Method": st.sampled_from(("SAME", *METHODS)),
        "Mcp-Name": st.sampled_from(("SAME", "a__echo", "=?base64?!!?=", "=?base64?/w==?=", "\xff")),
        "Mcp-Param-X": st.sampled_from(("", "1", "=?base64?", "\xff")),
        "Accept": st.sampled_from(("", "*/*", "text/event-stream", "application/json")),
        "Content-Type": st.sampled_from(("", "application/json; charset=x", "APPLICATION/JSON", "text/plain")),
        "Idempotency-Key": st.sampled_from(("", "k", "x" * 5000)),
        "Last-Event-Id": st.sampled_from(("", "1", "\xff")),
    },
)
paths = st.sampled_from(
    (
        "/mcp",
        "/mcp/both",
        "/mcp/server/a",
        "/messages",
        "/messages?session=x",
        "/admin",
        "/admin/keys",
        "/admin/servers/x",
    )
)
verbs = st.sampled_from(("POST",) * 8 + ("GET", "DELETE", "PUT", "HEAD", "OPTIONS"))


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


@pytest.fixture
def complaints():
    handler = _Complaints()
    logging.getLogger().addHandler(handler)
    yield handler.said
    logging.getLogger().removeHandler(handler)


def test_malformed_requests_get_an_answer_without_server_errors(tmp_path: Path, complaints: list[str]):
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        found = runner.run(stack.enter_async_context(edge(tmp_path)))
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        session = runner.run(found.ask("POST", "/mcp", hello)).headers["mcp-session-id"]
        token = found.key()  # that may change nothing

        @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
        @given(verbs, paths, bodies | values, headers)
        def check(verb: str, path: str, body: Any, fields: dict[str, str]) -> None:
            complaints.clear()
            status = runner.run(_ask(found, verb, path, body, fields, session, token))
            assert 200 <= status < 500 or status in (502, 503, 504), status
            assert complaints == []

        try:
            check()
            runner.run(
                until(lambda: len(found.gateway.http_server) == 0 and found.gateway.http_server.active_count == 0)
            )
            assert not found.gateway.http_server.body_budget and not found.gateway.router._active_requests
        finally:
            runner.run(stack.aclose())


async def _ask(found: Edge, verb: str, path: str, body: Any, fields: dict[str, str], session: str, token: str) -> int:
    """The status of the answer; a stream that continues is left."""
    sent = {name: _same(name, value, body, session) for name, value in fields.items()}
    data = json.dumps(body).encode() if verb in ("POST", "PUT") else b""
    async with found.connected() as client:
        await client.send(found.request(verb, path, data, {**TYPES, **sent}, token=token))
        return (await client.head()).status


def _same(name: str, value: str, body: Any, session: str) -> str:
    """What the body says, where the header is to agree with it."""
    if value == "SESSION":
        return session
    if value != "SAME" or not isinstance(body, dict):
        return value
    inner = body.get("params")
    said = body.get("method") if name == "Mcp-Method" else inner.get("name") if isinstance(inner, dict) else ""
    text = said if isinstance(said, str) else ""
    return text if text.isascii() and text.isprintable() else ""
