"""Many calls at once from one Python process: the hub, the SDK's client, and the HTTP clients below them.

    python -m bench.caller hub|sdk|http1|httpx2|bare URL-OR-COMMAND [--loop uvloop] [--in-flight 64] [--seconds 1]

Prints one line of JSON: calls a second, latencies, and what this process used for each call. Every answer is checked.
`hub` and `sdk` call a tool as a program would; the rest only bring bytes to an HTTP server and back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from bench import wire

LATE_SECONDS = 30.0  # for the start, and for answers that never come

Ask: TypeAlias = Callable[[str], Awaitable[bool]]  # a text to be given back → whether it was


@contextlib.asynccontextmanager
async def hub(where: str) -> AsyncIterator[Ask]:
    from toolway import Hub

    async with Hub({"lean": where}, catalog_dir=None) as one:
        await one.wait_ready()

        async def ask(text: str) -> bool:
            reply = await one.call_tool("lean.echo", {"text": text})
            return reply.text == text

        yield ask


@contextlib.asynccontextmanager
async def sdk(where: str) -> AsyncIterator[Ask]:
    from mcp import StdioServerParameters
    from mcp.client.client import Client
    from mcp_types import TextContent

    words = shlex.split(where)
    server = where if where.startswith("http:") else StdioServerParameters(command=words[0], args=words[1:])
    async with Client(server) as one:

        async def ask(text: str) -> bool:
            result = await one.call_tool("echo", {"text": text})
            return isinstance(block := result.content[0], TextContent) and block.text == text

        yield ask


# ---- HTTP clients: the same POST, an id in it and out ----

_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": wire.MODERN,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "echo",
}


def _message(text: str) -> bytes:
    return wire.request(wire.Door(0), "modern", "tools/call", {"name": "echo", "arguments": {"text": text}}).partition(
        b"\r\n\r\n"
    )[2]


_BEFORE, _AFTER = _message("\0").split(b"\\u0000")


def _body(text: str) -> bytes:
    return b"%b%b%b" % (_BEFORE, text.encode(), _AFTER)


@contextlib.asynccontextmanager
async def http1(where: str) -> AsyncIterator[Ask]:
    """The client of our HTTP link."""
    from toolway.addresses.policy import ANYWHERE
    from toolway.upstream.transports.http1.client import Client, Target, header_block

    client, target, headers = Client(addresses=ANYWHERE), Target.parse(where), header_block(_HEADERS)

    async def ask(text: str) -> bool:
        async with client.send("POST", target, [headers], _body(text)) as response:
            return text.encode() in await response.read(1 << 20)

    yield ask
    client.close()


@contextlib.asynccontextmanager
async def httpx2(where: str) -> AsyncIterator[Ask]:
    """The SDK's HTTP client."""
    import httpx2 as library

    async with library.AsyncClient(headers=_HEADERS) as client:

        async def ask(text: str) -> bool:
            response = await client.post(where, content=_body(text))
            return text.encode() in response.content

        yield ask


@contextlib.asynccontextmanager
async def bare(where: str) -> AsyncIterator[Ask]:
    """The client of the bare pass-through: no promise at all."""
    from bench.bare import HttpServer, read_asked

    server = HttpServer(where)

    async def ask(text: str) -> bool:
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        body = _body(text)
        server.send(read_asked(body), body, got.set_result)
        return text.encode() in await got

    yield ask


WHO = {"hub": hub, "sdk": sdk, "http1": http1, "httpx2": httpx2, "bare": bare}


async def measure(who: str, where: str, in_flight: int, warm: float, seconds: float) -> dict[str, Any]:
    took: list[float] = []
    errors = 0
    numbers = itertools.count(wire.MARK)

    async def keep_asking(ask: Ask, end: float) -> None:
        nonlocal errors
        while (began := time.perf_counter()) < end:
            good = await ask(wire.TEXT.replace(str(wire.MARK), str(next(numbers))))
            took.append(time.perf_counter() - began)
            errors += not good

    async def all_for(ask: Ask, duration: float) -> None:
        end = time.perf_counter() + duration
        await asyncio.gather(*(keep_asking(ask, end) for _ in range(in_flight)))

    async with asyncio.timeout(warm + seconds + LATE_SECONDS), WHO[who](where) as ask:
        await all_for(ask, warm)
        took.clear()
        began, used = time.perf_counter(), time.process_time()
        await all_for(ask, seconds)
        lasted, cpu = time.perf_counter() - began, time.process_time() - used
    took.sort()
    return {
        "calls": len(took),
        "rate": len(took) / lasted,
        "cpu_us": cpu * 1e6 / len(took),
        "p50": took[len(took) // 2] * 1e3,
        "p99": took[int(len(took) * 0.99)] * 1e3,
        "errors": errors,
        "first_error": "not the text that was sent" if errors else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=WHO)
    parser.add_argument("where")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--warm", type=float, default=0.3)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    factory = None
    if options.loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        figures = runner.run(measure(options.who, options.where, options.in_flight, options.warm, options.seconds))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
