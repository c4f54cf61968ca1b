"""Calls between nodes on a link (`link.py`): what they consist of, how they are sent and run.

A call has three parts: `LinkCallHead`, the same for many calls, so the called node decodes it only once;
`LinkCallTicket`, for one call, accepted once and for seconds; and the JSON-RPC request. Head and ticket together
are what a call token says (`node_auth.py`).

An older node, or a proxy that blocks the upgrade, does not support links. Calls are then POSTs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from struct import Struct
from typing import Final

import msgspec

from toolway.cluster.db.instances import Ownership
from toolway.cluster.node_auth import (
    CALL_TOKEN_LIFETIME_S,
    CallToken,
    CallTokenVerifier,
    NodeProofs,
    rejection_error,
)
from toolway.cluster.routing.link import MAX_CALLS, CalledLink
from toolway.cluster.routing.link_frames import LinkKeys
from toolway.cluster.routing.node_http import CallHandler, parse_request
from toolway.gateway.mcp.errors import OUTCOME_UNKNOWN, OVERLOADED, RpcFailure
from toolway.gateway.mcp.flights import NodeCall, NodeFlight
from toolway.gateway.mcp.responses import RpcResult, encode_error
from toolway.gateway.router import MAX_LIGHT_BYTES, NODE_LINK_PATH, NODE_LINK_PROTOCOL
from toolway.http.request import HttpTarget
from toolway.protocol import jsonrpc
from toolway.protocol.constants import INVALID_REQUEST
from toolway.types import Json

MAX_LINKS: Final = 1024  # open links of other nodes
MAX_UNPROVED_LINKS: Final = 64  # of which the caller has not proved itself yet
MAX_HEADS: Final = 10_000  # of calls that are remembered
_LENGTHS: Final = Struct(">HH")

log = logging.getLogger("toolway.cluster")


class LinkCallHead(msgspec.Struct, frozen=True, array_like=True):
    """Part of a call that is the same for many calls: server, fence (ownership number), principal, endpoint.

    New fields are only added at the end, with a default: nodes of two versions work side by side.
    """

    tenant: str
    server: str
    index: int
    fence: int
    principal: str
    caller_id: str
    principal_name: str
    endpoint: str


class LinkCallTicket(msgspec.Struct, frozen=True, array_like=True):
    """Part of a call between nodes that is valid for this call only, accepted once and for seconds.

    New fields are only added at the end, with a default.
    """

    call_id: str
    use_id: str  # accepted once
    expires: float  # wall time until which the call may begin
    idempotency_key: str | None = None
    request_id: str = ""
    approved_by: str = ""


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(LinkCallHead)
_ticket_decoder = msgspec.msgpack.Decoder(LinkCallTicket)


def encode_call(head: LinkCallHead, ticket: LinkCallTicket) -> bytes:
    """Encode what precedes a call's JSON-RPC request: its head (shared) and ticket (one-time)."""
    first, second = _encoder.encode(head), _encoder.encode(ticket)
    return _LENGTHS.pack(len(first), len(second)) + first + second


def new_ticket(
    call_id: str, use_id: str, idempotency_key: str | None, request_id: str, approved_by: str = ""
) -> LinkCallTicket:
    """Return the ticket (the one-time part of a link message) for a call that is sent now."""
    expires = time.time() + CALL_TOKEN_LIFETIME_S
    return LinkCallTicket(call_id, use_id, expires, idempotency_key, request_id, approved_by)


def switch_request(address: str) -> bytes:
    """Return the HTTP upgrade request that turns a connection to a node into a link."""
    target = HttpTarget.parse(f"{address}{NODE_LINK_PATH}")
    return (
        f"GET {target.path} HTTP/1.1\r\nHost: {target.origin.authority}\r\n"
        f"Connection: Upgrade\r\nUpgrade: {NODE_LINK_PROTOCOL}\r\n\r\n"
    ).encode()


class CallerIdentity:
    """This node's identity on a link, and the node that it expects there (`LinkIdentity`)."""

    def __init__(self, proofs: NodeProofs, node: str, epoch: int, address: str) -> None:
        self._proofs = proofs
        self._node = node
        self._epoch = epoch
        self._address = address
        self._random = b""

    def hello(self) -> bytes:
        hello, self._random = self._proofs.hello(self._node)
        return hello

    def accept_welcome(self, welcome: bytes) -> LinkKeys | None:
        return self._proofs.keys_from_welcome(welcome, self._node, self._epoch, self._address, self._random)


# -- called node ------------------------------------------------------------------------------------------------------


class LinkServer:
    """All links that other nodes opened to this one, and their calls; a `LinkHandler`.

    `handler` executes a call; `begin_flight` does so without a coroutine, or returns None. `refusal(overloaded)`
    returns the reason to execute nothing now, or None.
    """

    def __init__(
        self,
        node: str,
        proofs: NodeProofs,
        verifier: CallTokenVerifier,
        handler: CallHandler,
        refusal: Callable[[bool], RpcFailure | None],
        begin_flight: Callable[[CallToken, jsonrpc.Message, NodeCall], NodeFlight | None],
    ) -> None:
        self._node = node
        self._proofs = proofs
        self._verifier = verifier
        self._handler = handler
        self._refusal = refusal
        self._begin_flight = begin_flight
        self._links: set[CalledLink] = set()
        self._heads: dict[bytes, LinkCallHead] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_going = False

    def accept(self) -> CalledLink | None:
        """Return the protocol object of a new link from another node, or None if there are too many, or at shutdown."""
        unproved = sum(not link.is_authenticated for link in self._links)
        if self._is_going or len(self._links) >= MAX_LINKS or unproved >= MAX_UNPROVED_LINKS:
            return None
        link = CalledLink(self)
        self._links.add(link)
        return link

    def __len__(self) -> int:
        """Return the number of calls of other nodes that are being executed."""
        return sum(len(link.calls) for link in self._links)

    # -- LinkHandler --------------------------------------------------------------------------------------------------

    def welcome(self, hello: bytes) -> tuple[bytes, LinkKeys, str] | None:
        return self._proofs.welcome(hello)

    def on_call(self, link: CalledLink, number: int, content: memoryview) -> None:
        try:
            token, expires, request = self._open(link, content)
        except (msgspec.DecodeError, ValueError):
            failure = RpcFailure(INVALID_REQUEST, "malformed call", {"executed": "no"})
            link.reply(number, _encode_failure(number, failure))
            return
        rejection = self._verifier.check_link_call(token, expires)
        refusal = rejection_error(rejection) if rejection is not None else self._refusal(len(link.calls) >= MAX_CALLS)
        if refusal is not None:
            link.reply(number, _encode_failure(number, refusal))
            return
        call = LinkCall(self, link, number)
        link.calls[number] = call
        try:
            self._execute(call, token, request)
        except RpcFailure as failure:
            call.reply(_encode_failure(number, failure))
        except Exception:
            log.exception("forwarded call failed")
            call.reply(_encode_failure(number, _INTERNAL_FAILURE))

    def _execute(self, call: LinkCall, token: CallToken, request: bytes) -> None:
        """Start executing a call: by callbacks if it is ordinary, else in a task."""
        if len(request) > MAX_LIGHT_BYTES:
            call.run(self._handle_large(token, request, call))
            return
        message = _parse_light(request, call.number)
        call.flight = self._begin_flight(token, message, call)
        if call.flight is None:
            call.run(self._handler(token, message, call.notify))

    def _open(self, link: CalledLink, content: memoryview) -> tuple[CallToken, float, bytes]:
        """Return the token, expiry and request of a received call. Raises `ValueError` if the call is malformed."""
        if len(content) < _LENGTHS.size:
            raise ValueError("a call without head")
        first, second = _LENGTHS.unpack_from(content)
        start, end = _LENGTHS.size + first, _LENGTHS.size + first + second
        encoded = bytes(content[_LENGTHS.size : start])
        head = self._heads.get(encoded)
        if head is None:
            head = _head_decoder.decode(encoded)
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[encoded] = head
        ticket = _ticket_decoder.decode(content[start:end])
        token = CallToken(
            self._node,
            head.tenant,
            head.server,
            head.index,
            head.fence,
            head.principal,
            head.caller_id,
            ticket.call_id,
            ticket.idempotency_key,
            link.node,
            head.principal_name,
            head.endpoint,
            ticket.request_id,
            "",
            ticket.use_id,
            ticket.approved_by,
        )
        return token, ticket.expires, bytes(content[end:])

    async def _handle_large(self, token: CallToken, request: bytes, call: LinkCall) -> RpcResult:
        message = await parse_request(request)
        _check_id(message, call.number)
        return await self._handler(token, message, call.notify)

    def on_ended(self, task: asyncio.Task[None] | None) -> None:
        """Record that a call, or the `task` that ran it, ended. A shutdown waits for these."""
        if task is not None:
            self._tasks.discard(task)
        if self._is_going:
            self._changed.set()

    def on_task(self, task: asyncio.Task[None]) -> None:
        """Record the task that executes a call, so a shutdown waits for it."""
        self._tasks.add(task)

    def on_cancel(self, link: CalledLink, number: int) -> None:
        call = link.calls.pop(number, None)
        if isinstance(call, LinkCall):
            call.cancel()
            self.on_ended(None)

    def on_too_large(self, link: CalledLink, number: int) -> None:
        failure = RpcFailure(OVERLOADED, "the request is too large for the node", {"executed": "no", "certainty": "C0"})
        link.reply(number, _encode_failure(number, failure))

    def on_lost(self, link: CalledLink) -> None:
        self._links.discard(link)
        calls, link.calls = link.calls, {}
        for call in calls.values():
            if isinstance(call, LinkCall):
                call.cancel()
        self._changed.set()

    # -- shutdown -----------------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Accept no new links, and ask callers to send no new calls. Calls that still arrive are rejected."""
        self._is_going = True
        for link in list(self._links):
            link.announce_going()

    async def wait_idle(self) -> None:
        """Wait, without a time limit, until no call is being executed."""
        while self._tasks or len(self):
            self._changed.clear()
            await self._changed.wait()

    async def cancel_all(self, timeout: float = 1.0) -> None:
        """Cancel all calls; wait for their replies, at most `timeout` seconds."""
        for link in self._links:
            for call in list(link.calls.values()):
                if isinstance(call, LinkCall):
                    call.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout)

    async def close(self, timeout: float = 5.0) -> None:
        """Wait at most `timeout` seconds for callers to close their links; then close them."""
        self.stop_accepting()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while self._links and (left := until - loop.time()) > 0:
            self._changed.clear()
            waiting = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait({waiting}, timeout=left)
            waiting.cancel()
        for link in list(self._links):
            link.abort("this node shuts down")


class LinkCall:
    """One call from another node that is being executed, by callbacks (a flight) or in a task."""

    __slots__ = ("_link", "_server", "_task", "flight", "number")

    def __init__(self, server: LinkServer, link: CalledLink, number: int) -> None:
        self._server = server
        self._link = link
        self.number = number
        self._task: asyncio.Task[None] | None = None
        self.flight: NodeFlight | None = None

    def reply(self, message: bytes) -> None:
        """Send the JSON-RPC response, unless the caller no longer waits."""
        if self._link.calls.pop(self.number, None) is not None:
            self._link.reply(self.number, message)
            self._server.on_ended(None)

    def notify(self, method: str, params: Json) -> None:
        """Send the calling node a notification that belongs to the call."""
        if self.number in self._link.calls:
            self._link.notify(self.number, jsonrpc.encode_notification(method, params))

    def run(self, work: Awaitable[RpcResult]) -> asyncio.Task[None]:
        """Start a task that awaits `work`, and sends its result or error to the calling node. Return the task."""
        self._task = task = asyncio.get_running_loop().create_task(self._run(work))
        self._server.on_task(task)
        task.add_done_callback(self._on_done)
        if isinstance(work, Coroutine):
            task.add_done_callback(lambda _: work.close())  # of a task that was cancelled before it began
        return task

    async def _run(self, work: Awaitable[RpcResult]) -> None:
        try:
            reply = jsonrpc.encode_result(self.number, await work)
        except RpcFailure as failure:
            reply = _encode_failure(self.number, failure)
        except Exception:
            log.exception("forwarded call failed")
            reply = _encode_failure(self.number, _INTERNAL_FAILURE)
        self.reply(reply)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.reply(_encode_failure(self.number, _INTERNAL_FAILURE))
        self._server.on_ended(task)

    def cancel(self) -> None:
        """Stop the call, and cancel at the server what was sent."""
        if self._task is not None:
            self._task.cancel()
        elif self.flight is not None:
            self.flight.left()


def _parse_light(request: bytes, number: int) -> jsonrpc.Message:
    """Parse another node's small JSON-RPC request, in the event loop instead of a thread.

    Raises `RpcFailure` if it is not a JSON-RPC request whose id is `number`, the number of the call on its link.
    """
    try:
        message = jsonrpc.parse_message(request)
    except jsonrpc.InvalidMessage as bad:
        raise RpcFailure(INVALID_REQUEST, f"invalid request: {bad.reason}", {"executed": "no"}) from None
    _check_id(message, number)
    return message


def _check_id(message: jsonrpc.Message, number: int) -> None:
    if message.kind != "request" or message.id != number:
        raise RpcFailure(INVALID_REQUEST, "a node must send a request with its number", {"executed": "no"})


_INTERNAL_FAILURE: Final = RpcFailure(
    OUTCOME_UNKNOWN,
    "the call ended without a result at its owner",
    {"executed": "unknown", "certainty": "C2", "retryable": False, "attempts": 1},
)


def _encode_failure(number: int, failure: RpcFailure) -> bytes:
    return encode_error(number, failure.code, failure.message, failure.data)


def link_head(ownership: Ownership, principal: str, caller: str, principal_name: str, endpoint: str) -> LinkCallHead:
    """Return the head of a link message: what a principal's calls to a server instance share."""
    instance = ownership.instance
    return LinkCallHead(
        instance.tenant,
        instance.server,
        instance.index,
        ownership.fence,
        principal,
        caller,
        principal_name,
        endpoint,
    )
