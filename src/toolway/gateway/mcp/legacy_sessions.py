"""Legacy sessions (protocol 2024-11-05 to 2025-11-25), independent of their transport.

The result of `initialize` is sealed into the session id, so any process with the same key can continue the session.
State that needs a live connection (the notification stream, requests to the client, cancellable requests) is kept in
a `LegacySession`, which this process creates when it first sees the session. In a cluster, a client may send each
request to a different node, so messages that belong to another node are forwarded to it (`SessionPeers`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from toolway.gateway.cluster_hooks import ClusterHooks, SessionPeers
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.legacy_session import ActiveRequest, LegacySession, SendMessage, SessionCallbacks
from toolway.gateway.mcp.modern import Discovery
from toolway.gateway.mcp.replay_buffer import ReplayBudget
from toolway.gateway.mcp.responses import RpcResult, encode_error
from toolway.gateway.mcp.subscriptions import Subscriber, SubscriptionService
from toolway.gateway.mcp.view import KINDS, EndpointView
from toolway.gateway.principals import Principal
from toolway.gateway.sealing import Sealer
from toolway.http.exchange import Exchange
from toolway.hub.taken_over import TakenOverCall
from toolway.protocol import jsonrpc
from toolway.protocol.cancellation import CANCELLED, cancelled_request_id
from toolway.protocol.constants import INVALID_PARAMS, INVALID_REQUEST
from toolway.protocol.jsonrpc import Message
from toolway.protocol.versions import LOG_LEVELS
from toolway.types import Json

SESSION_KIND: Final = "session"
SESSION_LIFETIME_S: Final = 7 * 86_400.0  # seconds for which a session can be resumed
MAX_SESSIONS: Final = 20_000  # sessions with state in this process
MAX_CAPABILITIES_BYTES: Final = 4096  # of a client, as JSON
_SESSION_METHODS: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})


class LegacySessions:
    """All legacy sessions in this process, over `/mcp`, `/sse` or stdio."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        discovery: Discovery,
        subscriptions: SubscriptionService,
        sealer: Sealer,
        cluster: ClusterHooks,
    ) -> None:
        self._dispatcher = dispatcher
        self._discovery = discovery
        self._subscriptions = subscriptions
        self._sealer = sealer
        self._sessions: OrderedDict[str, LegacySession] = OrderedDict()
        self._ended: OrderedDict[bytes, None] = OrderedDict()  # digests of the ids of ended sessions
        self._cluster = cluster
        self.replay_budget = ReplayBudget()

    @property
    def peers(self) -> SessionPeers | None:
        """The other nodes of the cluster; None without a cluster."""
        return self._cluster.session_peers

    # -- sessions -----------------------------------------------------------------------------------------------------

    def initialize(self, principal: Principal, view: EndpointView, endpoint: str, params: Json) -> tuple[str, Json]:
        """Start a session. Return its id and the result of `initialize`.

        Raises `RpcFailure` if the client sends no protocol version, or capabilities that are too large.
        """
        capabilities = params.get("capabilities")
        if not isinstance(capabilities, dict):
            capabilities = {}
        elif len(jsonrpc.encode_json(capabilities)) > MAX_CAPABILITIES_BYTES:
            # They become part of the session id, which the client sends with every request.
            raise RpcFailure(INVALID_PARAMS, f"capabilities must have at most {MAX_CAPABILITIES_BYTES} bytes of JSON")
        if not isinstance(params.get("protocolVersion"), str):
            raise RpcFailure(INVALID_PARAMS, "initialize requires a protocolVersion")
        result = self._discovery.initialize(view, params["protocolVersion"])
        facts: Json = {
            "principal": principal.id,
            "endpoint": endpoint,
            "version": result["protocolVersion"],
            "capabilities": capabilities,
        }
        id_ = self._sealer.seal(SESSION_KIND, facts, SESSION_LIFETIME_S)
        if self.peers is not None:
            self.peers.on_session_started(id_)
        return id_, result

    def get_session(self, id_: str, principal: Principal, view: EndpointView, endpoint: str) -> LegacySession | None:
        """Return the legacy session with this id.

        Return None if it is unknown, has ended, or belongs to another principal or endpoint.
        """
        session = self._sessions.get(id_)
        if session is not None:
            self._sessions.move_to_end(id_)
            if session.principal.id != principal.id or session.endpoint != endpoint:
                return None
            session.renew(principal, view)
            return session
        facts = self._sealer.open(SESSION_KIND, id_) if _digest(id_) not in self._ended else None
        if facts is None or (facts["principal"], facts["endpoint"]) != (principal.id, endpoint):
            return None
        session = LegacySession(facts, principal, view, self.node_tag, self.replay_budget)
        return self.add_session(id_, session)

    @property
    def node_tag(self) -> str:
        """Return the tag of this cluster node and a ".", as a prefix for ids, or "" without a cluster."""
        return f"{self.peers.node_tag}." if self.peers is not None else ""

    def add_session(self, id_: str, session: LegacySession) -> LegacySession:
        """Store a session in this process; evict the oldest idle one if there are too many."""
        self._sessions[id_] = session
        session.id = id_
        if self.peers is not None:
            self.peers.on_session_loaded(session)
        if len(self._sessions) > MAX_SESSIONS:
            oldest = next((k for k, s in self._sessions.items() if s.stream is None and not s.active_requests), None)
            if oldest is not None:
                self._remove(oldest)
        return session

    def end_session(self, id_: str) -> None:
        """End a session because its client deleted it. This process rejects its id from now on."""
        self._remove(id_)
        self._ended[_digest(id_)] = None
        if len(self._ended) > MAX_SESSIONS:
            self._ended.popitem(last=False)

    def get_live(self, id_: str, principal_id: str) -> LegacySession | None:
        """Return the session with this id if it is in this process's memory and belongs to the principal, or None."""
        found = self._sessions.get(id_)
        return found if found is not None and found.principal.id == principal_id else None

    def _remove(self, id_: str) -> None:
        session = self._sessions.pop(id_, None)
        if session is not None:
            self.close_session(session)

    def close_session(self, session: LegacySession) -> None:
        """Cancel the requests of a session and drop its subscriptions in this process."""
        session.close()
        if session.subscriber is not None:
            self._subscriptions.remove(session.subscriber)

    @property
    def has_active_requests(self) -> bool:
        """True if a request in any session is active, even if its connection was lost."""
        return any(session.active_requests for session in self._sessions.values())

    def replace_views(self, find_view: Callable[[Principal, str], EndpointView | None]) -> None:
        """Give all sessions new views of what their clients may see, because the policy changed."""
        for session in self._sessions.values():
            view = find_view(session.principal, session.endpoint)
            if view is not None:
                session.set_view(view)

    def close_streams(self) -> None:
        """Close the SSE streams (GET) of all sessions, which carry messages that belong to no request."""
        for session in self._sessions.values():
            if session.stream is not None:
                session.stream.close()

    def close(self) -> None:
        for id_ in list(self._sessions):
            self._remove(id_)

    # -- messages of a session ----------------------------------------------------------------------------------------

    def handle_message(self, session: LegacySession, message: Message) -> bool:
        """Handle a client's notification, or its response to a server request.

        Return False if the request that it refers to is not in this process.
        """
        if message.kind in ("result", "error"):
            return session.handle_response(message)
        if message.method == CANCELLED:
            id_ = cancelled_request_id(message)
            request = session.active_requests.get(id_) if id_ is not None else None
            if request is None:
                return False
            request.cancel()
        return True

    async def notify(self, session: LegacySession, message: Message) -> None:
        """Forward a client notification that MCP does not define, if the endpoint allows it."""
        await self._dispatcher.notify(
            self.build_context(session, lambda data: False, None), message.method, message.body
        )

    async def handle_request(
        self, session: LegacySession, message: Message, send: SendMessage, exchange: Exchange | None = None
    ) -> bytes | None:
        """Handle a client request and return its encoded response; None if the client cancelled it.

        `send` sends related messages (notifications, server requests) before the response. `exchange` is the HTTP
        request that contained the message, if there is one.
        """
        id_ = message.id
        assert id_ is not None
        if id_ in session.active_requests:
            return encode_error(id_, INVALID_REQUEST, "request id already in use")
        session.active_requests[id_] = request = ActiveRequest(asyncio.current_task())
        return await self._encode_outcome(session, id_, request, self._compute_result(session, message, send, exchange))

    async def resume_request(
        self,
        session: LegacySession,
        id_: jsonrpc.MessageId,
        request: ActiveRequest,
        context: RequestContext,
        taken: TakenOverCall,
    ) -> bytes | None:
        """Await a tool call that was sent as a flight (flights.py), and return the encoded response.

        Return None if the client cancelled the request.
        """
        return await self._encode_outcome(session, id_, request, self._dispatcher.resume(context, taken))

    async def _encode_outcome(
        self, session: LegacySession, id_: jsonrpc.MessageId, request: ActiveRequest, work: Awaitable[RpcResult]
    ) -> bytes | None:
        try:
            return jsonrpc.encode_result(id_, await work)
        except RpcFailure as failure:
            return encode_error(id_, failure.code, failure.message, failure.data)
        except asyncio.CancelledError:
            if request.cancelled and request.task is not None and request.task.uncancel() == 0:
                return None
            raise
        finally:
            session.active_requests.pop(id_, None)

    async def handle_stateless(self, context: RequestContext, message: Message) -> RpcResult:
        """Answer one request from a client without a session, such as curl.

        The client gets no notifications and no server requests. Raises `RpcFailure` if the request fails, or if its
        method needs a session.
        """
        if message.method == "ping":
            return {}
        if message.method in _SESSION_METHODS:
            raise RpcFailure(INVALID_REQUEST, f"{message.method} needs a session: send initialize first")
        return await self._dispatcher.dispatch(context, message.method, message.body)

    async def _compute_result(
        self, session: LegacySession, message: Message, send: SendMessage, exchange: Exchange | None
    ) -> RpcResult:
        method, params = message.method, message.body
        if method == "ping":
            return {}
        if method == "logging/setLevel":
            return await self._set_log_level(session, params)
        if method in ("resources/subscribe", "resources/unsubscribe"):
            return await self._change_subscription(session, method, params)
        context = self.build_context(session, send, message.id)
        if exchange is not None:
            context.set_ids(exchange)
        return await self._dispatcher.dispatch(context, method, params)

    def build_context(self, session: LegacySession, send: SendMessage, id_: jsonrpc.MessageId | None) -> RequestContext:
        """Return the context of a request in a session. `send` sends messages that belong to the request."""

        def notify(method: str, params: Json) -> None:
            send(jsonrpc.encode_notification(method, params))

        return RequestContext(
            session.principal,
            session.view,
            session.endpoint,
            "legacy",
            session.capabilities,
            notify,
            SessionCallbacks(session, send),
            session.log_level,
            logs_without_level=True,
            request_id=id_,
            version=session.version,
            transport=session.transport,
        )

    async def _set_log_level(self, session: LegacySession, params: Json) -> Json:
        if params.get("level") not in LOG_LEVELS:
            raise RpcFailure(INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        session.log_level = params["level"]
        if self.peers is not None and session.id:
            await self.peers.save_state(session, log_level=session.log_level)
        return {}

    async def _change_subscription(self, session: LegacySession, method: str, params: Json) -> Json:
        uri, add, drop = params.get("uri"), "", ""
        subscriber = await self.ensure_subscriber(session)
        if method == "resources/unsubscribe":
            self._subscriptions.remove_uri(subscriber, str(uri))
            drop = str(uri)
        elif not isinstance(uri, str) or not await self._subscriptions.add_uri(subscriber, uri):
            raise RpcFailure(INVALID_PARAMS, "unknown resource, or too many subscriptions", {"uri": uri})
        else:
            add = uri
        if self.peers is not None and session.id:
            await self.peers.save_state(session, add_uri=add, remove_uri=drop)
        return {}

    async def sync_subscriptions(self, session: LegacySession) -> None:
        """Make this process's resource subscriptions match the shared session state.

        Another node may have changed that state.
        """
        if session.subscriber is None:
            return
        subscribed = set(session.subscriber.topics.values())
        for uri in subscribed.difference(session.subscribed_uris):
            self._subscriptions.remove_uri(session.subscriber, uri)
        for uri in set(session.subscribed_uris) - subscribed:
            await self._subscriptions.add_uri(session.subscriber, uri)

    async def ensure_subscriber(self, session: LegacySession) -> Subscriber:
        """Return the subscriber of this session, which passes changes of lists and resources to the client.

        It is created on first use.
        """
        if session.subscriber is None:
            session.subscriber = Subscriber(
                session.view,
                frozenset(KINDS),
                session.notify,
                session.principal.caller_id,
                on_log=session.forward_log,
                principal=session.principal,
                endpoint=session.endpoint,
            )
            await self._subscriptions.add(session.subscriber)
            await self.sync_subscriptions(session)
        return session.subscriber


def _digest(id_: str) -> bytes:
    return hashlib.sha256(id_.encode()).digest()
