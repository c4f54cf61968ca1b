"""Two nodes that call each other over a real NATS, in one process or in two."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from nats.aio.client import Client

from tests.cluster.nats_server import NatsServer
from toolway.cluster.nats_rpc.rpc_client import NatsRpcClient, NatsTransport, connect_nats
from toolway.cluster.nats_rpc.rpc_server import NatsRpcServer
from toolway.cluster.node_auth import CallToken, CallTokenVerifier, new_call_key, new_use_id
from toolway.cluster.routing.call_cipher import ForwardedRequest
from toolway.cluster.routing.remote import forwarded_request
from toolway.gateway.mcp.context import Notify
from toolway.gateway.sealing import Sealer
from toolway.protocol import jsonrpc
from toolway.types import CallState, Json
from toolway.upstream.transport import Request, TransportError

ROOT = "toolway.test.default"
SEALER = Sealer(b"k" * 32, time.time)
Answer = Callable[[str, jsonrpc.Message, Notify], Awaitable[Json | jsonrpc.RawResult]]


class RecordingSink:
    """Records what the server sends unprompted."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Json, CallState | None]] = []

    def on_notification(self, method: str, params: Json, call_state: CallState | None = None) -> None:
        self.heard.append((method, params, call_state))

    async def on_request(self, method: str, params: Json, call_state: CallState | None = None) -> Json | None:
        raise AssertionError("an owner asks nothing")


@dataclass
class Owner:
    """Answers as configured, and records calls."""

    how: Answer
    asked: list[tuple[str, str, Json]] = field(default_factory=list)
    cancelled: int = 0
    door: NatsRpcServer | None = None
    client: Client | None = None

    async def answer(self, token: CallToken, request: jsonrpc.Message, tell: Notify) -> Json | jsonrpc.RawResult:
        self.asked.append((token.server, request.method, request.body))
        try:
            return await self.how(token.server, request, tell)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def echo(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
    return {"content": [], "said": request.body}


async def never(server: str, request: jsonrpc.Message, tell: Notify) -> Json:
    await asyncio.Event().wait()
    return {}


async def settled(client: Client) -> None:
    """Until NATS knows what we listen to: the first question may overtake that."""
    await client.flush()
    await client.flush()


@asynccontextmanager
async def owner(server: NatsServer, how: Answer, node: str = "owner", epoch: int = 1) -> AsyncIterator[Owner]:
    made = Owner(how)
    async with AsyncExitStack() as stack:
        made.client = client = await connect_nats([server.url], node)
        stack.push_async_callback(client.close)
        # Whatever its name on NATS, it accepts what `call` makes.
        verifier = CallTokenVerifier("owner", SEALER, lambda *place: 1, time.monotonic, time.time)
        made.door = NatsRpcServer(client, ROOT, node, verifier.open_call, made.answer)
        await made.door.listen(epoch)
        stack.push_async_callback(made.door.close)
        await settled(client)
        yield made


@asynccontextmanager
async def caller(server: NatsServer, node: str = "caller") -> AsyncIterator[NatsRpcClient]:
    async with AsyncExitStack() as stack:
        client = await connect_nats([server.url], node)
        stack.push_async_callback(client.close)
        way = NatsRpcClient(client, ROOT, node)
        await way.open()
        stack.push_async_callback(way.close)
        await settled(client)
        yield way


async def link_to(
    way: NatsRpcClient,
    node: str = "owner",
    epoch: int = 1,
    sink: RecordingSink | None = None,
    limit: int = jsonrpc.MAX_MESSAGE_BYTES,
) -> NatsTransport:
    async def found() -> NatsRpcClient:
        return way

    link = NatsTransport(found, node, epoch, limit)
    await link.open(sink or RecordingSink())
    return link


def call(**arguments: object) -> ForwardedRequest:
    """A call for the node `owner`, sealed as a gateway does."""
    token = CallToken(
        "owner", "default", "files", 0, 1, "key-1", "key:key-1", "call-1", key=new_call_key(), use_id=new_use_id()
    )
    params: Json = {"name": "tool", "arguments": arguments}
    return forwarded_request(Request("tools/call", params), params, token, SEALER)


async def answered(link: NatsTransport) -> Json:
    """What an owner answers when it is there again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await link.request(call())
            except TransportError:
                await asyncio.sleep(0.05)


async def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


PROGRAM = """
import asyncio, sys
from tests.cluster.node import nats_lab
from tests.cluster.nats_server import NatsServer

async def how(server, request, tell):
    await asyncio.sleep(request.body["arguments"].get("seconds", 0))
    return {"content": []}

async def main():
    async with nats_lab.owner(NatsServer(int(sys.argv[1])), how, sys.argv[2]):
        print("ready", flush=True)
        await asyncio.sleep(120)

asyncio.run(main())
"""


@asynccontextmanager
async def owner_process(server: NatsServer, node: str = "owner") -> AsyncIterator[int]:
    """The id of a process that owns a server, and takes the requested seconds for a call."""
    command = [sys.executable, "-c", PROGRAM, str(server.port), node]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
