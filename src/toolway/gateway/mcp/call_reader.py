"""A fast reader for ordinary tool calls, which turns a client's request body into a `ClientCall`.

Ordinary calls only use features that do not require the middleware chain. Clients mostly repeat their requests with a
new id and new arguments, so a body is first split without decoding its parts, and `_meta` is only decoded if it
changed. An unusual body is decoded as a whole, with the same result. So are legacy clients' calls, which have little
`_meta`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from toolway.gateway.mcp.dispatcher import IDEMPOTENCY_META_KEY
from toolway.gateway.mcp.errors import TIMEOUT_META_KEY
from toolway.gateway.mcp.modern import RoutingHeaders
from toolway.hub.flight import PIPELINE_META_KEYS
from toolway.hub.plan import MIN_TIMEOUT_S
from toolway.protocol import jsonrpc
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from toolway.types import Json

PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_OWN_META_KEYS: Final = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, TIMEOUT_META_KEY}
)
_PIPELINE_META_KEYS: Final = PIPELINE_META_KEYS | {IDEMPOTENCY_META_KEY}
#: Length of a compact body without the values of id, name, arguments and `_meta`.
_FRAME_BYTES: Final = len(b'{"jsonrpc":"2.0","id":,"method":"tools/call","params":{"name":,"arguments":,"_meta":}}')
_REQUEST: Final = frozenset({"jsonrpc", "id", "method", "params"})
_START: Final = b'{"jsonrpc":"2.0","id":'
_PARAMS_DEPTH: Final = 2  # of the values in the params
_NO_META: Final[Json] = {}
_ZERO: Final = ord("0")
_MAX_ID_DIGITS: Final = 15  # of an id that is certainly a safe integer


class ClientMeta(msgspec.Struct, frozen=True, gc=False):
    """An ordinary tool call's `_meta`, already checked, with its client's capabilities."""

    value: Json
    capabilities: Json  # of the client
    extra: Json | None  # what is passed on to the server


class ClientCall(msgspec.Struct, frozen=True, gc=False):
    """Id, arguments and `_meta` of an ordinary tool call."""

    id: bytes  # encoded
    arguments: Json
    meta: ClientMeta
    named: str = ""  # the tool that `call_tool` or `read_tool` names
    encoded_arguments: bytes = b""  # the arguments as received, if we would encode them in the same way


class _Params(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: msgspec.Raw
    meta: msgspec.Raw = msgspec.field(name="_meta")


class _Body(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    jsonrpc: Literal["2.0"]
    id: msgspec.Raw
    method: Literal["tools/call"]
    params: _Params


_split = msgspec.json.Decoder(_Body).decode


class CallReader:
    """Reads tool calls from requests with the same HTTP head. Only decodes `_meta` if it changed."""

    __slots__ = ("_between", "_fixed_bytes", "_last_end", "_last_meta", "_last_raw_meta", "_routing")

    def __init__(self, routing: RoutingHeaders) -> None:
        name = jsonrpc.encode_json(routing.name)
        self._routing = routing
        self._fixed_bytes = _FRAME_BYTES + len(name)
        self._between = b',"method":"tools/call","params":{"name":%b,"arguments":' % name  # id and arguments
        self._last_raw_meta = b""
        self._last_end = b""  # of the last body: what follows its arguments
        self._last_meta: ClientMeta

    def read(self, body: bytes) -> ClientCall | None:
        """Return the tool call in a request body.

        Return None if the router must handle the request, because it is unusual or differs from the headers.
        """
        end = self._last_end
        if end and body.startswith(_START) and body.endswith(end):
            id_ = body[len(_START) : body.find(b",", len(_START))]
            begin = len(_START) + len(id_)
            if (
                id_.isdigit()
                and len(id_) <= _MAX_ID_DIGITS
                and id_[0] != _ZERO
                and body.startswith(self._between, begin)
            ):
                # One whole value is left between bytes that are known, so the body has no other keys.
                raw_arguments = body[begin + len(self._between) : -len(end)]
                arguments = jsonrpc.decode_canonical(raw_arguments, jsonrpc.MAX_DEPTH - _PARAMS_DEPTH)
                if type(arguments) is dict:
                    return ClientCall(id_, arguments, self._last_meta, "", raw_arguments)
        return self._read_parts(body)

    def _read_parts(self, body: bytes) -> ClientCall | None:
        """Return the tool call in a body that differs from the last one in more than id and arguments.

        Return None if the router must handle the request.
        """
        try:
            parts = _split(body)
        except (ValueError, RecursionError):
            return self._read_whole(body)
        params = parts.params
        id_, raw_arguments, raw_meta = bytes(parts.id), bytes(params.arguments), bytes(params.meta)
        # Space and duplicate keys would make the body longer than the sum of its parts.
        if (
            len(body) != self._fixed_bytes + len(id_) + len(raw_arguments) + len(raw_meta)
            or params.name != self._routing.name
            or not id_.isdigit()
            or len(id_) > _MAX_ID_DIGITS
            or id_[0] == _ZERO
        ):
            return self._read_whole(body)
        arguments = jsonrpc.decode_canonical(raw_arguments, jsonrpc.MAX_DEPTH - _PARAMS_DEPTH)
        if type(arguments) is not dict:
            return self._read_whole(body)
        if raw_meta != self._last_raw_meta:
            whole = self._read_whole(body)
            if whole is not None and len(raw_meta) <= jsonrpc.SMALL_BYTES:
                self._last_raw_meta, self._last_meta = raw_meta, whole.meta
                self._last_end = b',"_meta":%b}}' % raw_meta
            return whole
        return ClientCall(id_, arguments, self._last_meta, "", raw_arguments)

    def _read_whole(self, body: bytes) -> ClientCall | None:
        found = _decode_call(body)
        if found is None:
            return None
        id_, params = found
        raw_meta: Any = params.get("_meta")
        if not self._routing.matches("tools/call", params, raw_meta):
            return None
        meta = check_meta(raw_meta, raw_meta[CLIENT_CAPABILITIES_META_KEY])
        return ClientCall(jsonrpc.encode_json(id_), params["arguments"], meta) if meta is not None else None


class ListReader:
    """Reads `tools/list` requests (first page) with the same HTTP head. Only decodes `_meta` if it changed."""

    __slots__ = ("_last_end", "_routing")

    def __init__(self, routing: RoutingHeaders) -> None:
        self._routing = routing
        self._last_end = b""  # of the last body: what follows its id

    def read(self, body: bytes) -> bytes | None:
        """Return the encoded id of a `tools/list` request.

        Return None if the router must handle the request, because it is unusual or differs from the headers.
        """
        end = self._last_end
        if end and body.startswith(_START) and body.endswith(end):
            id_ = body[len(_START) : -len(end)]
            if id_.isdigit() and len(id_) <= _MAX_ID_DIGITS and id_[0] != _ZERO:
                return id_
        return self._read_whole(body)

    def _read_whole(self, body: bytes) -> bytes | None:
        try:
            value: Any = jsonrpc.decode_json(body)
            params, id_ = value["params"], value["id"]
            meta = params["_meta"]
            if value.keys() != _REQUEST or len(params) != 1 or value["jsonrpc"] != "2.0":
                return None
            if not jsonrpc.is_valid_id(id_) or not self._routing.matches(value["method"], params, meta):
                return None
            if type(meta[CLIENT_CAPABILITIES_META_KEY]) is not dict:
                return None
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return None  # the router says what is wrong with it
        encoded_id = jsonrpc.encode_json(id_)
        end = b',"method":"tools/list","params":{"_meta":%b}}' % jsonrpc.encode_json(meta)
        if len(end) <= jsonrpc.SMALL_BYTES and body == _START + encoded_id + end:
            self._last_end = end
        return encoded_id


def read_session_call(body: bytes) -> tuple[jsonrpc.MessageId, str, ClientCall] | None:
    """Return the id, tool name, and content of an ordinary tool call in a legacy client's body.

    Return None if the call is unusual or invalid, so the router must handle the request.
    """
    found = _decode_call(body)
    if found is None:
        return None
    id_, params = found
    name, raw_meta = params.get("name"), params.get("_meta", _NO_META)
    if type(name) is not str or type(raw_meta) is not dict or PROTOCOL_VERSION_META_KEY in raw_meta:
        return None
    meta = check_meta(raw_meta, _NO_META)  # the client has the capabilities of its session
    return (id_, name, ClientCall(jsonrpc.encode_json(id_), params["arguments"], meta)) if meta is not None else None


def _decode_call(body: bytes) -> tuple[jsonrpc.MessageId, Json] | None:
    """Return the id and params of the tool call in a request body, or None if the call is invalid or unusual.

    The router then handles the request and reports what is wrong with it.
    """
    try:
        value: Any = jsonrpc.decode_json(body)
        params, id_ = value["params"], value["id"]
        if value["method"] != "tools/call" or not params.keys() <= PARAMS or not jsonrpc.is_valid_id(id_):
            return None
        return (id_, params) if type(params["arguments"]) is dict else None
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None  # the router says what is wrong with it


def check_meta(value: Json, capabilities: object) -> ClientMeta | None:
    """Return a request's `_meta` after checking it, or None if it is invalid or needs the middleware chain."""
    if not value and type(capabilities) is dict:
        return ClientMeta(value, capabilities, None)
    if not _PIPELINE_META_KEYS.isdisjoint(value):
        return None
    timeout = value.get(TIMEOUT_META_KEY)
    if timeout is not None and not (type(timeout) in (int, float) and timeout >= MIN_TIMEOUT_S * 1000):
        return None
    if type(capabilities) is not dict:
        return None
    extra = {key: each for key, each in value.items() if key not in _OWN_META_KEYS}
    return ClientMeta(value, capabilities, extra or None)
