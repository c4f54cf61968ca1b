"""A gateway that requires a token, before two servers that count requests, and handmade requests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.http.raw_client import Answer, Raw, connected
from toolway.config.admission.entry import AdmissionPolicy
from toolway.config.server_entry import parse_entry
from toolway.gateway.admin import routes
from toolway.gateway.gateway import Gateway
from toolway.gateway.gateway_options import ClientState, ConnectionRules, LiveSettings, ProcessControl
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.mcp.view import KINDS
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.http.limits import ServerLimits
from toolway.hub.core import HubCore
from toolway.hub.core_options import ServerDefaults
from toolway.network import NetworkPolicy
from toolway.testing import FakeHttp

Json = dict[str, Any]
MODERN: Final = "2026-07-28"
META: Final = "io.modelcontextprotocol/"
TOKEN: Final = "tw_the-token-of-this-machine"
TYPES: Final = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

PARAMS: Final = {"name": "a", "server": "a", "tool": "echo", "id": "0", "version": "1", "who": "alice", "link": "A"}

#: Every route, for any caller.
ROUTES: Final = (
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("POST", "/mcp/both"),
    ("POST", "/mcp/server/a"),
    ("GET", "/mcp/server/a"),
    ("GET", "/sse"),
    ("POST", "/messages"),
    ("GET", "/who"),
    ("POST", "/api/tools/a__echo"),
    ("POST", "/api/both/tools/a__echo"),
    ("GET", "/api/openapi.json"),
    *((each.method, re.sub(r"\{(\w+)\}", lambda found: PARAMS[found[1]], each.path)) for each in routes.all_routes()),
)
CONNECTIONS: Final = ("hosts", "origins", "local_token_from")
OPEN: Final = (("GET", "/healthz"), ("GET", "/readyz"))  # without a token, once the host is right
ADMIN: Final = tuple(route for route in ROUTES if route[1].startswith("/admin"))


class Edge:
    def __init__(
        self, hub: HubCore, gateway: Gateway, keyring: FileApiKeyStore, port: int, fakes: Mapping[str, FakeHttp]
    ) -> None:
        self.hub = hub
        self.gateway = gateway
        self.keyring = keyring
        self.port = port
        self.fakes = fakes

    def contacts(self) -> dict[str, dict[str, int]]:
        """What the servers have been asked so far."""
        return {name: dict(fake.stats.requests) for name, fake in self.fakes.items()}

    def calls(self, server: str) -> int:
        return sum(self.fakes[server].stats.calls.values())

    def key(self, *scopes: str, admin: bool = False) -> str:
        """A new API key for these toolsets and servers; without any, for all."""
        token, _ = self.keyring.create_key_sync("a key", scopes or None, admin, 0.0)
        return token

    def connected(self) -> AbstractAsyncContextManager[Raw]:
        return connected(self.port)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | Json = b"",
        fields: Mapping[str, str] | None = None,
        *,
        token: str | None = TOKEN,
    ) -> Answer:
        """One request on its own connection."""
        async with connected(self.port) as client:
            return await client.ask(self.request(method, path, body, fields, token=token))

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Json = b"",
        fields: Mapping[str, str] | None = None,
        *,
        token: str | None = TOKEN,
    ) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"Host": f"127.0.0.1:{self.port}", **TYPES, **(fields or {})}
        if token is not None:
            lines.setdefault("Authorization", f"Bearer {token}")
        if data or method in ("POST", "PUT"):
            lines["Content-Length"] = str(len(data))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return head.encode("latin-1") + b"\r\n" + data

    async def modern(
        self, method: str, params: Json | None = None, *, path: str = "/mcp", token: str | None = TOKEN, **more: Any
    ) -> Json:
        """A request of the modern era, and the message that answers it."""
        body, fields = modern(method, params or {}, **more)
        answer = await self.ask("POST", path, body, fields, token=token)
        return message_of(answer)

    async def call(self, name: str, arguments: Json | None = None, **more: Any) -> Json:
        return await self.modern("tools/call", {"name": name, "arguments": arguments or {}}, **more)

    async def tools(self, **more: Any) -> list[str]:
        answer = await self.modern("tools/list", **more)
        return [tool["name"] for tool in answer["result"]["tools"]]

    async def initialize(self, path: str = "/mcp", token: str = TOKEN) -> str:
        """A session of the handshake era."""
        answer = await self.ask("POST", path, handshake("initialize", HELLO), token=token)
        assert answer.status == 200, answer
        return answer.headers["mcp-session-id"]


HELLO: Final[Json] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}


def handshake(method: str, params: Json | None = None, id: int | str = 1) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def modern(
    method: str, params: Json, id: int | str = 1, capabilities: Json | None = None
) -> tuple[Json, dict[str, str]]:
    """The body and the headers of a modern request."""
    meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": capabilities or {}}
    fields = {"Mcp-Protocol-Version": MODERN, "Mcp-Method": method}
    name = next((params[key] for key in ("name", "uri", "taskId") if key in params), None)
    if name is not None:
        fields["Mcp-Name"] = name
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}, fields


def message_of(answer: Answer) -> Json:
    """The last message of an answer, whichever form it has."""
    data = answer.body
    if answer.headers.get("content-type") == "text/event-stream":
        data = [line for line in data.splitlines() if line.startswith(b"data: ")][-1].removeprefix(b"data: ")
    found: Json = json.loads(data)
    return found


@asynccontextmanager
async def edge(
    folder: Path,
    *,
    toolsets: Mapping[str, ToolFilter] | None = None,
    limits: ServerLimits | None = None,
    key: bytes = b"k" * 32,
    servers: Mapping[str, FakeHttp] | None = None,
    host: str = "127.0.0.1",
    **options: Any,
) -> AsyncIterator[Edge]:
    """Two servers `a` and `b`, the toolset `both` that holds all of them, and whatever else is asked for."""
    keyring = FileApiKeyStore(folder / "keys.json", TOKEN)
    chosen = {"both": ToolFilter(("*",)), **(toolsets or {})}
    async with AsyncExitStack() as stack:
        fakes = servers if servers is not None else {name: FakeHttp(name=name) for name in ("a", "b")}
        for fake in fakes.values():
            await stack.enter_async_context(fake)
        entries = {name: parse_entry({"url": fake.url}) for name, fake in fakes.items()}
        here = NetworkPolicy(("127.0.0.1",))  # for what is added by /admin
        hub = await stack.enter_async_context(
            HubCore(entries, callbacks=NoHubCallbacks(), defaults=ServerDefaults(network_policy=here))
        )
        policy = options.pop("policy", None)
        gateway = Gateway(
            hub,
            key,
            keyring,
            settings=LiveSettings(lambda: chosen, options.pop("admission", AdmissionPolicy)),
            control=ProcessControl(config_history=options.pop("config_history", None)),
            connections=ConnectionRules(**{name: options.pop(name, ()) for name in CONNECTIONS}, limits=limits),
            clients=ClientState(ended_sessions=options.pop("ended_sessions", None)),
            **options,
        )
        if policy is not None:
            gateway.parts.permissions.source = policy
        port = await gateway.listen(host, 0)
        await hub.servers.wait_ready(timeout=60)
        for kind in KINDS:
            await hub.lists.waits.wait_known(list(fakes), kind, 60)
        try:
            yield Edge(hub, gateway, keyring, port, fakes)
        finally:
            hurry = asyncio.Event()
            hurry.set()
            await gateway.drain(hurry, 0, 0)
