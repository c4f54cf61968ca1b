"""Messages hidden in headers, in requests and responses."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.faults.fault_lab import ERAS, WAYS, lab
from tests.faults.matrix.http.scripted_server import Turn, scripted
from tests.faults.matrix.http.web_servers import calm_down, web
from tests.timing import within
from toolway import CallError, ProtocolError, Server, ServerUnavailable
from toolway.testing import FakeHttp

pytestmark = pytest.mark.anyio

EVIL = (
    "a\r\nX-Evil: 1",
    "a\nX-Evil: 1",
    "a\rX-Evil: 1",
    "a\r\n\r\nGET /evil HTTP/1.1\r\nHost: x\r\n\r\n",
    "a\x00X-Evil: 1",
    "\r\n",
    " leading and trailing ",
    "ünïcode \u2028 X-Evil: 1",
    "=?base64?ZXZpbA==?=",
)


def answers(body: bytes) -> dict[str, bytes]:
    """Responses that two readers could understand differently."""
    size, more = len(body), len(body) + 7
    typed = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
    return {
        "length and chunks": typed + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % size + chunked,
        "two lengths": typed + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (size, more) + body,
        "a list of lengths": typed + b"Content-Length: %d, %d\r\n\r\n" % (size, more) + body,
        "a signed length": typed + b"Content-Length: +%d\r\n\r\n" % size + body,
        "a length in hex": typed + b"Content-Length: 0x%x\r\n\r\n" % size + body,
        "a negative length": typed + b"Content-Length: -1\r\n\r\n" + body,
        "chunked twice": typed + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + chunked,
        "a coding before chunked": typed + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked,
        "an unknown coding": typed + b"Transfer-Encoding: xchunked\r\n\r\n" + chunked,
        "a folded line": typed + b"X-Fold: a\r\n Content-Length: 5\r\nContent-Length: %d\r\n\r\n" % size + body,
        "space before the colon": typed + b"Content-Length : %d\r\n\r\n" % size + body,
        "a bare return in a value": typed + b"X-A: b\rContent-Length: 5\r\nContent-Length: %d\r\n\r\n" % size + body,
        "a zero byte in a value": typed + b"X-A: b\0c\r\nContent-Length: %d\r\n\r\n" % size + body,
        "a line without a colon": typed + b"nonsense\r\nContent-Length: %d\r\n\r\n" % size + body,
        "a chunk size that overflows": typed + b"Transfer-Encoding: chunked\r\n\r\n1" + b"0" * 16 + b"\r\n" + body,
        "a negative chunk": typed + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + body,
        "another protocol": b"HTTP/9.9 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body,
        "no protocol": b"\x16\x03\x01\x02\x00" + body,
    }


@ERAS
@pytest.mark.fault("B29")
async def test_ambiguous_http_response_is_rejected(era: str) -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        body = turn.good.partition(b"\r\n\r\n")[2]
        how = turn.request.json["params"]["arguments"].get("how")
        await turn.conn.send(answers(body)[how] if how else turn.good)
        if how:
            turn.conn.writer.close()

    async with scripted(era, react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        for how in answers(b""):
            outcome = await bench.call("bad.act", {"how": how, "effect": True}, timeout=5)
            outcome.expect(ProtocolError, "unknown")
            assert outcome.seconds < within(2), how
            for _ in range(2):  # so no breaker opens
                (await bench.call("bad.act", {"effect": True})).expect(None)


@WAYS
@pytest.mark.fault("B29")
async def test_argument_never_becomes_a_header_line(era: str) -> None:
    fake = web(era)
    heads: list[dict[str, str]] = []
    serve = fake.endpoint.serve

    async def watch(exchange):
        heads.append(dict(exchange.request.headers))
        await serve(exchange)

    fake.endpoint.serve = watch  # type: ignore[method-assign]
    async with lab({"bad": fake}) as bench:
        for text in EVIL:
            outcome = (await bench.call("bad.echo", {"text": text, "tag": text})).expect(None)
            assert outcome.text == text
            for uri in (text, f"fake://item/{text}"):
                with pytest.raises(CallError):
                    await bench.hub.read_resource(uri, server="bad")
                    raise ProtocolError("read, whatever it is")
        await calm_down(bench)
    assert not [head for head in heads if "x-evil" in head]
    assert fake.stats.requests.get("GET", 0) <= 1
    assert len(heads) > len(EVIL)


@WAYS
@pytest.mark.fault("B29")
async def test_tool_with_invalid_name_is_never_sent(era: str) -> None:
    names = ["x\r\nX-Evil: 1", "x\nX-Evil: 1", "x\0", "naïve", "x" * 200]
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in [*names, "act"]]
    async with scripted(era, tools=tools) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        (await bench.call("bad.act", {"effect": True})).expect(None)
        assert [tool.name for tool in bench.hub.known_tools(server="bad")] == ["act"]
        for name in names:
            outcome = await bench.call(f"bad.{name}", timeout=5)
            assert (outcome.ok, outcome.executed) == (False, "no")
        assert len(server.turns) == 1
        assert not [request for request in server.requests if "x-evil" in request.headers]


@pytest.mark.parametrize("sse", [False, True])
@pytest.mark.fault("B29")
async def test_configured_header_that_breaks_http_fails_the_server(sse: bool) -> None:
    wrong = (
        {"X-A": "b\r\nX-Evil: 1"},
        {"X-A\r\nX-Evil": "1"},
        {"X-A": "b\0"},
        {"X A": "b"},
        {"Transfer-Encoding": "chunked"},
        {"Content-Length": "5"},
        {"Host": "evil.test"},
    )
    async with FakeHttp() as fake:
        servers = {f"bad-{n}": Server(url=fake.url, headers=headers, sse=sse) for n, headers in enumerate(wrong)}
        async with lab(servers) as bench:
            for name in servers:
                outcome = (await bench.call(f"{name}.counter", timeout=5, max_attempts=1)).expect(
                    ServerUnavailable, "no"
                )
                assert outcome.error is not None and outcome.error.code == "E-HTTP-CONFIG"
            assert fake.stats.connections == 0


@pytest.mark.fault("B29")
async def test_session_id_is_echoed_unchanged_or_not_at_all() -> None:
    ids = ("caf\xe9", "a\tb", "x" * 5000, "a, b")
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(scripted("legacy", Mcp_Session_Id=id_.encode().decode("latin-1")))
            for id_ in ids
        ]
        async with lab({f"bad-{n}": server.url for n, server in enumerate(servers)}) as bench:
            for n, server in enumerate(servers):
                outcome = await bench.call(f"bad-{n}.act", timeout=5)
                sent = {request.headers.get("mcp-session-id") for request in server.requests[2:]}
                assert sent <= {ids[n]} if outcome.ok else not server.turns


@pytest.mark.fault("B29")
async def test_non_ascii_event_id_is_not_used_to_resume() -> None:
    async def react(turn: Turn) -> None:
        turn.take_effect()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        await turn.conn.send(head + "id: ünïcode\ndata: {}\n\n".encode())
        turn.conn.writer.close()

    async with scripted("legacy", react) as server, lab({"bad": server.url}) as bench:
        server.effects = str(bench.effects)
        outcome = await bench.call("bad.act", {"effect": True}, timeout=5)
        assert (outcome.ok, outcome.executed, outcome.seconds < within(2)) == (False, "unknown", True)
        assert not [request for request in server.requests if "last-event-id" in request.headers]
