"""Cluster node from start to shutdown: connects database, bus, member and hub.

    node = ClusterNode(options, token)
    loaded = await node.open(file)              # configuration shared by all nodes
    async with HubCore(…, **node.hub_options) as hub:
        gateway = Gateway(hub, …, cluster=node.gateway_hooks)
        await node.attach(hub, gateway, apply_config)
        await node.join(host, port, tls=False)  # from now on this node claims servers

`node_context.py` serves the node's components, `GatewayAttachment` its gateway, and `replication/handlers.py` applies
other nodes' changes. `routing/` selects the transport to each server, `node_auth.py` authenticates nodes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncEngine

from toolway._os import boot_time
from toolway._version import __version__
from toolway.cluster.admin import NodesAdmin
from toolway.cluster.bootstrap import detect_address, nats_unavailable, reporting_database_errors
from toolway.cluster.bus import Bus
from toolway.cluster.db.catalog import ListStore
from toolway.cluster.db.changes import ChangeReader
from toolway.cluster.db.client_state import ApiKeyTable, RateBuckets, SessionStateStore
from toolway.cluster.db.config_store import ConfigStore
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.cluster.db.idempotency import DbIdempotencyStore
from toolway.cluster.db.instances import InstanceStore
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.nodes import NodeInfo, NodeStore
from toolway.cluster.db.part_database import ClusterDatabase
from toolway.cluster.db.poll import InstanceCounter
from toolway.cluster.db.tokens import DbTokenStore
from toolway.cluster.lease_clock import DEFAULT_LEASE_SETTINGS, WORKER_LEASE_SETTINGS
from toolway.cluster.member import WORKER_POLL_INTERVAL_S, Member
from toolway.cluster.nats_rpc.rpc_client import NatsRpc
from toolway.cluster.node_auth import (
    CallToken,
    CallTokenVerifier,
    ForwardedCallVerifier,
    NodeAuthenticator,
    rejection_error,
)
from toolway.cluster.node_context import NodeContext
from toolway.cluster.options import ClusterOptions
from toolway.cluster.replication.api_keys import DbApiKeyStore
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.cluster.replication.config import ConfigSource, read_document
from toolway.cluster.replication.handlers import ApplyConfig, ChangeHandlers, announce_ownership
from toolway.cluster.replication.rate_limit import LeasedRateLimiter
from toolway.cluster.routing.node_http import UNIX_PREFIX, NodeEndpoint
from toolway.cluster.routing.node_link import LinkServer
from toolway.cluster.routing.remote import forwarding_info_for
from toolway.cluster.session_handover import NODE_REQUEST_METHOD, NodeRequests
from toolway.cluster.sessions import SharedSessions
from toolway.config.loader import SERVER_MAP_KEYS, LoadedConfig
from toolway.config.schema import Server
from toolway.errors import ConfigError
from toolway.events import ClusterDatabaseAccepted, ClusterDatabaseRefused
from toolway.gateway.cluster_hooks import ClusterAdmin, ClusterHooks, SessionPeers, WorkerReport
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import Notify
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.flights import NodeCall, NodeFlight
from toolway.gateway.mcp.responses import RpcResult
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.gateway.sealing import Sealer
from toolway.http.exchange import Exchange
from toolway.hub.core import HubCore
from toolway.hub.core_options import LoginOptions
from toolway.hub.environment import HubEnvironment
from toolway.part_api import registry
from toolway.protocol.jsonrpc import Message
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.catalog.pins import PinMode
    from toolway.cluster.replication.shared_pins import SharedPins
    from toolway.cluster.workers.siblings import Reload, SiblingWorkers, WorkerKeyStore
    from toolway.part_api.database import Database
    from toolway.part_api.part import Part

NATS_CONNECT_TIMEOUT_S: Final = 3.0  # seconds at startup before a missing NATS server is logged
FIRST_LEASE_TIMEOUT_S: Final = 10.0  # seconds to wait for a lease at startup; calls that need none are served without
MARK_DRAINING_TIMEOUT_S: Final = 2.0  # seconds to mark this node as draining in the database
#: Requests of one worker to another (`workers/siblings.py`).
WORKER_ACTIONS: Final = frozenset({"report", "keys", "reload"})
HANDOVER_TIMEOUT_S: Final = 35.0  # seconds at shutdown to hand over owned instances: a call in flight has 30

log = logging.getLogger("toolway.cluster")


class ClusterNode:
    """A cluster node: this process's connections to database and NATS, its membership and routing.

    Create it in the process that joins, inside its event loop. `token` is the local admin token of this machine.
    """

    def __init__(self, options: ClusterOptions, token: str) -> None:
        self.options = options
        self.id = options.new_id()
        self.sealer = Sealer(options.tenant_key, time.time)
        self.engine: AsyncEngine = open_engine(options.database_url)
        self.integrity = Integrity(options.tenant_key)
        self._lease_settings = DEFAULT_LEASE_SETTINGS if options.worker is None else WORKER_LEASE_SETTINGS
        self.nodes = NodeStore(self.engine, self.integrity, self._lease_settings)
        self.instances = InstanceStore(self.engine)
        self.config_store = ConfigStore(self.engine, self.sealer, self.integrity)
        self.config_source = ConfigSource(self.config_store, options.tenant)
        self.change_feed = ChangeFeed(
            *(ChangeReader(self.engine), options.tenant, self._publish),
            *((WORKER_POLL_INTERVAL_S,) if options.worker is not None else ()),
        )
        self.bus = self._create_bus()
        self.nats_rpc = NatsRpc(options.nats_urls, options.nats_credentials, self.bus.subject_prefix, self.id)
        self.context = self._create_context(ListStore(self.engine, self.integrity))
        self.catalog, self.router = self.context.shared_catalog, self.context.router
        self.router.keeps_limits = options.worker is not None
        key_table = ApiKeyTable(self.engine, self.integrity)
        self.api_keys = DbApiKeyStore(key_table, options.tenant, token, boot_time)
        self.rate_limiter = LeasedRateLimiter(
            RateBuckets(self.engine), options.tenant, self.context.node_count, boot_time
        )
        self.idempotency_store = DbIdempotencyStore(self.engine, options.tenant, self.context.identity, self.sealer)
        self.token_store = DbTokenStore(self.engine, self.sealer, options.tenant, self.integrity)
        self.environment = HubEnvironment(
            create_transport=self.router.create_transport,
            wrap_transport=self.router.wrap_transport,
            forwarding_info=forwarding_info_for,
            per_caller_in_cluster=self.router.is_per_caller,
        )
        self.gateway_hooks = GatewayAttachment(
            self.context, options, self.engine, self.integrity, self.change_feed, lambda: self.bus.is_connected
        )
        self._pins: SharedPins | None = None
        self._parts_in_use: Callable[[], Sequence[str]] = tuple  # names; a gateway's, once it is attached
        self._config_file = ""
        self._file_digest = ""  # digest of the file's content when it was last read
        self._tasks: list[asyncio.Task[Any]] = []

    def _create_bus(self) -> Bus:
        options, handle = self.options, self.change_feed.handle_message
        if options.worker is None:
            return Bus(options.cluster_name, self.id, handle, self._on_gap, options.tenant, self.sealer)
        from toolway.cluster.workers.local_bus import LocalBus

        return LocalBus(options.worker.bus_path, self.id, handle, self.sealer, options.tenant)

    async def _publish(self, kind: str, body: Json) -> bool:
        return await self.bus.publish(kind, body)

    def _create_context(self, lists: ListStore) -> NodeContext:
        def on_list_saved(server: str) -> None:
            self.change_feed.publish("lists", {"server": server})

        tenant = self.options.tenant
        return NodeContext(self.id, tenant, self.sealer, self.instances, lists, self.bus, self.nats_rpc, on_list_saved)

    @property
    def member(self) -> Member | None:
        return self.context.member

    @property
    def sessions(self) -> SharedSessions | None:
        return self.gateway_hooks.sessions

    def open_part_store(self, part: Part) -> Any:
        """Return a part's store in the cluster database, opened by its `cluster_store`, or None.

        The part closes it. Raises `ConfigError` if it needs another database.
        """
        if not part.cluster_store:
            return None
        module, _, function = part.cluster_store.partition(":")
        return getattr(import_module(module), function)(self.options, self.context.identity)

    def use_pins(
        self,
        hub: HubCore,
        mode_of: Callable[[str], PinMode],
        ignored_of: Callable[[str, str], Sequence[str]] | None = None,
    ) -> None:
        """Make a hub compare the definitions that servers send with the cluster's pins.

        Call it before `attach`. `mode_of` returns the setting `pins` of a server, `ignored_of` the parts of an item (a
        tool, a prompt …) that are not compared.
        """
        from toolway.cluster.db.pin_table import PinTable
        from toolway.cluster.replication.shared_pins import SharedPins

        table = PinTable(self.engine, self.options.tenant, self.integrity)
        self._pins = SharedPins(
            table, self.router.lists_itself, mode_of, time.time, hub.lists.review_again, hub.emit, ignored_of
        )
        hub.lists.set_pins(self._pins)

    def open_part_database(self, part: Part) -> Database:
        """Return a part's database, which all nodes of the cluster share."""
        return ClusterDatabase(self.engine, self.options.tenant, part.tables(), self.integrity)

    def is_first(self) -> bool:
        """Return True if this node has the lowest id of all live nodes.

        Only it reports problems of the whole cluster.
        """
        ids = [node.info.id for node in self.context.live_nodes()]
        return bool(ids) and min(ids) == self.id

    @property
    def hub_options(self) -> dict[str, Any]:
        """Return the keyword arguments for creating this node's `HubCore`."""
        options: dict[str, Any] = {
            "environment": self.environment,
            "idempotency_store": self.idempotency_store,
            "catalog_storage": self.catalog,
        }
        if self.options.worker is None:  # the workers of a machine share the logins of its user
            options["logins"] = LoginOptions(tokens=self.token_store)
        return options

    # -- startup ------------------------------------------------------------------------------------------------------

    async def open(self, file: LoadedConfig) -> LoadedConfig:
        """Connect to the database, upgrade its schema, return the configuration shared by all nodes.

        If `file` was never imported, it becomes the shared configuration. Raises `ServerUnavailable` if
        the database does not respond, `ConfigError` if file, schema or stored configuration are not usable.
        """
        self._config_file = file.file
        with reporting_database_errors():
            await upgrade_schema(self.engine)
            await self.catalog.refresh()
            await self.token_store.load_revisions()
            if self.options.worker is not None:
                await self.nodes.remove_named(self.options.tenant, self.options.worker.name)
                await self.publish_servers(file.servers)
                await self.bus.connect(())
                return file
            await self.publish_config(file)
            found = await self._load_config(file)
        self._tasks.append(asyncio.create_task(self._connect_nats()))
        return found

    async def publish_servers(self, servers: Mapping[str, Server]) -> None:
        """Store the names of servers that need an owner, so this machine's workers can claim them.

        Each worker reads the configuration itself.
        """
        entries = {name: {"command": "-"} if server.enabled else {} for name, server in servers.items()}
        await self.config_store.import_document(self.options.tenant, {SERVER_MAP_KEYS[0]: entries}, "", force=True)
        self.context.wake()

    async def publish_config(self, file: LoadedConfig, *, force: bool = False, only_changes: bool = False) -> None:
        """Make a config file the shared configuration of all nodes, unless it was imported before.

        A file without servers does not replace an existing configuration. `force` skips both checks. With
        `only_changes`, a file that has not changed since the last call is not stored again, so other nodes' later
        changes stay. Files that parts' settings refer to are stored with it.
        """
        if not file.file:
            return
        contents = await asyncio.to_thread(_shared_settings, file)
        document, digest = await asyncio.to_thread(read_document, file.file, file.held, contents)
        if only_changes and digest == self._file_digest:
            return
        tenant = self.options.tenant
        if not force and not document[SERVER_MAP_KEYS[0]] and await self.config_store.load_settings(tenant) is not None:
            # Whoever starts a node with an empty file hardly wants to stop all servers of the cluster.
            log.warning("%s has no servers; keeping the cluster configuration", file.file)
        elif await self.config_store.import_document(tenant, document, digest, force=force):
            self.change_feed.publish("registry", {})
        self._file_digest = digest

    async def _load_config(self, file: LoadedConfig) -> LoadedConfig:
        found = await self.config_source.load(file.file)
        return found if found is not None else file

    async def _connect_nats(self) -> None:
        """Connect to NATS in the background, and log if that takes long.

        Without NATS the node starts anyway and finds changes by polling. The NATS client retries silently.
        """
        connecting = asyncio.ensure_future(
            self.bus.connect(self.options.nats_urls, self.options.nats_credentials or None)
        )
        try:
            await asyncio.wait({connecting}, timeout=NATS_CONNECT_TIMEOUT_S)
            if not connecting.done():
                log.warning(
                    "%s",
                    nats_unavailable(self.bus.last_error or TimeoutError(f"not within {NATS_CONNECT_TIMEOUT_S:g} s")),
                )
            await connecting
        except Exception as exc:
            log.error("%s", nats_unavailable(exc))
        finally:
            connecting.cancel()

    async def attach(self, hub: HubCore, gateway: Gateway, apply_config: ApplyConfig) -> None:
        """Connect the hub and gateway to the cluster, and follow other nodes' changes.

        The gateway must have been created with our `gateway_hooks`.
        `apply_config` applies a changed configuration. Raises `ServerUnavailable` if the database does not respond.
        """
        self.context.attach(hub)
        self.gateway_hooks.attach(gateway)
        self._parts_in_use = gateway.parts.in_use
        self._report_findings(hub)
        self.api_keys.register(self.change_feed)
        if self._pins is not None:
            self._pins.register(self.change_feed)
        handlers = ChangeHandlers(
            self.context, self.config_source, self.token_store, hub.servers, self._config_file, apply_config
        )
        handlers.register(self.change_feed, shares_config=self.options.worker is None)
        with reporting_database_errors():
            await self.change_feed.start()
        if not self.integrity.findings():  # an alert of an earlier run ends
            hub.emit(ClusterDatabaseAccepted(""))
        self.rate_limiter.start()

    def _report_findings(self, hub: HubCore) -> None:
        """Emit an event for each database row or state that this node rejects.

        Earlier rejections are reported now, new ones as they are found. A final event follows when none is left.
        """
        for finding in self.integrity.findings():
            hub.emit(ClusterDatabaseRefused("", finding))
        self.integrity.on_finding = lambda finding: hub.emit(ClusterDatabaseRefused("", finding))
        self.integrity.on_resolved = lambda: hub.emit(ClusterDatabaseAccepted(""))

    async def join(self, host: str, port: int, *, tls: bool) -> str:
        """Join the cluster under the gateway's address, and start claiming servers.

        Return the host name that other nodes use for this node, or "" if they reach it over NATS only. Raises
        `ConfigError` if this node lacks a part that another node uses, `ServerUnavailable` if the database fails.
        """
        options = self.options
        with reporting_database_errors():
            await self._require_parts()
        if options.worker is not None:
            address = f"{UNIX_PREFIX}{options.worker.socket_path}"
        else:
            address = await asyncio.to_thread(detect_address, options, host, port, tls=tls)
        parts = tuple(self._parts_in_use())
        info = NodeInfo(self.id, address, __version__, options.capacity, options.labels, options.tenant, parts)
        member = Member(
            *(info, self.nodes, self.instances, self.router, boot_time, self._lease_settings),
            shares=options.worker is None,
        )
        member.on_ownership_changed = partial(announce_ownership, self.change_feed)
        self.context.join(member)
        self._tasks.append(asyncio.create_task(member.run()))
        if not address and self.sessions is not None:
            hooks = self.gateway_hooks
            self.nats_rpc.listen(hooks.token_verifier.open_call, hooks.handle_call, self.context.epoch)
        await self._wait_for_lease(member)
        self.change_feed.publish("instances", {})
        return urlsplit(address).hostname or ""

    async def _require_parts(self) -> None:
        """Check that no other node uses a part that this one lacks, because every node must enforce its limits.

        A part that is installed but not configured is enough: nodes are restarted one by one to add or remove a part.
        """
        others = [each.info for each in await self.nodes.list_alive(self.options.tenant) if each.info.id != self.id]
        here = await asyncio.to_thread(registry.names)
        for other in others:
            missing = sorted(set(other.parts) - here)
            if missing:
                raise ConfigError(
                    f"this node lacks a part: {', '.join(missing)}",
                    detail=f"node {other.id} uses it; calls through this node would bypass its rules",
                    hint="install its package; to find out which, run toolway doctor on the other node",
                    code="E-CLUSTER-PARTS",
                )
            for name in sorted(set(self._parts_in_use()) - set(other.parts)):
                log.warning("node %s does not use the part %s: its rules do not apply to calls there", other.id, name)

    async def _wait_for_lease(self, member: Member) -> None:
        """Wait for the first lease of this node, at most `FIRST_LEASE_TIMEOUT_S`; then continue anyway.

        Until a node has a lease, it rejects calls with an idempotency key: other nodes could not learn their outcome.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + FIRST_LEASE_TIMEOUT_S
        while member.epoch is None and loop.time() < until:  # noqa: ASYNC110 - once per process
            await asyncio.sleep(0.02)

    # -- shutdown -----------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Release all owned server instances, so other nodes claim them.

        The wait for calls in flight and for the database has a time limit; after it, the method returns anyway.
        """
        member = self.member
        if member is None:
            return
        try:
            # First: otherwise other nodes still consider us the preferred owner, and hand the instances back to us.
            async with asyncio.timeout(MARK_DRAINING_TIMEOUT_S):
                await self.nodes.drain(self.id)
        except Exception as exc:
            log.warning("node not marked as draining, database unavailable: %s", type(exc).__name__)
        self.change_feed.publish("instances", {})
        member.drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + HANDOVER_TIMEOUT_S
        while member.owned and loop.time() < until:  # noqa: ASYNC110 - once per process, an event has no other user
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Stop all tasks of this node and close its connections to the database, NATS and other nodes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.change_feed.close()
        if self._pins is not None:
            await self._pins.wait_closed()
        if self.gateway_hooks.workers is not None:
            await self.gateway_hooks.workers.close()
        if self.sessions is not None:
            await self.sessions.close()
        await self.rate_limiter.close()
        await self.context.close()
        await self.nats_rpc.close()
        await self.bus.close()
        await self.idempotency_store.close()
        await self.token_store.close()
        await self.engine.dispose()

    # -- changes ------------------------------------------------------------------------------------------------------

    def local_servers(self, servers: Mapping[str, Server]) -> dict[str, Server]:
        """Return the servers for this node's hub, set to start on demand only.

        Each server is started by the node that owns it.
        """
        if self.options.worker is not None:
            servers = {name: replace(server, instances=1) for name, server in servers.items()}
        self.catalog.keep_only(servers)
        self.router.set_servers(servers)
        return {name: replace(server, lazy=True) for name, server in servers.items()}

    def _on_gap(self) -> None:
        self.change_feed.resync()
        if self.sessions is not None:
            self.sessions.on_gap()
        self.context.wake()


def _shared_settings(file: LoadedConfig) -> Json:
    return {key: value for part in registry.in_use() for key, value in part.shared_settings(file).items()}


class GatewayAttachment(ClusterHooks):
    """The cluster from the gateway's point of view: forwarded calls, sessions, admin routes.

    It exists before the gateway, which gets it at construction; `attach` adds the gateway, before the first request.
    `is_connected()` returns True while NATS messages are received.
    """

    def __init__(
        self,
        context: NodeContext,
        options: ClusterOptions,
        engine: AsyncEngine,
        integrity: Integrity,
        change_feed: ChangeFeed,
        is_connected: Callable[[], bool],
    ) -> None:
        self._context = context
        self._options = options
        self._engine = engine
        self._integrity = integrity
        self._change_feed = change_feed
        self._is_connected = is_connected
        self._gateway: Gateway | None = None
        self._node_authenticator = NodeAuthenticator(context.id, context.sealer)
        self.token_verifier = CallTokenVerifier(context.id, context.sealer, context.fence_of, boot_time, time.time)
        self._call_verifier = ForwardedCallVerifier(self._server_view)
        self._node_endpoint = NodeEndpoint(self.token_verifier, self.handle_call)
        self._links = LinkServer(
            context.id,
            context.proofs,
            self.token_verifier,
            self.handle_call,
            self._refuse_node_request,
            self._begin_flight,
        )
        self._admin = self._create_admin()
        self.sessions: SharedSessions | None = None  # set by `attach`
        self.workers: SiblingWorkers | None = None  # set by `attach_workers`

    def attach_workers(self, hub: HubCore, reload: Reload, keys: WorkerKeyStore | None) -> None:
        """Connect this worker process to the other workers of the machine. Call it after `attach`."""
        from toolway.cluster.workers.siblings import SiblingWorkers

        assert self._gateway is not None and self._options.worker is not None
        requests = NodeRequests(self._context, self._options.tenant)
        self.workers = SiblingWorkers(self._options.worker, self._context, requests, hub, self._gateway, reload, keys)

    def attach(self, gateway: Gateway) -> None:
        """Set the gateway, which must have been created with this object as its `cluster`."""
        self._gateway = gateway
        tenant = self._options.tenant
        self.sessions = SharedSessions(
            self._context.id,
            tenant,
            SessionStateStore(self._engine),
            NodeRequests(self._context, tenant),
            self._change_feed,
            self._is_connected,
            gateway.legacy_sessions,
            gateway.legacy_sse,
            gateway.ended_sessions,
        )

    def handle_call(self, token: CallToken, message: Message, notify: Notify) -> Awaitable[RpcResult]:
        """Handle another node's request: a forwarded call, or one about a client session or a worker.

        The call token is the sealed statement of the sending node: caller, server and ownership number. Raises
        `RpcFailure` if it does not allow the request: it is for another server, or this node owns the server no longer.
        """
        assert self._gateway is not None and self.sessions is not None  # the node listens only after `attach`
        if message.method == NODE_REQUEST_METHOD:
            if token.server:
                raise rejection_error("elsewhere")
            if self.workers is not None and message.body.get("do") in WORKER_ACTIONS and not token.principal:
                return self.workers.execute(message.body)
            return self.sessions.handle_node_request(token.principal, message.body, notify)
        return self._gateway.handle_forwarded(*self._call_verifier.resolve(token), message, notify)

    # -- hooks of the gateway -----------------------------------------------------------------------------------------

    @property
    def session_peers(self) -> SessionPeers | None:
        return self.sessions

    @property
    def admin(self) -> ClusterAdmin:
        return self._admin

    def authenticate_node(self, token: str) -> Principal | None:
        return self._node_authenticator.authenticate(token)

    def prove_node(self, challenge: str) -> str | None:
        return self._context.proofs.prove(challenge)

    async def handle_node_exchange(self, exchange: Exchange, refusal: RpcFailure | None) -> None:
        await self._node_endpoint.handle(exchange, refusal)

    @property
    def links(self) -> LinkServer:
        return self._links

    def is_remote(self, server: str) -> bool:
        return self._context.router.is_remote(server)

    def is_draining(self) -> bool:
        return self._context.is_draining()

    def on_browser_session_ended(self, digest: str, until: float) -> None:
        if self.sessions is not None:
            self.sessions.share_browser_logout(digest)

    async def forward_admin(self, exchange: Exchange) -> bool:
        return self.workers is not None and await self.workers.forward(exchange)

    async def collect_reports(self) -> None:
        if self.workers is not None:
            await self.workers.collect()

    def worker_reports(self) -> Iterable[WorkerReport]:
        return self.workers.live_reports() if self.workers is not None else ()

    def on_metrics_shown(self) -> None:
        if self.workers is not None:
            self.workers.save_totals()

    def gauges(self) -> Mapping[str, float]:
        gauges = self._context.gauges()
        return gauges if self.workers is None else {name: gauges[name] for name in gauges if name != "nats"}

    def _begin_flight(self, token: CallToken, message: Message, call: NodeCall) -> NodeFlight | None:
        """Start an ordinary forwarded tool call as a flight: driven by callbacks, without a coroutine.

        Return None, with nothing executed, if the call is not ordinary: then `handle_call` must execute it. Raises
        `RpcFailure` as `handle_call`.
        """
        if message.method != "tools/call" or self._gateway is None:
            return None
        return self._gateway.begin_forwarded(*self._call_verifier.resolve(token), message, call)

    def _refuse_node_request(self, is_overloaded: bool) -> RpcFailure | None:
        assert self._gateway is not None  # the node listens only after `attach`
        return self._gateway.router.refuse_node_request(is_overloaded=is_overloaded)

    def _server_view(self, endpoint: str) -> EndpointView | None:
        return self._gateway.router.server_view(endpoint) if self._gateway is not None else None

    def _create_admin(self) -> NodesAdmin:
        async def publish_change() -> None:
            self._change_feed.publish("instances", {})
            self._context.wake()  # this node itself may be the one to drain

        def restart(server: str) -> None:
            self._change_feed.publish("restart", {"server": server})

        nodes, counts = NodeStore(self._engine, self._integrity), InstanceCounter(self._engine)
        return NodesAdmin(
            self._options,
            self._context.id,
            nodes,
            counts,
            self._integrity.findings,
            self._is_connected,
            publish_change,
            restart,
        )
