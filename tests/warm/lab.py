"""The warm gateway and the cold ones, and connections without sockets: bytes in, answers out."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.gateway.edge_lab import HELLO, handshake
from tests.parts.identity.issuer import connect_login, identity_of, login_at
from tests.warm.requests import PORT, Request
from tests.warm.settings import LOGIN, NODE_TOKEN, POLICIES, Settings
from toolway.config.server_entry import parse_entry
from toolway.gateway.cluster_hooks import ClusterHooks
from toolway.gateway.gateway import Gateway
from toolway.gateway.gateway_options import ConnectionRules, LiveSettings
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.mcp.view import KINDS
from toolway.gateway.principals import Principal
from toolway.http.exchange import Exchange
from toolway.http.server_connection import ServerConnection
from toolway.hub.core import HubCore
from toolway.hub.core_options import ServerDefaults
from toolway.network import NetworkPolicy
from toolway.parts.identity.settings import IdentitySettings
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.engine import PolicyEngine
from toolway.telemetry.metrics import Metrics
from toolway.testing import FakeHttp

KEY: Final = b"k" * 32
PATIENCE: Final = 60.0  # seconds: for an answer that surely arrives, on a busy machine


class Answer(NamedTuple):
    """All of an answer that equal rights make equal."""

    status: int  # 0: the connection was closed without an answer
    challenge: bool  # the client is asked to authenticate
    body: str = ""


class Cluster(ClusterHooks):
    """A cluster with one other node, whose requests are answered with a word."""

    def authenticate_node(self, token: str) -> Principal | None:
        return Principal("node:2", "node 2", "", is_node=True) if token == NODE_TOKEN else None

    async def handle_node_exchange(self, exchange: Exchange, refusal: object) -> None:
        exchange.reply(200, b"for a node")


class Wire(asyncio.Transport):
    """A client's end of a connection that has no socket."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", PORT)})
        self.received = b""
        self.is_closed = False
        self.changed = asyncio.Event()

    def write(self, data: Any) -> None:
        self.received += bytes(data)
        self.changed.set()

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()

    abort = close

    def write_eof(self) -> None:
        self.changed.set()

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Connection:
    """A client's connection to a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._wire = Wire()
        self._server = ServerConnection(gateway.http_server)
        self._server.connection_made(self._wire)

    @property
    def is_closed(self) -> bool:
        return self._wire.is_closed or self._server._rejection_sent

    def send(self, data: bytes) -> None:
        if not self.is_closed:
            self._server.data_received(data)

    async def answer(self) -> Answer:
        """Wait for the next answer."""
        async with asyncio.timeout(PATIENCE):
            while (found := read_answer(self._wire.received, closed=self.is_closed)) is None:
                if self.is_closed:
                    return Answer(0, challenge=False)
                self._wire.changed.clear()
                await self._wire.changed.wait()
        answer, size = found
        self._wire.received = self._wire.received[size:]
        return answer

    def close(self) -> None:
        self._wire.is_closed = True
        self._server.connection_lost(None)


def read_answer(data: bytes, *, closed: bool) -> tuple[Answer, int] | None:
    """Return the first answer in `data` and its size; None if it isn't complete."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    start, *lines = head.decode("latin-1").split("\r\n")
    status = int(start.split(" ")[1])
    size = len(head) + 4
    if status == 100:
        found = read_answer(data[size:], closed=closed)
        return (found[0], found[1] + size) if found is not None else None
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = b""
    if "content-length" in headers:
        length = int(headers["content-length"])
        if len(rest) < length:
            return None
        body, size = rest[:length], size + length
    elif headers.get("content-type") == "text/event-stream" and not rest.endswith(b"0\r\n\r\n"):
        if b'"jsonrpc"' not in rest and not closed and b"endpoint" not in rest:
            return None
        size = len(data)  # a stream without end: its beginning says enough
    elif "transfer-encoding" in headers:
        if not rest.endswith(b"0\r\n\r\n"):
            return None
        body, size = rest, len(data)
    # The reason of a denial may name another of several: a login that was ended, or a token that isn't active.
    return Answer(status, "www-authenticate" in headers, normalize(body) if status != 401 else ""), size


def normalize(body: bytes) -> str:
    """Return the text of a body without what differs between two answers of equal rights."""
    text = body.decode("utf-8", "replace")
    if "data: " in text:
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
        text = lines[-1] if lines else ""
    text = re.sub(r'"callId": ?"\w+"', '"callId":""', text)
    text = re.sub(r'"(expires_at|expires|seen|last_used|created|ttlMs|until)": ?[\d.]+', r'"\1":0', text)
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


class Lab:
    """One warm gateway that lives as long as the lab, and cold ones that live for one request each."""

    def __init__(self, settings: Settings, warm_hub: HubCore, cold_hub: HubCore) -> None:
        self.settings = settings
        self._warm_hub = warm_hub
        self._cold_hub = cold_hub
        self._unused_engines = [_unused_engine(text) for text in POLICIES]
        self._warm_policy: AccessPolicy | None = None
        self.cold_answers: dict[tuple[bytes, tuple[int, ...]], Answer] = {}
        self.warm = self._create(warm_hub, lambda: self._warm_policy)
        self.warm.subscriptions.start()
        self._known = settings.version

    def _create(self, hub: HubCore, policy: Callable[[], AccessPolicy | None]) -> Gateway:
        settings = self.settings
        gateway = Gateway(
            hub,
            KEY,
            settings.keyring,
            settings=LiveSettings(lambda: settings.toolsets),
            connections=ConnectionRules(settings.hosts),
            metrics=Metrics(),
            cluster=Cluster(),
        )
        gateway.parts.permissions.source = policy
        gateway.http_server.loop = asyncio.get_running_loop()
        gateway._authenticator.set_bound_address("127.0.0.1", PORT)
        login = connect_login(gateway, LOGIN, settings.access, settings.issuer.fetch, self._introspect)
        assert login.introspection is not None
        login._now = login.keys._now = login.introspection._now = lambda: settings.now
        return gateway

    async def _introspect(self, token: str) -> tuple[int, bytes]:
        return 200, json.dumps(self.settings.introspect(token)).encode()

    def _new_policy(self) -> AccessPolicy | None:
        unused = self._unused_engines[self.settings.policy_index]
        if unused is None:
            return None
        engine = PolicyEngine.__new__(PolicyEngine)  # to parse the policies again would take most of the time
        vars(engine).update({name: dict(value) if type(value) is dict else value for name, value in unused.items()})
        return AccessPolicy(engine, now=lambda: self.settings.now)

    def apply_settings(self) -> None:
        """Tell the warm gateway what changed, as a reload does. Changes of keys reach it through their store."""
        before, now = self._known, self.settings.version
        if before[2:5] != now[2:5]:
            identity = identity_of(self.warm)
            identity.apply(IdentitySettings(LOGIN, self.settings.access))
            identity.on_servers_changed()
            self.warm.on_config_changed(self.settings.hosts, ())
        if before[5] != now[5]:
            self._warm_policy = self._new_policy()
            self.warm.on_access_changed()
        self._known = now

    async def cold_answer(self, request: Request) -> Answer:
        """Return the answer of a gateway that has answered nothing before."""
        key = (request.data, self.settings.version)
        known = self.cold_answers.get(key)
        if known is None:
            known = self.cold_answers[key] = await self._ask_cold(request)
            if len(self.cold_answers) > 50_000:
                self.cold_answers.clear()
        return known

    async def _ask_cold(self, request: Request) -> Answer:
        keyring, hub = self.settings.keyring, self._cold_hub
        callbacks = (list(keyring._change_callbacks), list(keyring._revocation_callbacks))
        policy = self._new_policy()
        hub.calls.planner._plans.clear()
        gateway = self._create(hub, lambda: policy)
        login = login_at(gateway)
        try:
            if b"eyJ" in request.data:  # a JWT
                await login.keys.refresh()  # at the start, as every gateway does
            answer = await self.ask(gateway, request.first)
        finally:
            keyring._change_callbacks[:], keyring._revocation_callbacks[:] = callbacks
            gateway.stop_recording()
            hub.instrumentation.remove_sink(gateway.metrics)
            await login.close()
        return answer

    async def ask(self, gateway: Gateway, data: bytes) -> Answer:
        """Return the answer to a request on its own connection.

        503 says that the provider is being asked about the token, and to try again.
        """
        tries = 0
        while True:
            tries += 1
            connection = Connection(gateway)
            connection.send(data)
            answer = await connection.answer()
            connection.close()
            if answer.status != 503 or tries == 3:
                return answer
            await asyncio.sleep(0)

    async def open_session(self, token: str, path: str = "/mcp") -> str:
        """Open a legacy session at the warm gateway. Its id is sealed, so a cold gateway with the same key knows it."""
        body = json.dumps(handshake("initialize", HELLO)).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            *(
                f"Host: 127.0.0.1:{PORT}",
                "Content-Type: application/json",
                "Accept: application/json, text/event-stream",
            ),
            *(f"Authorization: Bearer {token}", f"Content-Length: {len(body)}", "", ""),
        ]
        connection = Connection(self.warm)
        connection.send("\r\n".join(lines).encode() + body)
        while not (found := re.search(rb"mcp-session-id: (\S+)", connection._wire.received)):
            assert not connection.is_closed, connection._wire.received
            await asyncio.sleep(0)
        await connection.answer()
        connection.close()
        return found[1].decode()


@contextmanager
def _quiet(log: logging.Logger) -> Iterator[None]:
    """Keep warnings about answers of the provider from filling the output."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _unused_engine(text: str) -> dict[str, Any] | None:
    """Return the attributes of a policy engine that has decided nothing yet; None without a policy."""
    if not text:
        return None
    return {name: dict(each) if type(each) is dict else each for name, each in vars(PolicyEngine(text)).items()}


@contextmanager
def wall_time(settings: Callable[[], float]) -> Iterator[None]:
    """Let `time.time()` return the time of the settings."""
    real = time.time
    time.time = settings
    try:
        yield
    finally:
        time.time = real


@asynccontextmanager
async def lab(folder: Path, rnd: random.Random) -> AsyncIterator[Lab]:
    settings = Settings(folder, rnd, time.time())
    async with AsyncExitStack() as stack:
        fakes = {name: FakeHttp(name=name) for name in ("a", "b")}
        for fake in fakes.values():
            await stack.enter_async_context(fake)
        hubs = []
        here = ServerDefaults(network_policy=NetworkPolicy(("127.0.0.1",)))
        for _ in range(2):
            entries = {name: parse_entry({"url": fake.url}) for name, fake in fakes.items()}
            core = HubCore(entries, callbacks=NoHubCallbacks(), defaults=here)
            hubs.append(await stack.enter_async_context(core))
        for hub in hubs:
            await hub.servers.wait_ready(timeout=PATIENCE)
            hub.tool_search.set_learning(False)  # it ranks by earlier calls, and decides no rights
            for kind in KINDS:
                await hub.lists.waits.wait_known(list(fakes), kind, PATIENCE)
        stack.enter_context(wall_time(lambda: settings.now))
        stack.enter_context(_quiet(logging.getLogger("toolway.gateway")))
        yield Lab(settings, *hubs)
