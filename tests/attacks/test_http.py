"""Attacks with one HTTP request, all on one real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.gateway.edge_lab import TOKEN, Edge, edge, modern

pytestmark = pytest.mark.anyio

#: Told apart from an answer to it: a second request, hidden behind the first.
SMUGGLED: Final = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    async with edge(tmp_path_factory.mktemp("gateway")) as found:
        yield found


HELD: Final = {
    1: pytest.mark.attack("held-1"),
    2: pytest.mark.attack("held-2"),
    3: pytest.mark.attack("held-3"),
    4: pytest.mark.attack("held-4"),
    5: pytest.mark.attack("held-5"),
    7: pytest.mark.attack("held-7"),
    9: pytest.mark.attack("held-9"),
}
CHUNKS: Final = "Transfer-Encoding: chunked"
#: The lines that follow an administrator's honest POST, its body, the finding.
AMBIGUOUS: Final = {
    "length then chunks": (["Content-Length: 5", CHUNKS], b"0\r\n\r\n", 1),
    "chunks then length": ([CHUNKS, "Content-Length: 5"], b"0\r\n\r\n", 1),
    "two lengths": (["Content-Length: 0", "Content-Length: 44"], b"", 2),
    "one length twice": (["Content-Length: 0", "Content-Length: 0"], b"", 2),
    "a list of lengths": (["Content-Length: 0, 44"], b"", 2),
    "a length with a sign": (["Content-Length: +0"], b"", 2),
    "a negative length": (["Content-Length: -1"], b"", 2),
    "a length in hexadecimal": (["Content-Length: 0x2c"], b"", 2),
    "a huge length": ([f"Content-Length: {10**30}"], b"", 2),
    "something like chunks": (["Transfer-Encoding: xchunked"], b"0\r\n\r\n", 3),
    "identity": (["Transfer-Encoding: identity"], b"", 3),
    "chunks twice": (["Transfer-Encoding: chunked, chunked"], b"0\r\n\r\n", 3),
    "chunks in two lines": ([CHUNKS, CHUNKS], b"0\r\n\r\n", 3),
    "chunks behind a vertical tab": (["Transfer-Encoding: \x0bchunked"], b"0\r\n\r\n", 3),
    "a folded header": (["X: a\r\n Content-Length: 44"], b"", 4),
    "a bare line feed": (["X: a\nContent-Length: 44"], b"", 4),
    "a bare carriage return": (["X: a\rContent-Length: 44"], b"", 4),
    "a NUL": (["X: a\0b"], b"", 4),
    "a space before the colon": (["Content-Length : 44"], b"", 4),
    "a chunk size that overflows": ([CHUNKS], b"fffffffffffffffff\r\n", 5),
    "a negative chunk size": ([CHUNKS], b"-1\r\n\r\n", 5),
    "a chunk size ended by a line feed": ([CHUNKS], b"0\n\r\n", 5),
    "a chunk without its end": ([CHUNKS], b"1\r\nabc\r\n0\r\n\r\n", 5),
    "an endless chunk extension": ([CHUNKS], b"1;" + b"x" * 200_000 + b"\r\na\r\n0\r\n\r\n", 5),
    "a head of 40 kB": ([f"X: {'a' * 40_000}"], b"", 7),
    "300 headers": ([f"X-{number}: a" for number in range(300)], b"", 7),
    "two hosts and an upgrade": (["Host: evil.example", "Connection: Upgrade", "Upgrade: websocket"], b"", 9),
    "two tokens and an upgrade": (["Authorization: Bearer x", "Connection: Upgrade", "Upgrade: h2c"], b"", 9),
}


@pytest.mark.parametrize("case", [pytest.param(name, marks=HELD[number]) for name, (_, _, number) in AMBIGUOUS.items()])
async def test_ambiguous_request_is_rejected(gateway: Edge, case: str) -> None:
    lines, body, _ = AMBIGUOUS[case]
    head = ["POST /mcp HTTP/1.1", f"Host: 127.0.0.1:{gateway.port}", f"Authorization: Bearer {TOKEN}", *lines]
    before = gateway.contacts()
    async with gateway.connected() as client:
        sending = asyncio.create_task(client.send("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body + SMUGGLED))
        answer = await client.answer()
        assert 400 <= answer.status < 600, case
        rest = await client.closed() if answer.headers.get("connection") == "close" else b""
        await sending
    assert b'"ok":true' not in rest
    if answer.headers.get("connection") != "close":  # it was read in one way, and refused for what it asked
        assert answer.status in (400, 401) and "two" in case
    assert gateway.contacts() == before


ODD_LINES: Final = ("POST /mcp  HTTP/1.1", "POST  /mcp HTTP/1.1", "POST   /mcp   HTTP/1.1", "GET /healthz  HTTP/1.1")


@pytest.mark.attack("A2-S9")
@pytest.mark.parametrize("line", ODD_LINES)
async def test_odd_request_line_is_rejected(gateway: Edge, line: str) -> None:
    head = [line, f"Host: 127.0.0.1:{gateway.port}", f"Authorization: Bearer {TOKEN}", "Content-Length: 0"]
    async with gateway.connected() as client:
        answer = await client.ask("\r\n".join(head).encode() + b"\r\n\r\n")
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert b"one space" in answer.body
        assert await client.closed() == b""


@pytest.mark.attack("held-6")
async def test_token_in_a_trailer_is_rejected(gateway: Edge) -> None:
    lines = ["POST /mcp HTTP/1.1", f"Host: 127.0.0.1:{gateway.port}", CHUNKS, "Trailer: Authorization"]
    body = b"2\r\n{}\r\n0\r\n" + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    async with gateway.connected() as client:
        assert (await client.ask("\r\n".join(lines).encode() + b"\r\n\r\n" + body)).status == 401


UPGRADE: Final = b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"


@pytest.mark.attack("held-9")
@pytest.mark.parametrize(
    "first",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        UPGRADE
        + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        UPGRADE + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n\r\n",
    ],
)
async def test_protocol_upgrade_is_rejected_before_authentication(gateway: Edge, first: bytes) -> None:
    async with gateway.connected() as client:
        answer = await client.ask(first)
        assert answer.status in (400, 401, 405)
        assert "upgrade" not in answer.headers


@pytest.mark.attack("held-10")
async def test_altered_head_after_a_known_one_is_rejected(gateway: Edge) -> None:
    body, fields = modern("tools/list", {})
    honest = gateway.request("POST", "/mcp", body, fields)
    others = {
        honest.replace(TOKEN.encode(), TOKEN.encode()[:-1] + b"x"): 401,
        honest.replace(b"Authorization: ", b"X-Authorization: "): 401,
        honest.replace(b"Authorization: Bearer ", b"Authorization: Basic "): 401,
        honest.replace(b"Host: 127.0.0.1", b"Host: evil.example"): 421,
    }
    async with gateway.connected() as known:
        for other, status in others.items():
            for _ in range(3):
                assert (await known.ask(honest)).status == 200
            async with gateway.connected() as stranger:
                assert (await stranger.ask(other)).status == status
        for other, status in list(others.items())[:1]:  # on the same connection too
            assert (await known.ask(other)).status == status


@pytest.mark.attack("held-11")
@pytest.mark.parametrize(
    "path",
    [
        "/healthz/../admin/servers",
        "//admin/servers",
        "/admin//servers",
        "/%61dmin/servers",
        "/admin%2fservers",
        "/%2e%2e/admin/servers",
        "/admin/servers/../keys",
        "/ADMIN/servers",
        "http://127.0.0.1/admin/servers",
        "http://evil.example/admin/servers",
    ],
)
async def test_route_has_only_one_spelling(gateway: Edge, path: str) -> None:
    assert (await gateway.ask("GET", path, token=None)).status in (401, 404)
    assert (await gateway.ask("GET", path)).status == 404


JSON: Final = {
    "depth": b"[" * 100_000 + b"]" * 100_000,
    "depth in params": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":'
    + b'{"a":' * 5000
    + b"1"
    + b"}" * 5001,
    "not a number": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":NaN}}',
    "infinity": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":-Infinity}}',
    "a number beyond floats": b'{"jsonrpc":"2.0","id":1e400,"method":"tools/list"}',
    "5,000 digits": b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"tools/list"}',
    "a key twice": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"tools/list"}',
    "half a surrogate": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\\ud800"}}',
    "no UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\xff"}}',
    "a byte order mark": b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
    "an array": b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]',
    "an id that is an object": b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
    "an id that is true": b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}',
    "an id that is a fraction": b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}',
    "a second value": b'{"jsonrpc":"2.0","id":1,"method":"tools/list"} {}',
}


@pytest.mark.attack("held-59")
@pytest.mark.parametrize("case", JSON)
async def test_malformed_json_is_rejected(gateway: Edge, case: str) -> None:
    before = gateway.contacts()
    _, fields = modern("tools/list", {})
    for more in (fields, {}):  # a client of each era
        assert (await gateway.ask("POST", "/mcp", JSON[case], more)).status == 400, case
    assert gateway.contacts() == before
    assert (await gateway.ask("GET", "/healthz")).status == 200


INSIDE: Final = (
    *("127.0.0.2", "127.2", "2130706434", "0x7f000002", "0177.0.0.2", "0x7f.0.0.2", "0.0.0.0", "[::1]", "[::]"),
    *("[::ffff:127.0.0.2]", "[::ffff:7f00:2]", "[64:ff9b::7f00:2]", "[2002:7f00:2::]", "[::127.0.0.2]"),
    *("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "[fd00:ec2::254]", "[fe80::1]"),
    *("[fd00::1]", "user@10.0.0.1", "a:b@169.254.169.254"),
)


@pytest.mark.attack("held-35")
@pytest.mark.parametrize("host", INSIDE)
async def test_internal_address_is_rejected_in_any_spelling(gateway: Edge, host: str) -> None:
    for url in (f"http://{host}/mcp", f"https://{host}:8443/sse", f"ws://{host}/"):
        answer = await gateway.ask("PUT", "/admin/servers/inside", {"url": url})
        assert answer.status == 422, url
    document = {"type": "openapi", "openapi": {"url": f"http://{host}/openapi.json"}}
    assert (await gateway.ask("PUT", "/admin/servers/inside", document)).status == 422


@pytest.mark.attack("held-37")
@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "gopher://127.0.0.1:6379/_x", "ftp://a.example/", "jar:file:///x", "unix:/run/x", "//a", ""],
)
async def test_other_url_protocols_are_rejected(gateway: Edge, url: str) -> None:
    assert (await gateway.ask("PUT", "/admin/servers/other", {"url": url})).status in (400, 422)
    document = {"type": "openapi", "openapi": {"url": url}}
    assert (await gateway.ask("PUT", "/admin/servers/other", document)).status in (400, 422)


@pytest.mark.attack("held-14")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1@evil.example", "user@127.0.0.1", "127.0.0.1.", "[::1"])
async def test_foreign_host_name_is_rejected(gateway: Edge, host: str) -> None:
    assert (await gateway.ask("GET", "/admin/servers", fields={"Host": host})).status == 421
    two = f"GET /admin/servers HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\nHost: {host}\r\n\r\n".encode()
    async with gateway.connected() as client:
        assert (await client.ask(two)).status == 400
