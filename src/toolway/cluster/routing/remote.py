"""Transport to a server's owner node, which the hub uses like any modern MCP server.

Rule 1. The owner is determined when a request is sent. While there is none, or it is unreachable and nothing was sent,
        the request waits for the next owner, at most OWNER_TIMEOUT_S seconds; nothing ran.
Rule 2. A request that may have reached its owner is never sent to another node: its outcome is unknown, and the retry
        middleware decides about another attempt.
Rule 3. Errors that the owner has classified are passed on unchanged.
Rule 4. A call whose deadline is near after it waited for its owner is not sent: the owner's result would arrive too
        late, and the outcome would be unknown.
Rule 5. A call that another node forwarded is not forwarded again: its sender determines the owner again. So no call
        circulates, and none waits for itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

from toolway.cluster.db.instances import Ownership, ServerInstance
from toolway.cluster.db.nodes import NodeStatus
from toolway.cluster.node_auth import CallToken, CallTokenSealer, issue_call_token, new_call_key, new_use_id
from toolway.cluster.replication.catalog import SharedCatalog, answer_catalog_request, is_catalog_request
from toolway.cluster.routing.call_cipher import CallCipher, ForwardedRequest
from toolway.cluster.routing.link import LinkExchange
from toolway.cluster.routing.node_http import NodeHttpTransport
from toolway.cluster.routing.node_link import encode_call, link_head, new_ticket
from toolway.cluster.routing.owned import OwnerTransportBase, moved_error
from toolway.cluster.routing.peers import OwnerCache, Peer, Peers, PeerTimeout
from toolway.errors import (
    AccessDenied,
    CallError,
    CallTimeout,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    ServerUnavailable,
)
from toolway.gateway.mcp import errors
from toolway.gateway.mcp.errors import ERROR_DATA_KEY, TIMEOUT_META_KEY
from toolway.hub.flight import Flight
from toolway.protocol.constants import INVALID_PARAMS
from toolway.protocol.schema_violations import decode_invalid_arguments
from toolway.types import Call, Certainty, Json
from toolway.upstream.transport import (
    SEND_TOO_LATE,
    SERVER_MOVED,
    WRONG_NODE,
    ExchangeListener,
    InboundHandler,
    JSONRPCError,
    Request,
    RequestExchange,
    Transport,
    TransportError,
    TransportInfo,
)

OWNER_TIMEOUT_S: Final = 15.0  # seconds: servers of an expired lease have a new owner within 12
MAX_NODE_TRANSPORTS: Final = 16  # open transports to nodes that owned the server last
OWNER_LOOKUP_INTERVAL_S: Final = 0.1  # seconds between two owner lookups
OWNER_HEAD_START_S: Final = 0.25  # seconds before our own deadline at which the owner's deadline ends
HEAD_START_DIVISOR: Final = 10  # at most one in so many parts of the remaining time is used for that
LATE_HEAD_START_DIVISOR: Final = 2  # the same for a call that waited for its owner, which may have to start the server

#: The owner has not started the call; another node will.
NOT_STARTED_CODES: Final = frozenset({errors.MOVED, errors.SHUTTING_DOWN})
_ERROR_TYPES: Final[dict[int, type[CallError]]] = {
    errors.UNAVAILABLE: ServerUnavailable,
    errors.DEADLINE: CallTimeout,
    errors.OVERLOADED: Overloaded,
    errors.QUOTA: Overloaded,
    errors.OUTCOME_UNKNOWN: OutcomeUnknown,
    errors.THROTTLED: Overloaded,
    errors.CANCELLED: OutcomeUnknown,
    errors.KEY_MISMATCH: ProtocolError,
    errors.STORE_UNAVAILABLE: ServerUnavailable,
    errors.DENIED: AccessDenied,
    errors.UPSTREAM_PROTOCOL: ProtocolError,
    errors.UPSTREAM_AUTH: AccessDenied,
}

log = logging.getLogger("toolway.cluster")


class RoutingContext(Protocol):
    """What transports to other nodes need from this node, such as the owner cache and live nodes."""

    @property
    def id(self) -> str: ...

    @property
    def owner_cache(self) -> OwnerCache: ...

    @property
    def peers(self) -> Peers: ...

    @property
    def sealer(self) -> CallTokenSealer: ...

    @property
    def shared_catalog(self) -> SharedCatalog: ...

    def owns(self, server: str) -> bool:
        """Return True if this node owns an instance of the server."""
        ...

    def get_node(self, id: str) -> NodeStatus | None:
        """Return the status of a live node; if unknown, return None and poll the database soon."""
        ...

    def nats_transport(self, node: NodeStatus) -> Transport:
        """Return a transport over NATS to a node that has no HTTP address."""
        ...


class RemoteTransport(OwnerTransportBase):
    """Transport that sends the requests for a server to the node that owns it.

    `instances` are the instances of the server. `caller_id` is set for a per-caller connection, otherwise "".
    """

    def __init__(
        self, server: str, instances: Sequence[ServerInstance], context: RoutingContext, caller_id: str = ""
    ) -> None:
        self._server = server
        #: For requests that are not calls.
        self._default_info = msgspec.structs.replace(NO_FORWARDING_INFO, caller=caller_id)
        self._instances = instances
        self._context = context
        #: By peer, or by node id and epoch if the node has no address.
        self._node_transports: dict[object, Transport] = {}
        self._open_lock = asyncio.Lock()
        self._next_number = 0
        self._stopped = False

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound

    # -- StartingTransport --------------------------------------------------------------------------------------------

    def start(self, request: Request, listener: ExchangeListener) -> RequestExchange | None:
        """Send an ordinary call to the owner node now, and return its exchange, which gets the outcome.

        Return None without sending anything if the call is not an ordinary one, or if no link to the owner is ready.
        """
        origin = listener.origin() if isinstance(listener, Flight) else None
        meta: msgspec.Raw | Json | None = request.params.get("_meta")
        if origin is None or meta is None or self._stopped:
            return None
        assert isinstance(listener, Flight)
        context, plan = self._context, listener.plan
        instance = self._instances[0] if len(self._instances) == 1 else self._select_instance(plan.caller)
        ownership = context.owner_cache.get(instance)
        node = context.get_node(ownership.node) if ownership is not None else None
        if ownership is None or node is None or ownership.node == context.id or not node.info.address:
            return None
        peer = context.peers.get(ownership.node, node.info.address)
        link = peer.ready_link
        if link is None or peer.unavailable_reason:
            return None
        use_id = new_use_id()
        head = link_head(ownership, origin.principal, plan.caller, origin.principal_name, origin.endpoint)
        ticket = new_ticket(listener.call_id, use_id, None, "")
        remaining = origin.timeout if origin.timeout is not None else plan.policy.timeout
        remaining -= min(OWNER_HEAD_START_S, remaining / HEAD_START_DIVISOR)
        params = {**request.params, "_meta": _add_timeout(meta, round(remaining * 1000))}
        sent = Request(request.method, params, request.call_state)
        exchange = link.start(encode_call(head, ticket), sent, self._inbound, listener)
        exchange.route = (link, peer, ownership, use_id)
        peer.on_sent()
        return exchange

    async def wait(self, exchange: RequestExchange, request: Request) -> Json:
        assert isinstance(exchange, LinkExchange)
        link, peer, ownership, use_id = exchange.route
        try:
            return await self._explain(peer.run_while_alive(link.wait(exchange)), request)
        except _OwnerUnavailable as exc:
            self._context.owner_cache.invalidate(ownership)
            return await self.request(request, None if exc.is_confirmed else use_id)

    def abandon(self, exchange: RequestExchange, request: Request) -> None:
        assert isinstance(exchange, LinkExchange)
        exchange.route[0].abandon(exchange)

    # -- Transport ----------------------------------------------------------------------------------------------------

    async def request(self, request: Request, use_id: str | None = None) -> Json:
        """Send a request to the server's owner node and return the result, waiting for an owner if needed.

        `use_id` comes from an earlier attempt, which may have arrived: a node accepts each id only once.
        """
        info: ForwardingInfo | None = request.call_state.forwarding_info
        if info is None and is_catalog_request(request):
            return await self._answer_from_catalog(request)
        if info is not None and info.is_forwarded:
            raise TransportError(f"{self._server} is not owned by this node", Certainty.NOT_SENT, code=WRONG_NODE)
        loop = asyncio.get_running_loop()
        limit = loop.time() + OWNER_TIMEOUT_S
        instance = self._select_instance((info or self._default_info).caller)
        latest_send = info.deadline - OWNER_HEAD_START_S if info is not None and info.deadline else math.inf
        waited = False
        use_id = use_id or new_use_id()
        while True:
            reason: str
            ownership = self._context.owner_cache.get(instance) or await self._context.owner_cache.lookup(instance)
            node = self._context.get_node(ownership.node) if ownership is not None else None
            if self._stopped or self._context.owns(self._server):
                raise moved_error(self._server)  # this node owns it now
            if ownership is not None and ownership.node == self._context.id:
                self._context.owner_cache.invalidate(ownership)  # this node owned it until now
                reason = "its ownership is being handed over"
            elif ownership is None or node is None:
                reason = "no node owns it"
                if ownership is not None:  # its node is gone; the next owner may not have announced itself
                    self._context.owner_cache.invalidate(ownership)
            elif waited and loop.time() > latest_send:
                reason = "the call deadline is too close"
            else:
                try:
                    return await self._send(
                        ownership, node, request, use_id, LATE_HEAD_START_DIVISOR if waited else HEAD_START_DIVISOR
                    )
                except _OwnerUnavailable as exc:
                    reason = exc.reason
                    if exc.is_confirmed:
                        use_id = new_use_id()
                    self._context.owner_cache.invalidate(ownership)
            if loop.time() >= limit:
                raise TransportError(
                    f"{self._server}: {reason}", Certainty.NOT_SENT, code="E-NO-OWNER", retry_after=1.0
                )
            waited = True
            request.call_state.phase = "start"
            log.debug("%s waits for %s: %s", request.method, self._server, reason)
            await asyncio.sleep(OWNER_LOOKUP_INTERVAL_S)

    async def _answer_from_catalog(self, request: Request) -> Json:
        """Answer a list or discovery request from the shared catalog.

        Waits until the owner has started the server; raises `TransportError` after `OWNER_TIMEOUT_S`. The owner itself
        is not asked: its reply during the start may be incomplete, and would be kept.
        """
        loop = asyncio.get_running_loop()
        limit = loop.time() + OWNER_TIMEOUT_S
        while (result := answer_catalog_request(self._context.shared_catalog, self._server, request)) is None:
            if self._stopped:
                raise moved_error(self._server)
            if loop.time() >= limit:
                raise TransportError(
                    f"{self._server} is not started yet by its owner", Certainty.NOT_SENT, code="E-NO-OWNER"
                )
            await asyncio.sleep(OWNER_LOOKUP_INTERVAL_S)
        return result

    def stop(self) -> None:
        """Send no more requests, because another transport replaces this one."""
        self._stopped = True

    def _select_instance(self, caller: str) -> ServerInstance:
        """Return the server instance for a caller: always the same one, because it may hold state.

        Requests without a caller rotate through the instances.
        """
        if len(self._instances) == 1:
            return self._instances[0]
        if caller:
            number = int.from_bytes(blake2b(caller.encode(), digest_size=4).digest(), "big")
        else:
            self._next_number = number = self._next_number + 1
        return self._instances[number % len(self._instances)]

    async def _send(
        self, ownership: Ownership, node: NodeStatus, request: Request, use_id: str, head_start_divisor: int
    ) -> Json:
        """Send a request to the owner node and return the result.

        Raises `_OwnerUnavailable` if the owner has not executed it and will not.
        """
        context = self._context
        info = request.call_state.forwarding_info or self._default_info
        params = with_timeout(request.params, info, head_start_divisor)
        if not node.info.address:
            return await self._explain(self._send_over_nats(node, ownership, request, params, info, use_id), request)
        peer = context.peers.get(ownership.node, node.info.address)
        if reason := peer.unavailable_reason:
            raise _OwnerUnavailable(reason)
        sending = self._send_to_peer(peer, ownership, request, params, info, use_id)
        return await self._explain(peer.run_while_alive(sending), request)

    async def _explain(self, work: Awaitable[Json], request: Request) -> Json:
        """Wait for the result of a request that was sent to the owner node, and convert errors for the caller.

        Raises `_OwnerUnavailable` if the owner has not executed it and will not.
        """
        attempt = request.call_state
        try:
            return await work
        except PeerTimeout:
            raise _owner_lost_error(attempt.certainty, "its owner stopped responding") from None
        except TransportError as exc:
            if exc.certainty is Certainty.NOT_SENT and exc.code != SEND_TOO_LATE:
                attempt.certainty = Certainty.NOT_SENT
                raise _OwnerUnavailable(f"its owner is unreachable: {exc.reason}") from None
            if exc.certainty is Certainty.UNKNOWN:
                raise _owner_lost_error(Certainty.UNKNOWN, f"connection to its owner lost: {exc.reason}") from None
            raise
        except JSONRPCError as exc:
            if exc.code in NOT_STARTED_CODES or is_ownership_lost(exc):
                attempt.certainty = Certainty.NOT_SENT
                raise _OwnerUnavailable(exc.message, is_confirmed=True) from None
            error = decode_error(exc, self._server, str(request.params.get("name", "")))
            if error is None:
                raise
            attempt.certainty = error.certainty or Certainty.NOT_SENT
            raise TransportError(exc.message, attempt.certainty, call_error=error) from None

    async def _send_over_nats(
        self, node: NodeStatus, ownership: Ownership, request: Request, params: Json, info: ForwardingInfo, use_id: str
    ) -> Json:
        key, context = (ownership.node, node.epoch), self._context
        transport = self._node_transports.get(key) or await self._open_once(key, context.nats_transport(node))
        token = token_for_call(info, ownership, context.id, use_id)
        return await transport.request(forwarded_request(request, params, token, context.sealer))

    async def _send_to_peer(
        self,
        peer: Peer,
        ownership: Ownership,
        request: Request,
        params: Json,
        info: ForwardingInfo,
        use_id: str,
    ) -> Json:
        """Send a request on the link to a node, or as a POST if the node does not support links."""
        request.call_state.mark_connecting()
        link = await peer.get_link()
        if link is None:
            token = token_for_call(info, ownership, self._context.id, use_id)
            transport = self._node_transports.get(peer) or await self._open_once(peer, self._http_transport(peer))
            return await transport.request(forwarded_request(request, params, token, self._context.sealer))
        head = link_head(ownership, info.principal, info.caller, info.principal_name, info.endpoint)
        ticket = new_ticket(info.call_id, use_id, info.idempotency_key, info.request_id, info.approved_by)
        sent = Request(request.method, params, request.call_state)
        return await link.wait(link.start(encode_call(head, ticket), sent, self._inbound, None))

    async def _open_once(self, key: object, transport: Transport) -> Transport:
        """Return the open transport to the node `key`; if there is none yet, open `transport` and use it.

        It stays open until this `RemoteTransport` closes or too many nodes are in use.
        """
        async with self._open_lock:
            found = self._node_transports.get(key)
            if found is None:
                await transport.open(self._inbound)
                transport.set_protocol("modern", "")
                found = self._node_transports[key] = transport
                if len(self._node_transports) > MAX_NODE_TRANSPORTS:
                    await self._node_transports.pop(next(iter(self._node_transports))).close()
        return found

    def _http_transport(self, peer: Peer) -> Transport:
        return NodeHttpTransport(peer.server_config(), client=peer.client)

    def info(self) -> TransportInfo:
        return TransportInfo(peer_is_modern=True)

    async def close(self) -> None:
        transports, self._node_transports = self._node_transports, {}
        await asyncio.gather(*(transport.close() for transport in transports.values()), return_exceptions=True)


class _OwnerUnavailable(Exception):
    """Raised when the owner node executed nothing: the request then waits for the next owner.

    `is_confirmed` means that the owner itself said so, sealed. Otherwise a network error suggests it, which may be
    wrong, so the next attempt has the same `use_id`. A node accepts each id only once, so it never runs the call
    twice.
    """

    def __init__(self, reason: str, *, is_confirmed: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_confirmed = is_confirmed


def _owner_lost_error(certainty: Certainty, reason: str) -> Exception:
    """Return the error for a request whose owner node was lost.

    It is `_OwnerUnavailable` if nothing was sent, otherwise an error with an unknown outcome.
    """
    if certainty is Certainty.NOT_SENT:
        return _OwnerUnavailable(reason)
    return TransportError(
        reason, Certainty.UNKNOWN, code="E-OWNER-LOST", hint="check whether the call took effect before you retry"
    )


# -- context of a forwarded call --------------------------------------------------------------------------------------


class ForwardingInfo(msgspec.Struct, frozen=True, gc=False):
    """What a call's owner node needs: principal, caller, call id and deadline.

    Empty for requests that the node makes for itself.
    """

    principal: str
    principal_name: str
    caller: str
    endpoint: str
    call_id: str
    idempotency_key: str | None
    deadline: float  # on the loop's clock; 0 = none
    is_forwarded: bool = False  # received from another node
    request_id: str = ""  # `X-Request-ID` that the client sent
    approved_by: str = ""  # who approved the call at this node


NO_FORWARDING_INFO: Final = ForwardingInfo("", "", "", "", "", None, 0.0)


def forwarding_info_for(call: Call) -> ForwardingInfo:
    """Return the data that must be sent along if this call is forwarded to another node."""
    context: Any = call.downstream
    if context is None:
        return ForwardingInfo("", "", call.caller, "", call.id, call.idempotency_key, call.deadline)
    principal = context.principal
    is_forwarded = context.forwarded is not None
    return ForwardingInfo(
        principal.id,
        principal.name,
        call.caller,
        context.endpoint,
        call.id,
        call.idempotency_key,
        call.deadline,
        is_forwarded,
        call.state.request_id,
        call.state.approved_by,
    )


def token_for_call(info: ForwardingInfo, ownership: Ownership, sender: str, use_id: str) -> CallToken:
    """Return a call token's content (with a new key) for a call to a server instance's owner."""
    instance = ownership.instance
    return CallToken(
        ownership.node,
        instance.tenant,
        instance.server,
        instance.index,
        ownership.fence,
        info.principal,
        info.caller,
        info.call_id,
        info.idempotency_key,
        sender,
        info.principal_name,
        info.endpoint,
        info.request_id,
        new_call_key(),
        use_id,
        info.approved_by,
    )


def with_timeout(params: Json, info: ForwardingInfo, head_start_divisor: int = HEAD_START_DIVISOR) -> Json:
    """Return request parameters for the owner node, with the remaining time added if the call has a deadline."""
    if not info.deadline:
        return params
    remaining = info.deadline - asyncio.get_running_loop().time()
    # The node closer to the server knows the outcome better.
    remaining -= min(OWNER_HEAD_START_S, remaining / head_start_divisor)
    return {**params, "_meta": {**(params.get("_meta") or {}), TIMEOUT_META_KEY: max(1, round(remaining * 1000))}}


def _add_timeout(meta: msgspec.Raw | Json, milliseconds: int) -> msgspec.Raw | Json:
    """Return the `_meta` of a request with the milliseconds added that the owner node has for the call."""
    if isinstance(meta, dict):
        return {**meta, TIMEOUT_META_KEY: milliseconds}
    return msgspec.Raw(b'{"%b":%d,%b' % (TIMEOUT_META_KEY.encode(), milliseconds, bytes(meta)[1:]))


def forwarded_request(request: Request, params: Json, token: CallToken, sealer: CallTokenSealer) -> ForwardedRequest:
    """Return a request for a transport to another node, with call token and cipher."""
    return ForwardedRequest(
        request.method,
        params,
        request.call_state,
        request.version,
        None,
        request.new_connection,
        request.silent_cancel,
        call_token=issue_call_token(sealer, token),
        cipher=CallCipher(bytes.fromhex(token.key)),
    )


# -- errors of an owner node ------------------------------------------------------------------------------------------


def is_ownership_lost(exc: JSONRPCError) -> bool:
    """Return True if this error says that the node lost the server before the call started."""
    data = exc.data if isinstance(exc.data, dict) else {}
    return data.get("code") in (SERVER_MOVED, WRONG_NODE) and data.get("executed") == "no"


def decode_error(exc: JSONRPCError, server: str, name: str) -> CallError | None:
    """Return the exception for another node's error reply, equal to the one raised there.

    Return None if the reply is an error of the MCP server, which the caller of this function passes to the client
    unchanged.
    """
    error_type = _ERROR_TYPES.get(exc.code)
    data = exc.data if isinstance(exc.data, dict) else {}
    if exc.code == INVALID_PARAMS and ERROR_DATA_KEY not in data:  # the server's own errors have that key
        return decode_invalid_arguments(data, server, name)
    if error_type is None or "executed" not in data:
        return None
    code, hint = str(data.get("code") or ""), str(data.get("fix") or "")
    error = error_type(
        exc.message.removesuffix(f" [{code}]").removesuffix(f" → {hint}"),  # the new error appends them again
        server=server,
        tool=name,
        certainty=_parse_certainty(data.get("certainty")),
        attempts=1,
        retry_after=_to_seconds(data.get("retryAfterMs")),
        hint=hint,
        code=code,
    )
    is_open = error_type is OutcomeUnknown or (error_type is ProtocolError and error.certainty is Certainty.UNKNOWN)
    error.retryable = data.get("retryable") is True or is_open
    return error


def _parse_certainty(code: Any) -> Certainty:
    """Return the certainty for its code in a message; UNKNOWN for an unknown code."""
    found = Certainty.from_code(code)
    return Certainty.UNKNOWN if found is None else found


def _to_seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds >= 0 else None
