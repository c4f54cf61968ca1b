"""CPU cost of a call inside the gateway without sockets, and the gain of each optimization.

    python -m bench.in_process [--calls 300] [--rounds 20]

Fake transports replace the connections to the client and to the server, so only Toolway's code is measured. Each
optimization is switched off in turn and compared with the unchanged gateway. The cheapest of all rounds counts. For
the complete cost of a call, see `make bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import uvloop

from bench import wire
from toolway.catalog.catalog import Tool
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp import view
from toolway.gateway.principals import FileApiKeyStore
from toolway.http.dialer import Dialer
from toolway.http.exchange import HeadCache
from toolway.http.server_connection import ServerConnection
from toolway.hub.core import HubCore
from toolway.protocol import jsonrpc as ours

WORKLOADS: Final = ("echo", "call_tool", "big", "list")  # `call_tool` is `echo` through tool search
_ID: Final = re.compile(rb'"id":(\d+)')
_SESSION: Final = re.compile(rb"(?i)mcp-session-id: (\S+)")
_TEXT: Final = wire.TEXT.encode()
_TOOL: Final = b'{"name":"%b","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}'
_TOOLS: Final = b",".join(_TOOL % name for name in (b"echo", b"big", *(b"t%d" % n for n in range(358))))
_RESULTS: Final = {
    b'"server/discover"': b'{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"x","version":"1"},"resultType":"complete","ttlMs":1,"cacheScope":"public"}',
    b'"tools/list"': b'{"tools":[' + _TOOLS + b'],"resultType":"complete","ttlMs":1,"cacheScope":"public"}',
    b'"big"': b'{"content":[{"type":"text","text":"' + b"x" * 100_000 + b'"}],"resultType":"complete"}',
    b'"echo"': b'{"content":[{"type":"text","text":"' + _TEXT + b'"}],"resultType":"complete"}',
}


@dataclass(frozen=True)
class Optimization:
    name: str
    module: str
    work: str  # the workload that shows the gain
    disable: Callable[[], contextlib.AbstractContextManager[object]]


def _never_cached(self: HeadCache[Any], data: bytes) -> None:
    return None


def _encode_again(
    self: view.EndpointView, kind: Any, cursor: object, variant: object, make: view.BuildResult
) -> memoryview:
    return memoryview(ours.encode_json(make(*self.get_page(kind, cursor))))


OPTIMIZATIONS: Final = (
    Optimization(
        "parsed heads are cached",
        "http/exchange.py",
        "echo",
        lambda: mock.patch.object(HeadCache, "get", _never_cached),
    ),
    Optimization(
        "results are forwarded as bytes",
        "protocol/jsonrpc.py",
        "big",
        lambda: mock.patch.object(ours, "slice_result", _never_sliced),
    ),
    Optimization(
        "header rules are computed once",
        "catalog/catalog.py",
        "echo",
        lambda: mock.patch.object(Tool, "has_header_params", property(lambda self: True)),
    ),
    Optimization(
        "encoded list pages are cached",
        "gateway/mcp/view.py",
        "list",
        lambda: mock.patch.object(view.EndpointView, "encoded_page", _encode_again),
    ),
    Optimization(
        "small results skip the full scan",
        "protocol/jsonrpc.py",
        "big",
        lambda: mock.patch.object(ours, "FEW_VALUES", 0),
    ),
)


def _never_sliced(frame: bytes, id: int) -> None:
    return None


class FakeTransport:
    """Transport that passes written data to a function."""

    def __init__(self, on_write: Callable[[bytes], object]) -> None:
        self.write = on_write

    def writelines(self, data: tuple[bytes, ...]) -> None:
        self.write(b"".join(data))

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _respond(data: bytes) -> bytes:
    """Return the response of a minimal server."""
    body = data.partition(b"\r\n\r\n")[2]
    id_ = _ID.search(body)
    assert id_ is not None, data
    result = next(result for mark, result in _RESULTS.items() if mark in body)
    response = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id_[1], result)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(response),
        response,
    )


async def _dial(self: Dialer, origin: object, proxy: object, make: Callable[[], Any]) -> Any:
    loop, connection = asyncio.get_running_loop(), make()
    connection.connection_made(FakeTransport(lambda data: loop.call_soon(connection.data_received, _respond(data))))
    return connection


class Client:
    """Connection of one client to the gateway. A legacy client must start its session first."""

    def __init__(self, gateway: Gateway, token: str, era: wire.Era = "modern") -> None:
        self._era: wire.Era = era
        self._loop = asyncio.get_running_loop()
        self._endpoint = wire.Endpoint(9, headers={"Authorization": f"Bearer {token}"})
        self._response: asyncio.Future[bytes] = self._loop.create_future()
        self._connection = ServerConnection(gateway.http_server)
        self._connection.connection_made(FakeTransport(lambda data: self._response.set_result(data)))  # type: ignore[arg-type]  # has the methods that are used

    async def start_session(self) -> None:
        for message in wire.hellos(self._endpoint, self._era):
            found = _SESSION.search(await self.send(message))
            if found is not None:
                session = {"Mcp-Session-Id": found[1].decode()}
                self._endpoint = wire.Endpoint(9, headers={**self._endpoint.headers, **session})

    def request(self, work: str) -> bytes:
        if work == "list":
            return wire.request(self._endpoint, self._era, "tools/list", {})
        if work == "call_tool":
            endpoint = wire.Endpoint(9, "/mcp/search", self._endpoint.headers)
            arguments = {"name": "one__echo", "arguments": {"text": wire.TEXT}}
            return wire.request(endpoint, self._era, "tools/call", {"name": "call_tool", "arguments": arguments})
        return wire.call(self._endpoint, self._era, f"one__{work}", work == "big")

    async def send(self, request: bytes) -> bytes:
        self._response = self._loop.create_future()
        self._connection.data_received(request)
        return await self._response

    async def cost(self, work: str, calls: int) -> float:
        """Return the CPU-µs of one request."""
        request = self.request(work)
        assert wire.expected(work).replace(str(wire.MARK), "").encode().strip() in await self.send(request)
        began = time.thread_time()
        for _ in range(calls):
            await self.send(request)
        return (time.thread_time() - began) / calls * 1e6


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield Path(name)


async def _measure(calls: int, rounds: int) -> dict[tuple[str, str], float]:
    """Return the cheapest round of each workload by (disabled optimization, workload)."""
    best: dict[tuple[str, str], float] = {}
    variants = [("", work, contextlib.nullcontext) for work in WORKLOADS]
    variants += [(optimization.name, optimization.work, optimization.disable) for optimization in OPTIMIZATIONS]  # type: ignore[misc]  # one of them is a class
    with _folder() as folder, mock.patch.object(Dialer, "dial", _dial):
        keyring = FileApiKeyStore(folder / "keys.json", "tw_" + "a" * 40)
        token, _ = keyring.create_key_sync("bench", None, False, 0.0)
        async with HubCore({"one": "http://127.0.0.1:9/mcp"}, catalog_storage=None) as hub:
            gateway = Gateway(hub, b"k" * 32, keyring)
            await gateway.listen("127.0.0.1", 0)
            await hub.servers.wait_ready()
            client = Client(gateway, token)
            for _ in range(rounds):
                for name, work, disable in variants:
                    with disable():
                        cost = await client.cost(work, calls)
                    best[name, work] = min(cost, best.get((name, work), cost))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="calls per round")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    best = uvloop.run(_measure(options.calls, options.rounds))
    for work in WORKLOADS:
        print(f"{work:9}{best['', work]:8.1f} CPU-µs per call, inside the gateway")
    print("\nwithout the optimization                 work    CPU-µs       gain   module")
    for optimization in OPTIMIZATIONS:
        cost = best[optimization.name, optimization.work]
        gain = cost - best["", optimization.work]
        print(f"{optimization.name:40} {optimization.work:6}{cost:8.0f} {gain:10.0f}   {optimization.module}")


if __name__ == "__main__":
    main()
