"""Gateways of one cluster in this process: real HTTP between them, a real NATS, and a record in its own file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httpx2

from tests.cluster.nats_server import nats_server
from tests.cluster.node.http_tap import Tap, tap
from tests.gateway.bridge_lab import Lab, Raw, pipe_entry
from tests.parts.approvals.lab import parts_with
from toolway.catalog.pins import PinMode
from toolway.cluster.db.instances import Ownership
from toolway.cluster.lease_clock import LeaseSettings
from toolway.cluster.node import ClusterNode
from toolway.cluster.node_auth import issue_node_credential
from toolway.cluster.options import ClusterOptions
from toolway.cluster.routing.call_cipher import CallCipher, join_request
from toolway.config.loader import LoadedConfig, load_file
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.part_set import PartSet
from toolway.gateway.router import NODE_PATH
from toolway.hub.core import HubCore
from toolway.parts.approvals import Approvals
from toolway.parts.approvals.gate import CallApprovals
from toolway.parts.approvals.records import RequestSealer
from toolway.parts.approvals.rules import parse_approve
from toolway.parts.approvals.store import DatabaseApprovalStore
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.engine import PolicyEngine

Json = dict[str, Any]
KEY: Final = b"c" * 32
TOKEN: Final = "tw_the-token-of-all-gateways"
SETTLED: Final = 40.0  # seconds
LEASE: Final = LeaseSettings(ttl=60.0, hold=50.0)  # outlasts a pause of a busy machine: none of these tests loses one
FULL: Final = {"full": pipe_entry("legacy")}


class Node(Lab):
    """One gateway of the cluster."""

    gate: CallApprovals

    def __init__(self, hub: HubCore, gateway: Gateway, replica: ClusterNode, port: int, tap: Tap) -> None:
        super().__init__(hub, gateway, port)
        self.replica = replica
        self.port = port
        self.tap = tap  # before it, on the way from the others; unused where it has no address

    @property
    def id(self) -> str:
        return self.replica.id

    @asynccontextmanager
    async def raw(self, endpoint: str = "server/full", token: str | None = None) -> AsyncIterator[Raw]:
        """As in any lab, but without certificates: reading them for hundreds of clients would hold up all gateways."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            headers=headers, trust_env=False, timeout=60, limits=limits, verify=False
        ) as http:
            yield Raw(http, self.url(endpoint))

    async def bring(self, credential: str, call_token: str, key: str, message: Json) -> tuple[int, Json]:
        """The status and the answer of what a node brings here: a call token, and a message sealed with its key."""
        cipher = CallCipher(bytes.fromhex(key))
        body = join_request(call_token, cipher.seal_request(json.dumps(message).encode()))
        async with self.raw("", credential) as raw:
            sent = await raw.http.post(self.base + NODE_PATH, content=body)
        return sent.status_code, json.loads(cipher.open_reply(sent.content) or b"{}")

    def credential_for(self, other: Node) -> str:
        return issue_node_credential(self.replica.sealer, self.id, other.id)


class Cluster:
    def __init__(self, nats: str, nodes: list[Node], servers: set[str]) -> None:
        self.nats = nats
        self.nodes = nodes
        self._servers = servers

    async def settle(self) -> None:
        """Wait until every server that can start has an owner, and all nodes know its tools."""
        await _settled(self, self._servers)

    def owner(self, server: str = "full") -> Node:
        return next(node for node in self.nodes if node.replica.router.owns(server))

    def other(self, server: str = "full") -> Node:
        """One that does not own a server."""
        return next(node for node in self.nodes if not node.replica.router.owns(server))

    def held(self, server: str = "full") -> Ownership:
        """Who owns a server, and under which fence."""
        owner = self.owner(server).replica
        place = owner.router.instances_of(server)[0]
        fence = owner.router.fence_for(server)
        assert fence is not None
        return Ownership(place, owner.id, fence)

    async def key(self, name: str, *, access: Iterable[str] | None = None, admin: bool = False) -> str:
        """A new API key, which all gateways know."""
        keyring = self.nodes[0].replica.api_keys
        token, _ = await keyring.create_key(name, access, admin, 0.0)
        async with asyncio.timeout(60):
            while not all(node.replica.api_keys.authenticate(token) for node in self.nodes):
                await asyncio.sleep(0.02)
        return token


@asynccontextmanager
async def cluster(
    folder: Path,
    servers: Mapping[str, Json] | None = None,
    *,
    names: Iterable[str] = ("one", "two"),
    hidden: Iterable[str] = (),
    broken: Iterable[str] = (),
    database: str = "",
    pins: PinMode | None = None,
    approve: Json | None = None,
    policy: str | None = None,
) -> AsyncIterator[Cluster]:
    """Those that are `hidden` have no address, and are called over NATS. Servers that are `broken` never start."""
    chosen = FULL if servers is None else servers
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": chosen}))
    loaded = await asyncio.to_thread(load_file, str(folder / "mcp.json"))
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server())
        made = Cluster(nats.url, [], set(chosen) - set(broken))
        for name in names:
            before = await stack.enter_async_context(tap())
            options = ClusterOptions(
                nats_urls=(nats.url,),
                database_url=database or f"sqlite:///{folder / 'record'}",
                tenant_key=KEY,
                node_name=name,
                advertise_url="" if name in hidden else f"http://127.0.0.1:{before.port}",
                labels=(name,),
            )
            made.nodes.append(await stack.enter_async_context(_node(options, loaded, before, pins, approve, policy)))
        await made.settle()
        yield made


@asynccontextmanager
async def _node(
    options: ClusterOptions,
    file: LoadedConfig,
    before: Tap,
    pins: PinMode | None,
    approve: Json | None,
    policy: str | None,
) -> AsyncIterator[Node]:
    with patch("toolway.cluster.node.DEFAULT_LEASE_SETTINGS", LEASE):
        replica = ClusterNode(options, TOKEN)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(replica.close)
        await replica.open(file)
        hub = HubCore({}, callbacks=NoHubCallbacks(), **replica.hub_options)
        database = replica.open_part_database(Approvals())
        store = DatabaseApprovalStore(database, RequestSealer(options.tenant_key))
        gate = CallApprovals(store, hub.mask, hub.emit)
        if approve is not None:
            gate.set_rules(parse_approve(approve))
        parts = PartSet(hub, replica.api_keys, parts=parts_with(gate) if approve is not None else None)
        await stack.enter_async_context(hub)
        loaded_policy = AccessPolicy(PolicyEngine(policy), hub.emit) if policy is not None else None
        gateway = Gateway(hub, options.tenant_key, replica.api_keys, cluster=replica.gateway_hooks, parts=parts)
        gateway.parts.permissions.source = lambda: loaded_policy
        if pins is not None:
            replica.use_pins(hub, lambda server: pins)

        async def take(loaded: LoadedConfig) -> None:
            await hub.servers.reload(replace(loaded, servers=replica.local_servers(loaded.servers)))
            gateway.on_config_changed((), ())

        await replica.attach(hub, gateway, take)
        before.leads_to = port = await gateway.listen("127.0.0.1", 0)
        gateway.set_advertised_host(await replica.join("127.0.0.1", port, tls=False))
        stack.push_async_callback(_end, gateway)
        node = Node(hub, gateway, replica, port, before)
        node.gate = gate
        yield node


async def _end(gateway: Gateway) -> None:
    hurry = asyncio.Event()
    hurry.set()
    await gateway.drain(hurry, 0, 0)


async def _settled(made: Cluster, servers: set[str]) -> None:
    """Until every server has an owner, and all know what it has."""
    async with asyncio.timeout(SETTLED):
        while True:
            owned = [server for node in made.nodes for server in servers if node.replica.router.owns(server)]
            listed = [node.hub.lists.catalog.has_list(server, "tools") for node in made.nodes for server in servers]
            if len(owned) == len(servers) and all(listed):
                return
            await asyncio.sleep(0.05)
