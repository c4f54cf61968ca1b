"""Other nodes: connection pools, detection of hung nodes, and the cache of owners.

A killed node closes its connections, and waiting calls fail at once. A node that hangs or is cut off does not. So while
a call waits for a node, its heartbeats are watched, and silence ends the wait. Heartbeats use NATS, which may fail
while the node is healthy: a node without heartbeats is probed over HTTP, and counts as silent only if that fails too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar
from urllib.parse import urlsplit

from toolway.cluster.bus import Bus
from toolway.cluster.db.instances import InstanceStore, Ownership, ServerInstance
from toolway.cluster.heartbeat import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S
from toolway.cluster.node_auth import NodeProofs
from toolway.cluster.queries import LogThrottle
from toolway.cluster.routing.link import CallerLink
from toolway.cluster.routing.link_frames import LinkError
from toolway.cluster.routing.node_http import NodeProofFailed, check_node, split_address
from toolway.cluster.routing.node_link import CallerIdentity, switch_request
from toolway.config.schema import Server, Timeout
from toolway.gateway.router import NODE_PATH
from toolway.http.client import HttpClient, HttpError, HttpTarget
from toolway.http.client_connection import ClientConnection
from toolway.http.dialer import Dialer, proxy_for
from toolway.network.policy import NetworkPolicy
from toolway.types import Certainty
from toolway.upstream.transport import TransportError
from toolway.upstream.transports import streamable_http

PEER_CONNECT_TIMEOUT_S: Final = 2.0  # seconds
PROBE_AFTER_S: Final = 2 * HEARTBEAT_INTERVAL_S  # seconds without a heartbeat after which a node is probed over HTTP
MAX_HEALTH_BYTES: Final = 1000  # bytes of a health response
WRONG_PROCESS_PAUSE_S: Final = 10.0  # seconds to avoid a node after another process responded at its address
MISROUTED_PAUSE_S: Final = 1.0  # the same if the node itself is alive: the connection was misrouted, perhaps only once
LINK_RETRY_S: Final = 5.0  # seconds after which a link is tried again if the node did not open it
NO_LINKS_S: Final = 60.0  # the same if the node, or a proxy before it, does not know links
WATCH_LINGER_S: Final = 5.0  # seconds for which heartbeats are watched after the last call
CREDENTIAL_REFRESH_S: Final = 12 * 3600.0  # seconds after which a new credential for a node is issued
RETIRED_PEER_TIMEOUT_S: Final = 16 * 60.0  # seconds after which no call can wait on the connections of a retired peer
MAX_CACHED_OWNERS: Final = 100_000  # cached instances

T = TypeVar("T")
log = logging.getLogger("toolway.cluster")


class PeerTimeout(Exception):
    """Raised when a node with a pending call sends no heartbeat and answers no health probe."""


class Peers:
    """Connection pools for all other nodes, created on demand.

    `issue_credential(id)` issues our credential for a node. `get_epoch(id)` returns the number of a node's lease, or
    None if it has none. `proofs` lets a node prove itself at every new connection.
    """

    def __init__(
        self,
        bus: Bus,
        issue_credential: Callable[[str], str],
        get_epoch: Callable[[str], int | None],
        proofs: NodeProofs,
    ) -> None:
        self._bus = bus
        self._issue_credential = issue_credential
        self._get_epoch = get_epoch
        self._proofs = proofs
        self._by_id: dict[str, Peer] = {}
        self._retired: set[Peer] = set()

    def get(self, id: str, address: str) -> Peer:
        """Return the connection pool of a node.

        After `CREDENTIAL_REFRESH_S` seconds a new one with a fresh credential replaces it.
        """
        peer = self._by_id.get(id)
        if peer is None or asyncio.get_running_loop().time() > peer.created_at + CREDENTIAL_REFRESH_S:
            if peer is not None:
                self._retire(peer)
            self._retire_dead()
            peer = self._by_id[id] = Peer(
                id, address, self._issue_credential(id), self._bus, self._proofs, self._get_epoch
            )
        return peer

    def _retire_dead(self) -> None:
        """Stop using the connection pools of nodes that no longer have a lease.

        A restarted node has a new id, so pools of dead ids would accumulate.
        """
        for id in [id for id in self._by_id if self._get_epoch(id) is None]:
            self._retire(self._by_id.pop(id))

    def _retire(self, peer: Peer) -> None:
        """Stop using a connection pool. Close it later, when no call can wait on it."""
        peer.retire()
        self._retired.add(peer)
        asyncio.get_running_loop().call_later(RETIRED_PEER_TIMEOUT_S, self._close_retired, peer)

    def _close_retired(self, peer: Peer) -> None:
        self._retired.discard(peer)
        peer.client.close()

    async def close(self) -> None:
        for peer in (*self._by_id.values(), *self._retired):
            await peer.close()
        self._by_id = {}
        self._retired = set()


class Peer:
    """Link, connection pool and failure detector of one other node. `address` is its advertised URL.

    Calls share the link. A node without link support gets one POST per call, on pooled connections. The node
    proves itself at every new connection. Until then, neither the credential nor a call is sent.
    """

    def __init__(
        self,
        id: str,
        address: str,
        credential: str,
        bus: Bus,
        proofs: NodeProofs,
        get_epoch: Callable[[str], int | None],
    ) -> None:
        self.id = id
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._url, self._unix_path = split_address(address)
        self._health = HttpTarget.parse(f"{self._url}/healthz")
        self._headers = {"Authorization": f"Bearer {credential}"}
        self._bus = bus
        self._proofs = proofs
        self._get_epoch = get_epoch
        limits = streamable_http.client_limits_for(self.server_config())
        self.client = HttpClient(limits, self._network_policy(), None, self._check_connection, self._unix_path)
        # Without the proof: a node that shuts down has no lease to prove, and still answers the calls it has.
        self._probe_client = HttpClient(limits, self._network_policy(), unix_path=self._unix_path)
        self.created_at = self._loop.time()
        self._dialer = Dialer(self._network_policy(), PEER_CONNECT_TIMEOUT_S, None, self._unix_path)
        self._link: CallerLink | None = None
        self._link_lock = asyncio.Lock()
        self._no_link_until = 0.0
        self._waiting_tasks: dict[asyncio.Task[object], None] = {}
        self._cancelled_tasks: set[asyncio.Task[object]] = set()
        self._last_used = self._loop.time()
        self._watch_task: asyncio.Task[None] | None = None
        self.is_silent = False
        self._wrong_process_at = -WRONG_PROCESS_PAUSE_S  # when another process last responded at its address
        self._avoid_until = self._wrong_process_at

    def server_config(self) -> Server:
        """Return the server configuration with which requests are sent to the HTTP endpoint of the other node."""
        return Server(
            url=f"{self._url}{NODE_PATH}",
            headers=self._headers,
            era="modern",
            timeout=Timeout(connect=PEER_CONNECT_TIMEOUT_S),
            network_policy=self._network_policy(),
        )

    def _network_policy(self) -> NetworkPolicy:
        """Return a network policy that allows the other node's address, which an administrator configured."""
        return NetworkPolicy((urlsplit(self._url).hostname or "",))

    async def _check_connection(self, connection: ClientConnection) -> None:
        """Make the node prove itself on a new connection. If it fails, calls avoid its address for a while."""
        try:
            await check_node(
                self.client, connection, self._address, self._proofs, self.id, self._get_epoch(self.id) or 0
            )
        except NodeProofFailed:
            if asyncio.current_task() in self._waiting_tasks:
                self._wrong_process_at = self._loop.time()
                self._avoid_until = self._wrong_process_at + WRONG_PROCESS_PAUSE_S
            raise

    # -- the link -----------------------------------------------------------------------------------------------------

    @property
    def ready_link(self) -> CallerLink | None:
        """Return the link (shared connection) to this node if it can be used at once, else None."""
        link = self._link
        return link if link is not None and link.is_usable and link.is_fresh else None

    async def get_link(self) -> CallerLink | None:
        """Return the link (shared connection) to this node; open one if there is none.

        Return None if the node does not support links, so calls must be sent as HTTP POSTs. Raises `TransportError`
        (nothing was sent) if the node cannot be reached.
        """
        link = self.ready_link
        if link is not None or self._loop.time() < self._no_link_until:
            return link
        async with self._link_lock:
            link = self._link
            if link is not None and link.is_usable:
                if not link.is_fresh:
                    await link.ping()
                return link
            if self._loop.time() < self._no_link_until:
                return None
            self._link = None
            return await self._open_link()

    async def _open_link(self) -> CallerLink | None:
        target = HttpTarget.parse(self._url)
        identity = CallerIdentity(self._proofs, self.id, self._get_epoch(self.id) or 0, self._address)
        try:
            async with asyncio.timeout(PEER_CONNECT_TIMEOUT_S):
                link = await self._dialer.dial(
                    target.origin,
                    proxy_for(target.origin) if not self._unix_path else None,
                    lambda: CallerLink(identity, switch_request(self._url)),
                    tunnel=True,
                )
        except TimeoutError:
            raise TransportError("no connection to the node in time", Certainty.NOT_SENT) from None
        except HttpError as exc:
            raise TransportError(exc.reason, Certainty.NOT_SENT, code=exc.code) from None
        try:
            if not await link.wait_open():
                self._no_link_until = self._loop.time() + NO_LINKS_S
                return None
        except LinkError as exc:
            # A POST finds out what is wrong.
            log.debug("no link to node %s: %s", self.id, exc)
            self._no_link_until = self._loop.time() + LINK_RETRY_S
            return None
        self._link = link
        return link

    def retire(self) -> None:
        """Send no new calls on the link; it is closed when no call is in flight."""
        if self._link is not None:
            self._link.go()

    async def run_while_alive(self, work: Awaitable[T]) -> T:
        """Wait for `work`, a call to this node, while the node is alive. Return the result.

        Raises `PeerTimeout` if the node stops sending heartbeats and answers no health probe during the wait.
        """
        task = asyncio.current_task()
        assert task is not None
        cancels_before = task.cancelling()
        self._waiting_tasks[task] = None
        self._start_watching()
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._cancelled_tasks and task.uncancel() <= cancels_before:
                raise PeerTimeout from None
            raise
        finally:
            self._last_used = self._loop.time()
            self._cancelled_tasks.discard(task)
            self._waiting_tasks.pop(task, None)

    @property
    def unavailable_reason(self) -> str:
        """Return why nothing should be sent to this node now, such as another process at its address, or "".

        If that process has just started, it may reject calls late, and until then their outcome would be unknown.
        """
        if self.is_silent:
            return "the owner node sends no heartbeat"
        return "another process responds at the address of the owner node" if self._is_avoided else ""

    @property
    def _is_avoided(self) -> bool:
        return self._loop.time() < self._avoid_until

    def on_sent(self) -> None:
        """Watch this node's heartbeats, because a call was sent that no task waits for.

        If the node stops responding, its link is ended, and the call fails.
        """
        self._last_used = self._loop.time()
        self._start_watching()

    def _start_watching(self) -> None:
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        async with self._bus.watch(self.id) as listener:
            while self._waiting_tasks or len(self._link or ()) or self._loop.time() < self._last_used + WATCH_LINGER_S:
                await asyncio.sleep(HEARTBEAT_INTERVAL_S / 2)
                silence = listener.seconds_silent
                if self._loop.time() - silence > self._wrong_process_at:
                    self._avoid_until = min(self._avoid_until, self._wrong_process_at + MISROUTED_PAUSE_S)
                if silence < PROBE_AFTER_S or await self._probe_health(
                    max(HEARTBEAT_TIMEOUT_S + HEARTBEAT_INTERVAL_S / 2 - silence, HEARTBEAT_INTERVAL_S)
                ):
                    self.is_silent = False
                elif listener.seconds_silent >= HEARTBEAT_TIMEOUT_S:
                    self.is_silent = True
                    self._cancel_waiting()
        self.is_silent = False

    async def _probe_health(self, timeout: float) -> bool:
        """Return True if the node answers an HTTP health request within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout), self._probe_client.send("GET", self._health) as response:
                await response.read(MAX_HEALTH_BYTES)
        except (TimeoutError, HttpError):
            return False
        return True

    def _cancel_waiting(self) -> None:
        """Cancel all calls that wait for this node; `run_while_alive` then raises `PeerTimeout`."""
        for task in [task for task in self._waiting_tasks if task not in self._cancelled_tasks]:
            self._cancelled_tasks.add(task)
            task.cancel()
        if self._link is not None:
            self._link.abort("the node sends no heartbeat")

    async def close(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        if self._link is not None:
            self._link.abort("this node shuts down")
        self.client.close()
        self._probe_client.close()


class OwnerCache:
    """Cache of the owner nodes of server instances, filled from the database on demand.

    Concurrent lookups of one instance share one query.
    """

    def __init__(self, instances: InstanceStore) -> None:
        self._instances = instances
        self._cached: dict[ServerInstance, Ownership] = {}
        self._lookups: dict[ServerInstance, asyncio.Task[Ownership | None]] = {}
        self._lookup_log = LogThrottle("owner lookup failed")

    def get(self, instance: ServerInstance) -> Ownership | None:
        """Return the cached owner of a server instance, or None if it is not cached."""
        return self._cached.get(instance)

    def invalidate(self, ownership: Ownership) -> None:
        """Remove this ownership from the cache, because it is outdated; a newer one is kept."""
        if self._cached.get(ownership.instance) == ownership:
            del self._cached[ownership.instance]

    def update(self, acquired: Iterable[Ownership]) -> None:
        """Update cached owners from acquisitions that another node published.

        Instances not in the cache are ignored.
        """
        for ownership in acquired:
            cached = self._cached.get(ownership.instance)
            if cached is not None and ownership.fence > cached.fence:
                self._cached[ownership.instance] = ownership

    async def lookup(self, instance: ServerInstance) -> Ownership | None:
        """Fetch the owner of a server instance from the database.

        None if the instance has no owner, or if the database is unavailable.
        """
        task = self._lookups.get(instance)
        if task is None:
            task = self._lookups[instance] = asyncio.create_task(self._fetch(instance))
            task.add_done_callback(lambda done: self._lookups.pop(instance, None))
        return await asyncio.shield(task)

    async def _fetch(self, instance: ServerInstance) -> Ownership | None:
        try:
            found = await self._instances.find_owner(instance)
        except Exception as exc:
            self._lookup_log.log_failure(exc)
            return None
        self._lookup_log.log_recovery()
        if found is not None:
            if len(self._cached) >= MAX_CACHED_OWNERS:
                self._cached.clear()
            self._cached[instance] = found
        return found

    async def close(self) -> None:
        """Cancel all database lookups that are in flight."""
        tasks = list(self._lookups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
