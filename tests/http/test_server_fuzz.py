"""Whatever bytes come, in whatever pieces: the server stays, and keeps nothing of those who have gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.http.raw_client import Raw, chunked, connected, get, post, serving, until
from toolway.http.exchange import Exchange
from toolway.http.limits import ServerLimits

LIMITS = ServerLimits(
    max_head_bytes=2000,
    max_headers=20,
    max_body_bytes=3000,
    max_total_body_bytes=20_000,
    max_pipelined=4,
    max_unread_bytes=100_000,
    rejection_linger=0.05,
    sweep_interval=0.05,
)

SEEDS = (
    get("/a"),
    get("/a?b=c", "Accept: */*", "X: " + "y" * 300),
    post("/p", b'{"jsonrpc":"2.0"}', "Content-Type: application/json"),
    post("/p", b"z" * 2500),
    get("/c", "Transfer-Encoding: chunked", method="POST") + chunked(b"one", b"two" * 100),
    get("/e", "Expect: 100-continue", "Content-Length: 3", method="POST") + b"abc",
    get("/u", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 3", method="POST") + b"abc",
    get("/old", version="1.0"),
    get("/h", method="HEAD"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
PIECES = (
    b"\r\n",
    b"\n",
    b"\0",
    b":",
    b" ",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"0\r\n\r\n",
    b"\xff",
)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """A few requests, some of them spoiled, cut into pieces."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS) | st.binary(max_size=200), min_size=1, max_size=8))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(("insert", "remove", "change")))
        if kind == "insert":
            data[at:at] = draw(st.sampled_from(PIECES) | st.binary(min_size=1, max_size=8))
        elif kind == "remove":
            del data[at : at + draw(st.integers(1, 20))]
        elif at < len(data):
            data[at] = draw(st.integers(0, 255))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def handler(exchange: Exchange) -> None:
    """A little of everything that handlers do."""
    if exchange.request.path == "/c":
        exchange.open(200, ())
        exchange.write(exchange.request.body)
        await asyncio.sleep(0)
        exchange.end()
    elif exchange.request.path == "/p":
        await asyncio.sleep(0.001)
        exchange.reply(200, exchange.request.body)
    else:
        exchange.reply(200, b"ok")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(conversations(), st.sampled_from(("close", "reset", "wait"))), min_size=1, max_size=4))
@example([([get("/a") * 300], "wait")])
@example([([SEEDS[6], SEEDS[6]], "wait")])
def test_random_bytes_never_break_or_leak_the_server(clients: Sequence[tuple[list[bytes], str]]):
    asyncio.run(_run_clients(clients))


async def _run_clients(clients: Sequence[tuple[list[bytes], str]]) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    failed = _Failed()
    logging.getLogger("toolway.gateway.http").addHandler(failed)
    try:
        async with serving(handler, LIMITS) as (server, port):  # which looks at what is left
            await asyncio.gather(*(_send(port, pieces, end) for pieces, end in clients))
            async with connected(port) as well:
                assert (await well.ask(get("/still"))).body == b"ok"
            await until(lambda: not server.body_budget and server.active_count == 0)
    finally:
        logging.getLogger("toolway.gateway.http").removeHandler(failed)
    assert (complaints, failed.records) == ([], [])


class _Failed(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


async def _send(port: int, pieces: Sequence[bytes], end: str) -> None:
    async with connected(port) as client:
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0)
        if end == "reset":
            client.reset()
        elif end == "wait":
            await _read_a_little(client)


async def _read_a_little(client: Raw) -> None:
    try:
        async with asyncio.timeout(0.02):
            await client.closed()
    except TimeoutError:
        pass
