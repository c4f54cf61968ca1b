"""A gateway in this process before servers of either era, and clients of either era before it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.full_server import FullHttp
from toolway.config.server_entry import parse_entry
from toolway.config.settings import InvisibleCharacters
from toolway.gateway.gateway import Gateway
from toolway.gateway.gateway_options import ClientState, LiveSettings
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.mcp.pending_input import PendingCalls
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.core import HubCore

Json = dict[str, Any]
KEY: Final = b"k" * 32
MODERN: Final = "2026-07-28"
MODES: Final = {"modern": MODERN, "legacy": "legacy"}
SERVER: Final = str(Path(__file__).with_name("full_server.py"))
META: Final = "io.modelcontextprotocol/"
EVERYTHING: Final[Json] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}

#: Roots, sampling and logging are deprecated, and bridged all the same.
OLD_WORDS = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

EVERY_WAY: Final = [
    *itertools.product(("modern", "legacy"), ("modern", "legacy"), ("http", "stdio")),
    *itertools.product(("modern", "legacy"), ("legacy",), ("sse",)),
]
#: Ways with every pair of eras, and with every pair of an era and a transport.
SOME_WAYS: Final = [
    ("modern", "modern", "http"),
    ("legacy", "modern", "stdio"),
    ("modern", "legacy", "stdio"),
    ("legacy", "legacy", "http"),
    *EVERY_WAY[-2:],
]
#: From a client to a server: `make long-tests ARGS=bridge` tries every way.
ALL_WAYS = pytest.mark.parametrize(
    ("client_era", "server_era", "transport"), EVERY_WAY if os.environ.get("TOOLWAY_LONG") else SOME_WAYS
)


def pipe_entry(era: str, **more: Any) -> Json:
    return {"command": sys.executable, "args": [SERVER, "--era", era], **more}


class Lab:
    """The gateway, and what a test asks of it."""

    def __init__(self, hub: HubCore, gateway: Gateway, port: int) -> None:
        self.hub = hub
        self.gateway = gateway
        self.base = f"http://127.0.0.1:{port}"
        self.fakes: dict[str, FullHttp] = {}

    def url(self, endpoint: str = "") -> str:
        return f"{self.base}/mcp/{endpoint}" if endpoint else f"{self.base}/mcp"

    @asynccontextmanager
    async def client(
        self, era: str, endpoint: str = "server/full", token: str | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        """The SDK's client."""
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers=_bearer(token), trust_env=False, timeout=60)
            )
            transport = streamable_http_client(self.url(endpoint), http_client=http)
            yield await stack.enter_async_context(Client(transport, mode=MODES[era], **options))

    @asynccontextmanager
    async def raw(self, endpoint: str = "server/full", token: str | None = None) -> AsyncIterator[Raw]:
        """A client that hides nothing."""
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(headers=_bearer(token), trust_env=False, timeout=60, limits=limits) as http:
            yield Raw(http, self.url(endpoint))


def _bearer(token: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


@asynccontextmanager
async def lab(
    servers: dict[str, Json],
    *,
    keyring: FileApiKeyStore | None = None,
    toolsets: dict[str, ToolFilter] | None = None,
    key: bytes = KEY,
    parking: PendingCalls | None = None,
    invisible_characters: InvisibleCharacters = "remove",
    ready: bool = True,
) -> AsyncIterator[Lab]:
    hub = HubCore({name: parse_entry(value) for name, value in servers.items()}, callbacks=NoHubCallbacks())
    async with hub:
        gateway = Gateway(
            hub,
            key,
            keyring,
            settings=LiveSettings(lambda: toolsets or {}, invisible_characters=lambda: invisible_characters),
            clients=ClientState(parking),
        )
        found = Lab(hub, gateway, await gateway.listen("127.0.0.1", 0))
        hurry = asyncio.Event()
        try:
            if ready:
                await hub.servers.wait_ready(timeout=60)
            yield found
        finally:
            hurry.set()
            await gateway.drain(hurry, 0, 0)


@asynccontextmanager
async def full(era: str, transport: str, **more: Any) -> AsyncIterator[Lab]:
    """A gateway before one full server of this era."""
    if transport == "stdio":
        async with lab({"full": pipe_entry(era)}, **more) as found:
            yield found
        return
    fake = FullHttp(era, transport)
    async with fake, lab({"full": {"url": fake.url}}, **more) as found:
        found.fakes["full"] = fake
        yield found


def made(keyring: FileApiKeyStore, name: str) -> str:
    """A new API key."""
    return keyring.create_key_sync(name, None, False, 0.0)[0]


class Answer:
    """What came for one request: notifications, requests and the answer, in order."""

    def __init__(self, response: httpx2.Response, messages: list[Json]) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.messages = messages

    @property
    def last(self) -> Json:
        return self.messages[-1]

    @property
    def result(self) -> Json:
        assert "result" in self.last, self.last
        found: Json = self.last["result"]
        return found

    @property
    def error(self) -> Json:
        assert "error" in self.last, self.last
        found: Json = self.last["error"]
        return found


class Raw:
    """JSON-RPC over HTTP by hand."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.http = http
        self.url = url
        self.ids = itertools.count(1)
        self.session: str | None = None
        self.version = "2025-11-25"

    def headers(self) -> dict[str, str]:
        fields = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self.session is not None:
            fields |= {"mcp-session-id": self.session, "mcp-protocol-version": self.version}
        return fields

    def modern(
        self, method: str, params: Json, capabilities: Json | None = None, meta: Json | None = None
    ) -> tuple[Json, dict[str, str]]:
        """A modern request and its headers."""
        stamped = {
            **params,
            "_meta": {
                f"{META}protocolVersion": MODERN,
                f"{META}clientCapabilities": EVERYTHING if capabilities is None else capabilities,
                **(meta or {}),
            },
        }
        fields = self.headers() | {"mcp-protocol-version": MODERN, "mcp-method": method}
        name = next((params[key] for key in ("name", "uri", "taskId") if key in params), None)
        if name is not None:
            fields["mcp-name"] = name
        return {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": stamped}, fields

    async def ask(self, method: str, params: Json | None = None, **options: Any) -> Answer:
        """A modern request, to its end."""
        body, fields = self.modern(method, params or {}, **options)
        return await self.post(body, fields)

    async def call(self, name: str, arguments: Json | None = None, **more: Any) -> Answer:
        options = {key: more.pop(key) for key in ("capabilities", "meta") if key in more}
        return await self.ask("tools/call", {"name": name, "arguments": arguments or {}, **more}, **options)

    async def initialize(self, version: str = "2025-11-25", capabilities: Json | None = None) -> Answer:
        """Begin a session of the handshake era."""
        params = {
            "protocolVersion": version,
            "capabilities": EVERYTHING if capabilities is None else capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        answer = await self.request("initialize", params)
        self.session = answer.headers["mcp-session-id"]
        self.version = answer.result["protocolVersion"]
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, self.headers())
        return answer

    async def request(self, method: str, params: Json | None = None, on_message: OnMessage | None = None) -> Answer:
        """A request within the session, to its end."""
        body = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params or {}}
        return await self.post(body, self.headers(), on_message)

    async def post(self, body: Json, fields: dict[str, str], on_message: OnMessage | None = None) -> Answer:
        messages: list[Json] = []
        async with self.http.stream("POST", self.url, content=json.dumps(body), headers=fields) as response:
            async for _, message in events(response):
                messages.append(message)
                if on_message is not None:
                    await on_message(message)
        return Answer(response, messages)


OnMessage = Callable[[Json], Awaitable[None]]


async def events(response: httpx2.Response) -> AsyncIterator[tuple[str | None, Json]]:
    """The messages of a response with the ids of their events, whichever form it has."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        data = await response.aread()
        if data:
            yield None, json.loads(data)
        return
    id_: str | None = None
    async for line in response.aiter_lines():
        if line.startswith("id:"):
            id_ = line[3:].strip()
        elif line.startswith("data:") and line[5:].strip():
            yield id_, json.loads(line[5:])


def text(result: Any) -> str:
    """What a tool said."""
    found: str = result.content[0].text
    return found


async def until(found: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for something that another task or process does."""
    async with asyncio.timeout(seconds):
        while not found():
            await asyncio.sleep(0.02)


async def until_async(found: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await found():
            await asyncio.sleep(0.05)
