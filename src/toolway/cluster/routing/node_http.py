"""HTTP between nodes: sealed requests to `/node`, sealed responses, and node proofs.

Every request is a POST with a call token and a sealed JSON-RPC request (`call_cipher.py`). The response is one sealed
message, or a stream of events whose data are sealed messages in base64. So even plain HTTP does not reveal what is
called, and nobody can change it. TLS also hides which node calls how much.

An unsealed response proves nothing, whatever its status: anyone on the network may have sent it. The outcome is then
unknown. A process that is not the node never gets that far, because it cannot prove itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from toolway.cluster.node_auth import CallToken, CallTokenVerifier, NodeProofs
from toolway.cluster.routing.call_cipher import CallCipher, ForwardedRequest, join_request
from toolway.gateway.authenticator import json_error
from toolway.gateway.mcp.context import Notify
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.responses import ResponseWriter, RpcResult, encode_event
from toolway.gateway.router import NODE_PATH, NODE_PROOF_PATH
from toolway.http.client import HttpClient, HttpError, HttpResponse, HttpTarget, encode_headers
from toolway.http.client_connection import ClientConnection
from toolway.http.exchange import Exchange, Headers
from toolway.protocol import jsonrpc
from toolway.protocol.constants import INVALID_REQUEST
from toolway.types import Certainty, Json
from toolway.upstream.transport import InboundHandler, Request, TransportError
from toolway.upstream.transports import http_responses
from toolway.upstream.transports.pending_requests import parse_large
from toolway.upstream.transports.sse_parser import SSEEvent
from toolway.upstream.transports.streamable_http import (
    NEW_CONNECTION_MAX_IDLE_S,
    StreamableHttpTransport,
)

UNIX_PREFIX: Final = "unix:"  # address prefix of a node that listens on a Unix socket
SEALED_TYPE: Final = "application/octet-stream"
_SEALED_HEADERS: Final = (("content-type", SEALED_TYPE),)
_REQUEST_HEADERS: Final = {"Content-Type": SEALED_TYPE, "Accept": "*/*", "Accept-Encoding": "identity"}
_MAX_PROOF_BYTES: Final = 4096
_UNSEALED_REASON: Final = "the response is not sealed with the key of the call"

#: Executes the call that a token allows, and returns its result. Raises `RpcFailure`.
CallHandler = Callable[[CallToken, jsonrpc.Message, Notify], Awaitable[RpcResult]]


# -- calling node -----------------------------------------------------------------------------------------------------


class NodeHttpTransport(StreamableHttpTransport):
    """Transport over HTTP to another node: one POST per request, sealed in both directions.

    Its requests are `ForwardedRequest`s. Responses that are not sealed with the key of the call are not accepted.
    """

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        assert self._server.url is not None
        self._target = HttpTarget.parse(self._server.url)
        lines = encode_headers({**_REQUEST_HEADERS, **self._server.headers})
        self._head = self._client.prepare("POST", self._target, (lines,))
        self._lines = lines

    async def request(self, request: Request) -> Json:
        assert isinstance(request, ForwardedRequest) and request.cipher is not None
        self._last_id = id_ = self._last_id + 1
        call_state = request.call_state
        call_state.phase = "send"
        call_state.raw_bytes = None
        call_state.jsonrpc_id = id_
        try:
            message = jsonrpc.encode_request(id_, request.method, request.params)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise TransportError(
                f"the request cannot be encoded: {exc}", Certainty.NOT_SENT, code="E-REQUEST"
            ) from None
        return await self._post_sealed(
            join_request(request.call_token, request.cipher.seal_request(message)),
            partial(self._read_sealed, id_, request, request.cipher),
            request,
        )

    async def _post_sealed(
        self, body: bytes, handle_response: Callable[[HttpResponse], Awaitable[Json]], request: Request
    ) -> Json:
        state = request.call_state
        max_idle = NEW_CONNECTION_MAX_IDLE_S if request.new_connection else None
        self._messages_sent += 1
        try:
            response = self._client.send_prepared(
                self._head, self._target, body, max_idle=max_idle, on_sent=state.mark_sent
            )
            http_responses.watch_send(response, state)
            await response.send_and_wait()
            try:
                return await handle_response(response)
            finally:
                response.abandon()
        except HttpError as error:
            raise http_responses.error_from_http(error) from None

    async def _read_sealed(self, id_: int, request: Request, cipher: CallCipher, response: HttpResponse) -> Json:
        status, kind = response.status, http_responses.media_type(response.headers)
        if status == HTTPStatus.OK and kind == "text/event-stream":
            message = await self._read_event_response(response, id_, request)
        elif status == HTTPStatus.OK and kind == SEALED_TYPE:
            limit = self.max_message_bytes
            frame = cipher.open_reply(response.take_complete(limit) or await response.read(limit))
            if frame is None:
                raise TransportError(_UNSEALED_REASON, Certainty.UNKNOWN, code="E-ANSWER")
            try:
                message = (
                    await parse_large(frame, request.method)
                    if jsonrpc.is_large(frame)
                    else jsonrpc.parse_message(frame)
                )
            except jsonrpc.InvalidMessage as bad:
                raise http_responses.error_for_bad_message(bad) from None
            self.messages_received += 1
            if request.call_state.keep_raw and message.is_bare_result:
                request.call_state.raw_bytes = jsonrpc.slice_result(frame, id_)
        else:
            raise TransportError(f"{_UNSEALED_REASON} (status {status})", Certainty.UNKNOWN, code="E-ANSWER")
        return http_responses.extract_result(message, id_, status)

    async def _dispatch_event(
        self, event: SSEEvent, id_: int | None, request: Request | None
    ) -> jsonrpc.Message | None:
        """Deliver the sealed message in `event`; an event that cannot be opened is ignored."""
        assert isinstance(request, ForwardedRequest) and request.cipher is not None
        try:
            frame = request.cipher.open_reply(base64.b64decode(event.data, validate=True))
        except binascii.Error:
            frame = None
        if frame is None:
            self._invalid_messages += 1
            return None
        return await super()._dispatch_event(event._replace(data=frame), id_, request)


def split_address(address: str) -> tuple[str, str]:
    """Return the base URL for requests to a node with this address, and its Unix socket, or "" if it has none."""
    if address.startswith(UNIX_PREFIX):
        return "http://localhost", address.removeprefix(UNIX_PREFIX)
    return address, ""


class NodeProofFailed(HttpError):
    """Raised when the process at a node's address cannot prove that it is that node."""


async def check_node(
    client: HttpClient,
    connection: ClientConnection,
    address: str,
    proofs: NodeProofs,
    node: str,
    epoch: int,
) -> None:
    """Make the node at the other end of a new connection prove itself.

    Raises `NodeProofFailed` if it does not prove to be this node, at this address.
    """
    challenge, nonce = proofs.challenge(node)
    target = HttpTarget.parse(f"{split_address(address)[0]}{NODE_PROOF_PATH}?{challenge}")
    response = client.send("GET", target, (encode_headers({"Accept-Encoding": "identity"}),))
    await response.send_and_wait(connection)
    try:
        proof = await response.read(_MAX_PROOF_BYTES)
    finally:
        response.abandon()
    text = proof.decode("ascii", "replace")
    if response.status != HTTPStatus.OK or not proofs.is_valid(text, node, epoch, address, nonce):
        raise NodeProofFailed(f"another process responds at the address of node {node}", code="E-HTTP-CONTENT")


# -- called node ------------------------------------------------------------------------------------------------------


class NodeEndpoint:
    """HTTP endpoint for the requests of other nodes. `handler` executes an opened call."""

    def __init__(self, verifier: CallTokenVerifier, handler: CallHandler) -> None:
        self._verifier = verifier
        self._handler = handler

    async def handle(self, exchange: Exchange, refusal: RpcFailure | None) -> None:
        """Decrypt, execute and answer another node's request, or answer with `refusal` if given."""
        request = exchange.request
        if request.path != NODE_PATH or request.method != "POST":
            exchange.reply(*json_error(403, "nodes may only forward calls"))
            return
        call = self._verifier.open_call(request.body)
        if call is None:
            exchange.reply(*json_error(403, "no call token for this node"))
            return
        exchange.request_id = ""  # equal response heads are cheap; the call token carries the id
        response = SealedResponse(exchange, call.cipher)
        try:
            call.check()
            message = await parse_request(call.request)
            response.id = message.id
            if refusal is not None:
                raise refusal
            response.send_result(await self._handler(call.token, message, response.notify))
        except RpcFailure as failure:
            response.send_error(failure)
        finally:
            response.stop_keepalive()


class SealedResponse(ResponseWriter):
    """HTTP response to another node: every message in it is sealed with the key of the call."""

    def __init__(self, exchange: Exchange, cipher: CallCipher) -> None:
        super().__init__(exchange, None)
        self._cipher = cipher

    def send(self, message: bytes) -> None:
        self.write(self._encode(message))

    def _encode(self, message: bytes) -> bytes:
        return encode_event(base64.b64encode(self._cipher.seal_reply(message)))

    def _send_final(self, status: int, message: bytes, headers: Headers) -> None:
        exchange = self._exchange
        if exchange.completed or exchange.disconnected:
            return
        if exchange.opened:
            exchange.write(self._encode(message))
            exchange.end()
        else:
            exchange.reply(200, self._cipher.seal_reply(message), _SEALED_HEADERS)


async def parse_request(data: bytes) -> jsonrpc.Message:
    """Parse an opened request. Raises `RpcFailure` if it is not a JSON-RPC request."""
    try:
        message = await parse_large(data, "") if jsonrpc.is_large(data) else jsonrpc.parse_message(data)
    except jsonrpc.InvalidMessage as bad:
        raise RpcFailure(INVALID_REQUEST, f"invalid request: {bad.reason}", {"executed": "no"}) from None
    if message.kind != "request":
        raise RpcFailure(INVALID_REQUEST, "a node must send a request", {"executed": "no"})
    return message
