"""A gateway's interface to its cluster: everything it asks the cluster or reports to it.

`Gateway` gets an instance when it is created. `ClusterHooks` itself serves a gateway without a cluster, which has a
single node where every server is local. `cluster/node.py` has the version for a cluster node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.legacy_session import LegacySession
from toolway.gateway.mcp.responses import EventStream
from toolway.gateway.principals import Principal
from toolway.http.exchange import Exchange
from toolway.protocol.jsonrpc import Message
from toolway.telemetry.metrics import MetricsStore
from toolway.types import Json


class ClusterHooks:
    """A gateway's interface to its cluster.

    This base class is used without a cluster: it knows no other nodes, and all servers are local.
    """

    @property
    def session_peers(self) -> SessionPeers | None:
        """Access to the other nodes that share legacy client sessions; None without a cluster."""
        return None

    @property
    def admin(self) -> ClusterAdmin | None:
        """The cluster's operations for `/admin`, or None without a cluster."""
        return None

    def authenticate_node(self, token: str) -> Principal | None:
        """Return the principal of the node that owns this token, or None if it is not a node token."""
        return None

    def prove_node(self, challenge: str) -> str | None:
        """Return a proof that this gateway is the node that another node's `challenge` names, or None if it is not."""
        return None

    async def handle_node_exchange(self, exchange: Exchange, refusal: RpcFailure | None) -> None:
        """Answer an HTTP request of another node.

        If `refusal` is given, nothing runs and that error is the answer.
        """
        raise AssertionError("without a cluster no node is authenticated")

    @property
    def links(self) -> NodeLinks | None:
        """Connections that other nodes have opened to this one for their calls, or None without a cluster."""
        return None

    def is_remote(self, server: str) -> bool:
        """Return True if calls to the server are forwarded to another node, which owns it."""
        return False

    def is_draining(self) -> bool:
        """Return True if this node is draining, so load balancers avoid it."""
        return False

    def on_browser_session_ended(self, digest: str, until: float) -> None:
        """Tell all nodes that a dashboard session ended. It would have expired at the wall time `until`."""

    # -- several workers ----------------------------------------------------------------------------------------------

    async def forward_admin(self, exchange: Exchange) -> bool:
        """Forward a request for /admin, /metrics, or /login to the one worker that handles these paths.

        Return False if this process must answer the request itself.
        """
        return False

    async def collect_reports(self) -> None:
        """Fetch all other workers' reports, before answering a request about the whole gateway."""

    def worker_reports(self) -> Iterable[WorkerReport]:
        """Return the last report of each other running worker."""
        return ()

    def on_metrics_shown(self) -> None:
        """Save all workers' counters before they are shown, so they never decrease after a crash."""

    def gauges(self) -> Mapping[str, float]:
        """Return this node's cluster metrics: value by name, without the prefix `toolway_cluster_`."""
        return {}


class WorkerReport(NamedTuple):
    """Another worker's report, from the same address: its counters and gauges."""

    store: MetricsStore
    stalls: tuple[int, float]  # of the event loop: number and seconds
    stats: Json  # like `Gateway.own_stats`
    running: Mapping[str, int]  # running calls by server
    messages: Mapping[str, Sequence[int]]  # messages sent and received by server
    parts: Mapping[str, Json]  # what parts report (`PartRuntime.worker_report`), by name of the part


NO_CLUSTER: Final = ClusterHooks()


class NodeLinks(Protocol):
    """Connections that other nodes have opened to this one to send calls (links)."""

    def accept(self) -> asyncio.Protocol | None:
        """Return the protocol object for a new link, or None to reject it. It authenticates the other node."""
        ...

    def stop_accepting(self) -> None:
        """Accept no new links, and tell the other nodes to stop sending calls here."""
        ...

    async def wait_idle(self) -> None:
        """Wait until no other node's call is running."""
        ...

    async def cancel_all(self, timeout: float = 1.0) -> None:
        """Cancel all other nodes' calls, and wait at most `timeout` seconds for their error replies."""
        ...

    async def close(self, timeout: float = 5.0) -> None:
        """Close all links within `timeout` seconds."""
        ...


class ClusterAdmin(Protocol):
    """The cluster's operations for `/admin`: its nodes, which of them own which servers, and restarts."""

    async def list_nodes(self) -> Json: ...

    async def get_node(self, name: str) -> Json:
        """Return one node with its servers. Raises `NotFound` if no such node exists."""
        ...

    async def drain_node(self, name: str) -> Json:
        """Make a node release all servers it owns. Raises `NotFound` if no such node exists."""
        ...

    async def owners_by_server(self) -> Mapping[str, Sequence[str]]:
        """Return the ids of the nodes that own each server, by server name, as last known."""
        ...

    def restart(self, server: str) -> None:
        """Ask the nodes that own the server to restart it."""
        ...


class SessionPeers(Protocol):
    """The other nodes of a cluster, which share the state of legacy client sessions.

    Legacy means before protocol version 2026-07-28. A load balancer may route each request in a session to a
    different node. If state exists on only one node, that node is found by its tag, which the client sends back in a
    response's id, in the last event id, or in the URL of an SSE message.
    """

    @property
    def node_tag(self) -> str:
        """Short id of this node (letters and digits), embedded in ids that clients send back."""
        ...

    # -- session state ------------------------------------------------------------------------------------------------

    def on_session_started(self, id_: str) -> None:
        """Record that a legacy session starts here, so no other node has state for it yet."""
        ...

    def on_session_loaded(self, session: LegacySession) -> None:
        """Record that this node loaded a session and needs to hear about its changes."""
        ...

    def is_current(self, session: LegacySession) -> bool:
        """Return True if this node has loaded all changes that other nodes made to the session."""
        ...

    async def load_state(self, session: LegacySession) -> None:
        """Load the changes that other nodes made to the session, including whether they ended it."""
        ...

    async def save_state(
        self,
        session: LegacySession,
        *,
        log_level: str | None = None,
        add_uri: str = "",
        remove_uri: str = "",
        ended: bool = False,
    ) -> None:
        """Store a change to the session and publish it to the other nodes.

        The arguments set the log level, add or remove a resource URI to which the client subscribed, or end the
        session.
        """
        ...

    def on_stream_opened(self, session: LegacySession) -> None:
        """Tell the other nodes that the client's notification stream is now on this node."""
        ...

    # -- forwarding ---------------------------------------------------------------------------------------------------

    async def forward(self, session: LegacySession, message: Message) -> None:
        """Forward a client's response or cancellation to the node that has the request it refers to."""
        ...

    async def resume_stream(self, session: LegacySession, last_event_id: str, stream: EventStream) -> bool:
        """Send the client the rest of a broken event stream that began on another node.

        Return False if no node has that stream.
        """
        ...

    async def forward_sse_message(self, node_tag: str, id_: str, principal_id: str, message: Message) -> int:
        """Forward a posted client message to the node that holds the client's `/sse` stream.

        Return the HTTP status for the client.
        """
        ...
