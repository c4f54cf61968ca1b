"""What a call costs inside the gateway, without a socket, and what each of its tricks gains.

    python -m bench.inside [--calls 300] [--rounds 20]

A client's connection and a server's are played by objects, so only our own code is measured. Each trick is turned off
in turn, beside the gateway as it is; of all rounds the cheapest counts. For what a call costs with everything, see
`make bench`.
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
from toolway.catalog.index import Tool
from toolway.gateway import view
from toolway.gateway.gateway import Gateway
from toolway.gateway.http.connection import Connection
from toolway.gateway.principals import Keyring
from toolway.hub import Hub
from toolway.protocol import wire as ours
from toolway.protocol.heads import Heads
from toolway.upstream.transports.http1.dial import Dialer

_ID: Final = re.compile(rb'"id":(\d+)')
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
class Trick:
    name: str
    where: str
    work: str  # on which it is seen
    off: Callable[[], contextlib.AbstractContextManager[object]]


def _unread(self: Heads[Any], data: bytes) -> None:
    return None


def _anew(self: view.View, kind: Any, cursor: object, variant: object, make: view.Make) -> memoryview:
    return memoryview(ours.encode(make(*self.page(kind, cursor))))


TRICKS: Final = (
    Trick("heads are read once", "protocol/heads.py", "echo", lambda: mock.patch.object(Heads, "find", _unread)),
    Trick(
        "results pass as bytes", "protocol/wire.py", "big", lambda: mock.patch.object(ours, "result_bytes", _no_bytes)
    ),
    Trick(
        "header rules are looked up once",
        "catalog/index.py",
        "echo",
        lambda: mock.patch.object(Tool, "mirrors", property(lambda self: True)),
    ),
    Trick("a list is encoded once", "gateway/view.py", "list", lambda: mock.patch.object(view.View, "encoded", _anew)),
    Trick("few values are walked, not scanned", "protocol/wire.py", "big", lambda: mock.patch.object(ours, "FEW", 0)),
)


def _no_bytes(frame: bytes, id: int) -> None:
    return None


class Played:
    """A transport that hands over what is written."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self.write = take

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


def _answer(data: bytes) -> bytes:
    """What a lean server would say."""
    body = data.partition(b"\r\n\r\n")[2]
    id_ = _ID.search(body)
    assert id_ is not None, data
    result = next(result for mark, result in _RESULTS.items() if mark in body)
    answer = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id_[1], result)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)


async def _dial(self: Dialer, origin: object, proxy: object, make: Callable[[], Any]) -> Any:
    loop, connection = asyncio.get_running_loop(), make()
    connection.connection_made(Played(lambda data: loop.call_soon(connection.data_received, _answer(data))))
    return connection


class Client:
    """One connection to the gateway."""

    def __init__(self, gateway: Gateway, token: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._door = wire.Door(9, headers={"Authorization": f"Bearer {token}"})
        self._answered: asyncio.Future[bytes] = self._loop.create_future()
        self._connection = Connection(gateway.http)
        self._connection.connection_made(Played(lambda data: self._answered.set_result(data)))  # type: ignore[arg-type]  # it has what is used

    def request(self, work: str) -> bytes:
        if work == "list":
            return wire.request(self._door, "modern", "tools/list", {})
        return wire.call(self._door, "modern", f"one__{work}", work == "big")

    async def ask(self, request: bytes) -> bytes:
        self._answered = self._loop.create_future()
        self._connection.data_received(request)
        return await self._answered

    async def cost(self, work: str, calls: int) -> float:
        """CPU-µs of one."""
        request = self.request(work)
        assert wire.expected(work).replace(str(wire.MARK), "").encode().strip() in await self.ask(request)
        began = time.thread_time()
        for _ in range(calls):
            await self.ask(request)
        return (time.thread_time() - began) / calls * 1e6


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        yield Path(name)


async def _measure(calls: int, rounds: int) -> dict[tuple[str, str], float]:
    """The cheapest round of each work, by (trick that is off, work)."""
    best: dict[tuple[str, str], float] = {}
    places = [("", work, contextlib.nullcontext) for work in ("echo", "big", "list")]
    places += [(trick.name, trick.work, trick.off) for trick in TRICKS]  # type: ignore[misc]  # one of them is a class
    with _folder() as folder, mock.patch.object(Dialer, "dial", _dial):
        keyring = Keyring(folder / "keys.json", "tw_" + "a" * 40)
        token, _ = keyring.create("bench", None, False, 0.0)
        async with Hub({"one": "http://127.0.0.1:9/mcp"}, catalog_dir=None) as hub:
            gateway = Gateway(hub, b"k" * 32, keyring)
            await gateway.listen("127.0.0.1", 0)
            await hub.wait_ready()
            client = Client(gateway, token)
            for _ in range(rounds):
                for name, work, off in places:
                    with off():
                        cost = await client.cost(work, calls)
                    best[name, work] = min(cost, best.get((name, work), cost))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="of one round")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    best = uvloop.run(_measure(options.calls, options.rounds))
    for work in ("echo", "big", "list"):
        print(f"{work:6}{best['', work]:8.0f} CPU-µs a call, inside the gateway")
    print("\nwithout the trick                        work    CPU-µs   it gains   in")
    for trick in TRICKS:
        cost = best[trick.name, trick.work]
        print(f"{trick.name:40} {trick.work:6}{cost:8.0f} {cost - best['', trick.work]:10.0f}   {trick.where}")


if __name__ == "__main__":
    main()
