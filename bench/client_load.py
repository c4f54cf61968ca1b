"""Concurrent calls from one Python process: the hub, the SDK client, and HTTP clients without MCP.

    python -m bench.client_load hub|sdk|http1|httpx2|bare URL-OR-COMMAND [--loop uvloop] [--in-flight 64] [--seconds 1]

Prints one line of JSON: calls per second, latencies, and the CPU time of this process per call. Checks every result.
`hub` and `sdk` call a tool as an application does. The rest only exchange bytes with an HTTP server.
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

GRACE_SECONDS = 30.0  # for the start, and for missing responses

SendText: TypeAlias = Callable[[str], Awaitable[bool]]  # sends a text; True if the same text is returned


@contextlib.asynccontextmanager
async def hub(address: str) -> AsyncIterator[SendText]:
    from toolway import Hub

    async with Hub({"lean": address}, catalog_storage=None) as client:
        await client.wait_ready()

        async def send_text(text: str) -> bool:
            result = await client.call_tool("lean.echo", {"text": text})
            return result.text == text

        yield send_text


@contextlib.asynccontextmanager
async def sdk(address: str) -> AsyncIterator[SendText]:
    from mcp import StdioServerParameters
    from mcp.client.client import Client
    from mcp_types import TextContent

    words = shlex.split(address)
    server = address if address.startswith("http:") else StdioServerParameters(command=words[0], args=words[1:])
    async with Client(server) as client:

        async def send_text(text: str) -> bool:
            result = await client.call_tool("echo", {"text": text})
            return isinstance(block := result.content[0], TextContent) and block.text == text

        yield send_text


# ---- HTTP clients: the same POST; the response must contain the text ----

_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": wire.MODERN,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "echo",
}


def _message(text: str) -> bytes:
    return wire.request(
        wire.Endpoint(0), "modern", "tools/call", {"name": "echo", "arguments": {"text": text}}
    ).partition(b"\r\n\r\n")[2]


_BEFORE, _AFTER = _message("\0").split(b"\\u0000")


def _body(text: str) -> bytes:
    return b"%b%b%b" % (_BEFORE, text.encode(), _AFTER)


@contextlib.asynccontextmanager
async def http1(address: str) -> AsyncIterator[SendText]:
    """Send with Toolway's HTTP client."""
    from toolway.http.client import HttpClient, HttpTarget, encode_headers
    from toolway.network.policy import ALLOW_ALL

    client, target, headers = (
        HttpClient(network_policy=ALLOW_ALL),
        HttpTarget.parse(address),
        encode_headers(_HEADERS),
    )

    async def send_text(text: str) -> bool:
        async with client.send("POST", target, [headers], _body(text)) as response:
            return text.encode() in await response.read(1 << 20)

    yield send_text
    client.close()


@contextlib.asynccontextmanager
async def httpx2(address: str) -> AsyncIterator[SendText]:
    """Send with the SDK's HTTP client."""
    import httpx2 as library

    async with library.AsyncClient(headers=_HEADERS) as client:

        async def send_text(text: str) -> bool:
            response = await client.post(address, content=_body(text))
            return text.encode() in response.content

        yield send_text


@contextlib.asynccontextmanager
async def bare(address: str) -> AsyncIterator[SendText]:
    """Send with the client of the bare pass-through gateway, which has no guarantees."""
    from bench.bare import HttpServer, decode_request

    server = HttpServer(address)

    async def send_text(text: str) -> bool:
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        body = _body(text)
        server.send(decode_request(body), body, received.set_result)
        return text.encode() in await received

    yield send_text


CLIENTS = {"hub": hub, "sdk": sdk, "http1": http1, "httpx2": httpx2, "bare": bare}


async def measure(client: str, address: str, in_flight: int, warm: float, seconds: float) -> dict[str, Any]:
    latencies: list[float] = []
    errors = 0
    numbers = itertools.count(wire.MARK)

    async def send_until(send_text: SendText, end: float) -> None:
        nonlocal errors
        while (began := time.perf_counter()) < end:
            correct = await send_text(wire.TEXT.replace(str(wire.MARK), str(next(numbers))))
            latencies.append(time.perf_counter() - began)
            errors += not correct

    async def run_senders(send_text: SendText, duration: float) -> None:
        end = time.perf_counter() + duration
        await asyncio.gather(*(send_until(send_text, end) for _ in range(in_flight)))

    async with asyncio.timeout(warm + seconds + GRACE_SECONDS), CLIENTS[client](address) as send_text:
        await run_senders(send_text, warm)
        latencies.clear()
        began, used = time.perf_counter(), time.process_time()
        await run_senders(send_text, seconds)
        lasted, cpu = time.perf_counter() - began, time.process_time() - used
    latencies.sort()
    return {
        "calls": len(latencies),
        "rate": len(latencies) / lasted,
        "cpu_us": cpu * 1e6 / len(latencies),
        "p50": latencies[len(latencies) // 2] * 1e3,
        "p99": latencies[int(len(latencies) * 0.99)] * 1e3,
        "errors": errors,
        "first_error": "result differs from the text that was sent" if errors else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("address")
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
        figures = runner.run(measure(options.client, options.address, options.in_flight, options.warm, options.seconds))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
