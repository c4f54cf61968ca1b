"""Adapts results to a client's era, and sends them in an HTTP response: JSON or server-sent events.

The first message sent decides the form of the response: a result becomes a JSON document, and a notification opens a
stream. A long silence also opens the stream, so no proxy on the way to the client takes the connection for dead and
closes it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from toolway._version import __version__
from toolway.gateway.mcp.errors import RpcFailure
from toolway.http.exchange import EVENT_STREAM_TYPE, JSON_HEADERS, Exchange, Headers
from toolway.protocol import jsonrpc
from toolway.protocol.constants import SERVER_INFO_META_KEY
from toolway.types import Era, Json

SERVER_INFO: Final[Json] = {"name": "toolway", "version": __version__}
RpcResult = Json | jsonrpc.RawResult  # a server's unchanged result is forwarded as raw bytes
KEEPALIVE_INTERVAL_S: Final = 15.0  # seconds of silence
_EVENT_STREAM_HEADERS: Final = (
    ("content-type", EVENT_STREAM_TYPE),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),
)
_KEEPALIVE_COMMENT: Final = b": still here\n\n"


def encode_event(message: bytes) -> bytes:
    """Encode one JSON-RPC message as a server-sent event."""
    return b"event: message\ndata: " + message + b"\n\n"


class EventStream:
    """An HTTP response that is a stream of server-sent events, with keep-alive comments."""

    def __init__(self, exchange: Exchange, headers: Headers = ()) -> None:
        self._exchange = exchange
        self._headers = headers
        self._idle_since = 0.0  # first tick without a message since the last one; 0 = a message was just sent
        self._closed: asyncio.Event | None = None
        exchange.on_tick = self._send_keepalive

    @property
    def closed(self) -> asyncio.Event:
        """`asyncio.Event` that is set when the client or the gateway closes the stream.

        It is created on first use, because few streams are waited for.
        """
        if self._closed is None:
            self._closed = asyncio.Event()
        return self._closed

    @property
    def disconnected(self) -> bool:
        return self._exchange.disconnected

    def open(self) -> None:
        if not self._exchange.opened and not self._exchange.disconnected:
            self._exchange.open(200, (*_EVENT_STREAM_HEADERS, *self._headers))

    def send(self, message: bytes) -> None:
        self.write(encode_event(message))

    def write(self, data: bytes) -> None:
        self.open()
        self._idle_since = 0.0
        self._exchange.write(data)

    def close(self) -> None:
        self.stop_keepalive()
        self.closed.set()
        if self._exchange.opened:
            self._exchange.end()

    def close_on_disconnect(self) -> None:
        """Set `closed` if the client disconnects, instead of cancelling the task that serves the stream."""
        self._exchange.on_disconnect = self.closed.set

    def stop_keepalive(self) -> None:
        """Send no more keep-alive comments, because another component will end the response."""
        self._exchange.on_tick = None

    def _keepalive_data(self) -> bytes:
        return _KEEPALIVE_COMMENT

    def _send_keepalive(self, now: float) -> None:
        """Send a keep-alive comment after `KEEPALIVE_INTERVAL_S` without a message."""
        if self._exchange.disconnected or self._exchange.completed:
            return
        if not self._idle_since:
            self._idle_since = now
        elif now - self._idle_since >= KEEPALIVE_INTERVAL_S:
            self.write(self._keepalive_data())


class ResponseWriter(EventStream):
    """Writes the HTTP response to one JSON-RPC request: notifications, then the result."""

    def __init__(self, exchange: Exchange, id: jsonrpc.MessageId | None, headers: Headers = ()) -> None:
        super().__init__(exchange, headers)
        self.id = id

    def notify(self, method: str, params: Json) -> None:
        """Send a notification that belongs to the request; this turns the response into a stream."""
        if not self._exchange.completed:
            self.send(jsonrpc.encode_notification(method, params))

    def send_result(self, result: Json | jsonrpc.RawResult) -> None:
        assert self.id is not None
        self._send_final(200, jsonrpc.encode_result(self.id, result), ())

    def finish(self, message: bytes | None) -> None:
        """Send the encoded JSON-RPC response and end the HTTP response.

        None means that the client cancelled the request, so the HTTP response ends without a message.
        """
        if message is not None:
            self._send_final(200, message, ())
        elif self._exchange.opened:
            self.close()
        else:
            self._exchange.reply(202)

    def send_error(self, failure: RpcFailure) -> None:
        retry_after = failure.retry_after
        headers = (("retry-after", str(max(1, round(retry_after)))),) if retry_after is not None else ()
        self._send_final(failure.status, encode_error(self.id, failure.code, failure.message, failure.data), headers)

    def _send_final(self, status: int, message: bytes, headers: Headers) -> None:
        if self._exchange.completed or self._exchange.disconnected:
            return
        if self._exchange.opened:
            self._exchange.write(encode_event(message))
            self._exchange.end()
        else:
            self._exchange.reply(
                status, message, (*JSON_HEADERS, *self._headers, *headers) if headers or self._headers else JSON_HEADERS
            )


def encode_error(id: jsonrpc.MessageId | None, code: int, message: str, data: Any = None) -> bytes:
    """Encode a JSON-RPC error response. `id` is None if the id of the request could not be read."""
    body: Json = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return jsonrpc.encode_json({"jsonrpc": "2.0", "id": id, "error": body})


# -- results ----------------------------------------------------------------------------------------------------------

_MODERN_RESULT_KEYS: Final = frozenset({"resultType", "ttlMs", "cacheScope"})
_META_SUFFIX: Final = b',"_meta":' + jsonrpc.encode_json({SERVER_INFO_META_KEY: SERVER_INFO}) + b"}}"
_FIRST_RESULT_TYPE: Final = b'{"resultType":"complete",'
_LAST_RESULT_TYPE: Final = b',"resultType":"complete"}'
_RESULT_TYPE_AND_META_SUFFIX: Final = b',"resultType":"complete"' + _META_SUFFIX


def finalize_result(era: Era, result: Json) -> Json:
    """Return a result for a client of this era, adding or removing the fields that only modern clients know."""
    if era == "modern":
        if "resultType" not in result:
            result = {**result, "resultType": "complete"}
        meta = result.get("_meta")
        if not isinstance(meta, dict) or SERVER_INFO_META_KEY not in meta:
            result = {**result, "_meta": {**(meta or {}), SERVER_INFO_META_KEY: SERVER_INFO}}
        return result
    return {key: value for key, value in result.items() if key not in _MODERN_RESULT_KEYS}


def finalize_raw_result(era: Era, result: Json, encoded: bytes | memoryview) -> jsonrpc.RawResult | None:
    """Return a result's bytes for a client of this era by editing only their start or end.

    Return None if that is not enough; the caller must then re-encode the result.
    """
    if era == "legacy":
        if _MODERN_RESULT_KEYS.isdisjoint(result):
            return jsonrpc.RawResult(encoded, b"}")
        return _without_result_type(result, encoded)
    if "_meta" not in result and result:
        suffix = _META_SUFFIX if "resultType" in result else _RESULT_TYPE_AND_META_SUFFIX
        return jsonrpc.RawResult(encoded[:-1], suffix)
    has_server_info = isinstance(result.get("_meta"), dict) and SERVER_INFO_META_KEY in result["_meta"]
    return jsonrpc.RawResult(encoded, b"}") if has_server_info and "resultType" in result else None


def _without_result_type(result: Json, encoded: bytes | memoryview) -> jsonrpc.RawResult | None:
    """Return the bytes of a result without the key `resultType`, for a legacy client.

    Return None if it is neither the first nor the last key, or if another key must be removed too. The bytes are
    valid JSON without duplicate keys, so a match at the start or end can only be that key.
    """
    if "ttlMs" in result or "cacheScope" in result or len(result) < 2:
        return None
    if bytes(encoded[-len(_LAST_RESULT_TYPE) :]) == _LAST_RESULT_TYPE:
        return jsonrpc.RawResult(encoded[: -len(_LAST_RESULT_TYPE)], b"}}")
    if bytes(encoded[: len(_FIRST_RESULT_TYPE)]) == _FIRST_RESULT_TYPE:
        return jsonrpc.RawResult(encoded[len(_FIRST_RESULT_TYPE) :], b"}", b"{")
    return None
