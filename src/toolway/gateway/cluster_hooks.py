"""Interface of a gateway to its cluster: all questions to it, in one object.

`Gateway` gets it at construction. `ClusterHooks` itself is the gateway without a cluster: no other nodes, every server
is local. `cluster/node.py` has the implementation for a cluster node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from mcp_types.jsonrpc import INVALID_REQUEST

from toolway.gateway.mcp.context import ForwardedCall, Notify
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.legacy_session import LegacySession
from toolway.gateway.mcp.responses import EventStream
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.protocol.jsonrpc import Message
from toolway.types import Json


class ClusterHooks:
    """Questions of a gateway to its cluster. The answers here are those of a gateway without a cluster."""

    @property
    def session_peers(self) -> SessionPeers | None:
        """The other nodes, for legacy sessions; None without a cluster."""
        return None

    @property
    def admin(self) -> ClusterAdmin | None:
        """Admin operations of the cluster; None without a cluster."""
        return None

    def authenticate_node(self, token: str) -> Principal | None:
        """Return the node with this token, or None if it is no token of a node."""
        return None

    def verify_call_token(
        self, server: str, params: Json, view: EndpointView | None
    ) -> tuple[Principal, EndpointView, ForwardedCall]:
        """Return principal, view and data of a call that another node forwards. Raises `RpcFailure`.

        `view` is the view of the server, if it is known.
        """
        raise RpcFailure(INVALID_REQUEST, "cluster mode is off", {"executed": "no"})

    def is_remote(self, server: str) -> bool:
        """Return True if another node owns the server."""
        return False

    def is_draining(self) -> bool:
        """Return True if this node is draining, so that load balancers avoid it."""
        return False

    def gauges(self) -> Mapping[str, float]:
        """Return the gauges of this node by name, without the prefix `toolway_cluster_`."""
        return {}


NO_CLUSTER: Final = ClusterHooks()


class ClusterAdmin(Protocol):
    """Admin operations of a cluster node: its nodes, owners of servers, restarts."""

    async def list_nodes(self) -> Json: ...

    async def get_node(self, name: str) -> Json:
        """Return one node with its servers. Raises `NotFound`."""
        ...

    async def drain_node(self, name: str) -> Json:
        """Make a node release its servers. Raises `NotFound`."""
        ...

    async def owners_by_server(self) -> Mapping[str, Sequence[str]]:
        """Return the ids of the nodes that own each server, as far as known."""
        ...

    def restart(self, server: str) -> None:
        """Ask the nodes that own the server to restart it."""
        ...


class SessionPeers(Protocol):
    """The other nodes of a cluster, which share the state of legacy sessions.

    A client may send every request to another node. What it sends back carries a tag of the node that it belongs to:
    the id of a response, the last event id, the URL of an SSE message.
    """

    @property
    def node_tag(self) -> str:
        """Tag of this node: letters and digits."""
        ...

    # -- session state ------------------------------------------------------------------------------------------------

    def on_session_started(self, id_: str) -> None:
        """Note a session that starts on this node: no other node has state for it."""
        ...

    def on_session_loaded(self, session: LegacySession) -> None:
        """Note that this node holds state of the session from now on."""
        ...

    def is_current(self, session: LegacySession) -> bool:
        """Return True if the changes that other nodes made to the session are known here."""
        ...

    async def load_state(self, session: LegacySession) -> None:
        """Load the changes that other nodes made to the session, including its end."""
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
        """Publish a change of the session made on this node.

        It may change the log level, add or remove a resource, or end the session.
        """
        ...

    def on_stream_opened(self, session: LegacySession) -> None:
        """Announce that the client's notification stream is on this node now, and on no other."""
        ...

    # -- forwarding ---------------------------------------------------------------------------------------------------

    async def forward(self, session: LegacySession, message: Message) -> None:
        """Forward a response or cancellation that matches nothing on this node."""
        ...

    async def resume_stream(self, session: LegacySession, last_event_id: str, stream: EventStream) -> bool:
        """Send the rest of a stream that started on another node. Return False if there is none."""
        ...

    async def forward_sse_message(self, node_tag: str, id_: str, principal_id: str, message: Message) -> int:
        """Forward a message to the node that holds the `/sse` stream.

        Return the HTTP status for the client.
        """
        ...

    async def handle_node_request(self, params: Json, notify: Notify) -> Json:
        """Handle a session request that another node forwards to this node. Raises `RpcFailure`."""
        ...
