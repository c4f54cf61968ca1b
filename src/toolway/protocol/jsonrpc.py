"""JSON-RPC envelopes: bytes to messages and back, with limits on untrusted input.

A message is decoded once, strictly (no duplicate keys, no NaN, no byte order mark, bounded depth and width), and then
passed on unchanged. Unknown fields of a server pass through.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import jiter
import msgspec

from toolway.protocol import large_messages
from toolway.protocol.constants import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from toolway.protocol.sanitize import sanitize
from toolway.types import Certainty, Json

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_KEYS: Final = 10_000
MAX_ITEMS: Final = 100_000
MAX_VALUES: Final = 250_000  # of a whole message
SMALL_BYTES: Final = 4096  # bytes
FEW_VALUES: Final = 60  # values; fewer than the allowed nesting
LARGE_BYTES: Final = 256 * 1024
LARGE_VALUES: Final = 20_000
ALWAYS_LARGE_BYTES: Final = 1024 * 1024  # bytes; above it even counting the values takes too long
_MAX_ID_BYTES: Final = 256
_MAX_ID_INT: Final = 2**53

# A code of the legacy era, the only one of its range with a meaning.
RESOURCE_NOT_FOUND: Final = -32002
# A server that answers with one of these codes has not started the work.
NOT_EXECUTED_CODES: Final = frozenset(
    {
        RESOURCE_NOT_FOUND,
        PARSE_ERROR,
        INVALID_REQUEST,
        METHOD_NOT_FOUND,
        INVALID_PARAMS,
        HEADER_MISMATCH,
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        UNSUPPORTED_PROTOCOL_VERSION,
    }
)
# Error codes that only a modern server sends.
MODERN_ERROR_CODES: Final = frozenset(
    {HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION}
)

MessageId = int | str
encode_json = msgspec.json.Encoder().encode


class InvalidMessage(Exception):
    """Raised for bytes that are not an acceptable JSON-RPC message.

    `id` is set if the broken message still shows which request it answers. `code` and `hint` are set if a more
    precise cause than "unreadable" is known.
    """

    def __init__(self, reason: str, id: MessageId | None = None, *, code: str = "", hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.id = id
        self.code = code
        self.hint = hint


class Message(msgspec.Struct, frozen=True, gc=False):
    """One decoded JSON-RPC envelope. `kind` determines which fields are set."""

    kind: Literal["request", "notification", "result", "error"]
    id: MessageId | None
    method: str = ""
    body: Any = None  # params, result or error
    is_bare_result: bool = False  # a response with only jsonrpc, id and result


def encode_request(id: MessageId, method: str, params: Json) -> bytes:
    """Encode a JSON-RPC request."""
    return encode_json({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def encode_tool_call(id: int, params: bytes) -> bytes:
    """Encode a tool call request whose params are already encoded."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%b}' % (id, params)


def encode_notification(method: str, params: Json) -> bytes:
    """Encode a JSON-RPC notification."""
    return encode_json({"jsonrpc": "2.0", "method": method, "params": params})


class RawResult(msgspec.Struct, frozen=True, gc=False):
    """A result that is forwarded as received, as the bytes `prefix` + `received` + `suffix`, not encoded again."""

    received: bytes | memoryview
    suffix: bytes
    prefix: bytes = b""


def encode_result(id: MessageId, body: Json | RawResult) -> bytes:
    """Encode a JSON-RPC result response."""
    if isinstance(body, RawResult):
        start = b'{"jsonrpc":"2.0","id":%b,"result":%b' % (encode_json(id), body.prefix)
        return b"".join((start, body.received, body.suffix))
    return encode_json({"jsonrpc": "2.0", "id": id, "result": body})


def slice_result(frame: bytes, id: int) -> memoryview | None:
    """Return the bytes of the result inside a JSON-RPC response with only jsonrpc, id and result.

    Return None if the response has an unusual layout. Forwarding these bytes costs a tenth of encoding the result
    again.
    """
    begin = b'{"jsonrpc":"2.0","id":%d,"result":' % id
    if frame.startswith(begin) and frame.endswith(b"}}"):
        return memoryview(frame)[len(begin) : -1]
    end = b',"jsonrpc":"2.0","id":%d}' % id
    if frame.startswith(b'{"result":{') and frame.endswith(b"}" + end):
        return memoryview(frame)[10 : -len(end)]
    return None


def encode_error(id: MessageId, code: int, message: str, data: Any = None) -> bytes:
    """Encode a JSON-RPC error response."""
    body: Json = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return encode_json({"jsonrpc": "2.0", "id": id, "error": body})


def parse_message(frame: bytes) -> Message:
    """Decode one JSON-RPC message that is not large (see `is_large`).

    Raises `InvalidMessage` if the bytes are not a valid message or exceed a limit.
    """
    try:
        value = decode_canonical(frame)
        return _build_message(value if value is not None else _decode_strictly(frame))
    except (ValueError, RecursionError) as exc:
        raise InvalidMessage(str(exc), extract_id(frame)) from None


def parse_usual_result(frame: bytes, id: int) -> tuple[Json, bytes] | None:
    """Return (result, its bytes) of a small response to `id`, if written as `encode_json` does.

    This is a fast path. It returns None for any other message, which `parse_result` then decodes.
    """
    begin = b'{"jsonrpc":"2.0","id":%d,"result":' % id
    if len(frame) > SMALL_BYTES or not frame.startswith(begin):
        return None
    # Without the last byte, one whole value is left: the byte ends the message.
    received = frame[len(begin) : -1]
    result = decode_canonical(received, MAX_DEPTH - 1)
    return (result, received) if type(result) is dict and frame.endswith(b"}}") else None


def parse_result(frame: bytes, id: int) -> tuple[Json, bool] | None:
    """Return (result, is plain) of a response to `id`, or None if the message is something else.

    A plain response has only jsonrpc, id and result. `parse_message` decodes other messages, or says what is wrong
    with them.
    """
    try:
        value = decode_canonical(frame)
        if value is None:
            value = _decode_strictly(frame)
    except (ValueError, RecursionError):
        return None
    if type(value) is not dict or "method" in value or "error" in value:
        return None
    found, result = value.get("id"), value.get("result")
    if type(found) is not int or found != id or type(result) is not dict:
        return None
    return result, len(value) == 3


def parse_bare_response(frame: bytes) -> Message | None:
    """Decode a response that only a server without a handshake may send; None if it is not one.

    Its result may be any JSON value, and an unused `error` or `result` may be null. A result that is not an object is
    returned as a tool result with its JSON as text. For messages that `parse_message` rejected.
    """
    try:
        value = decode_json(frame)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "method" in value or not is_valid_id(value.get("id")):
        return None
    if isinstance(value.get("error"), dict):
        return Message("error", value["id"], body=value["error"]) if value.get("result") is None else None
    if "result" not in value or value.get("error") is not None:
        return None
    result = value["result"]
    return Message("result", value["id"], "", result if isinstance(result, dict) else tool_result_from_json(result))


def tool_result_from_json(value: Any) -> Json:
    """Return a tool result for a JSON value: its JSON as text, and structured content for objects."""
    result: Json = {"content": [{"type": "text", "text": encode_json(value).decode()}]}
    if isinstance(value, dict):
        result["structuredContent"] = value
    return result


def is_large(frame: bytes) -> bool:
    """Return True if decoding this message would block the event loop for too long."""
    size = len(frame)
    return size > LARGE_BYTES and (
        size > ALWAYS_LARGE_BYTES or frame.count(b",") + frame.count(b"[") + frame.count(b"{") > LARGE_VALUES
    )


def _no_yield() -> None:
    """Do nothing: default of the callback `yield_loop`, if no other thread needs to run."""


def parse_in_slices(frame: bytes, items: str = "", yield_loop: large_messages.YieldLoop = _no_yield) -> Message:
    """Decode a large JSON-RPC message. Call this in a thread.

    `yield_loop` is called repeatedly to let the event loop run.

    `items` is the name of the requested list, such as "tools", if there is one. An item with too many values is then
    left out, and the rest stay. Raises `InvalidMessage` if the bytes are not a valid message or exceed a limit.
    """
    try:
        return _build_message(decode_json_in_slices(frame, items, yield_loop))
    except _TooManyValues as exc:
        raise InvalidMessage(str(exc), extract_id(frame), code="E-ANSWER-LIMIT", hint=_PAGING_HINT) from None
    except (ValueError, RecursionError) as exc:
        raise InvalidMessage(str(exc), extract_id(frame)) from None


class _TooManyValues(ValueError):
    """Raised for a JSON-RPC message with more values than may be decoded."""


_PAGING_HINT: Final = "request less data at a time, for example by pages; many values can be sent as one string"


def decode_json_in_slices(data: bytes, items: str, yield_loop: large_messages.YieldLoop) -> Any:
    """Decode JSON as strictly as `decode_json`; slower, but it lets the event loop run.

    Raises `ValueError` if the bytes are not valid JSON or exceed a limit.
    """
    counted = large_messages.count_values(data, MAX_VALUES, yield_loop)
    if counted.values > MAX_VALUES and items:
        data = large_messages.drop_oversized_items(data, items, LARGE_VALUES, yield_loop)
        counted = large_messages.count_values(data, MAX_VALUES, yield_loop)
    if counted.values > MAX_VALUES:
        raise _TooManyValues(f"it has more than {MAX_VALUES} values, which would block other requests")
    value = large_messages.decode_in_chunks(data, MAX_DEPTH + 1, yield_loop)
    # A duplicate key is missing in the decoded value.
    if _check_limits(value, yield_loop) != counted.keys:
        raise ValueError("duplicate key in an object")
    return value


def decode_json(data: bytes) -> Any:
    """Decode strict JSON and enforce the limits on depth, width and numbers.

    Raises `ValueError` if the bytes are not valid JSON, have duplicate keys or exceed a limit.
    """
    value = decode_canonical(data)
    return value if value is not None else _decode_strictly(data)


def _decode_strictly(data: bytes) -> Any:
    size = len(data)
    value = jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="all")
    # The bytes of a small message prove that it is within the limits. So do the values of a large message if they are
    # few, as usual: 100 kB of text are one value. Only the remaining messages are checked exactly.
    if not (
        (size > SMALL_BYTES and _has_few_values(value, FEW_VALUES))
        or (
            size <= LARGE_BYTES
            and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
            and data.count(b",") < MAX_KEYS
            and not _may_hold_huge_number(data)
        )
    ):
        _check_limits(value)
    return value


_decode_last_key = msgspec.json.Decoder().decode  # strict but for duplicate keys: the last one wins


def decode_canonical(data: bytes, max_depth: int = MAX_DEPTH) -> Any:
    """Decode a small JSON text that is written exactly as `encode_json` writes it.

    Return None if it is written differently, or may exceed a limit.

    Most programs write JSON like this. If encoding the decoded value gives the very same bytes, it had no duplicate
    keys. Both steps together take half the time of a decoder that detects duplicate keys.
    """
    size = len(data)
    if size > SMALL_BYTES:
        return None
    try:
        value = _decode_last_key(data)
        if encode_json(value) != data:
            return None
        # A level takes two brackets.
        if size > 2 * max_depth and data.count(b"[") + data.count(b"{") > max_depth:
            return None
    except (ValueError, RecursionError, OverflowError):
        return None
    # Only an integer can be beyond a double here.
    if size >= _HUGE_DIGITS and data[::_DIGIT_STRIDE].translate(_NUMBER_SHAPE).find(b"00") >= 0:
        return None
    return value


def _has_few_values(root: Any, max_values: int) -> bool:
    """Return True if decoded JSON has at most `max_values` values, and no number beyond the range of a double."""
    nodes = [root]
    for node in nodes:  # grows during the loop
        kind = type(node)
        if kind is dict:
            nodes.extend(node.values())
        elif kind is list:
            nodes.extend(node)
        elif kind is not str and kind in _NUMBER_TYPES and not -_MAX_DOUBLE <= node <= _MAX_DOUBLE:
            return False
        if len(nodes) > max_values:
            return False
    return True


# Maps digits, exponents and plus signs to one byte each, so a number beyond a double is a plain run of bytes.
_NUMBER_SHAPE: Final = bytes(
    48 if b in b"0123456789" else 101 if b in b"eE" else 43 if b in b"+" else 32 for b in range(256)
)
_DIGIT_STRIDE: Final = 150  # a run of 300 digits hits two consecutive samples at this stride
_HUGE_DIGITS: Final = 300  # digits of an integer that may be beyond a double


def _may_hold_huge_number(data: bytes) -> bool:
    shape = data.translate(_NUMBER_SHAPE)
    if shape.find(b"0e000") >= 0 or shape.find(b"0e+000") >= 0:  # `in` raises and drops an exception inside
        return True
    return len(data) >= _HUGE_DIGITS and shape[::_DIGIT_STRIDE].find(b"00") >= 0


_MAX_DOUBLE: Final = 1.7976931348623157e308
_NUMBER_TYPES: Final = (int, float)


_NODES_PER_SLICE: Final = 2000  # checked before the loop may run


def _check_limits(root: Any, yield_loop: large_messages.YieldLoop = _no_yield) -> int:
    """Check a decoded JSON value against the limits, and return its number of keys. Raises `ValueError`."""
    keys = 0
    level = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for start in range(0, len(level), _NODES_PER_SLICE):
            keys += _scan_nodes(level[start : start + _NODES_PER_SLICE], below)
            yield_loop()
        if not below:
            return keys
        level = below
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _scan_nodes(nodes: list[Any], below: list[Any]) -> int:
    """Check the JSON values of one nesting level against the limits; return their key count.

    Their children are appended to `below`. Raises `ValueError` if a limit is exceeded.
    """
    keys = 0
    for node in nodes:
        if isinstance(node, str):
            continue
        if isinstance(node, dict):
            if len(node) > MAX_KEYS:
                raise ValueError(f"an object with {len(node)} keys (limit {MAX_KEYS})")
            keys += len(node)
            below.extend(node.values())
        elif isinstance(node, list):
            if len(node) > MAX_ITEMS:
                raise ValueError(f"an array of {len(node)} items (limit {MAX_ITEMS})")
            below.extend(node)
        elif isinstance(node, _NUMBER_TYPES) and not -_MAX_DOUBLE <= node <= _MAX_DOUBLE:
            raise ValueError("a number outside the range of a double")
    return keys


def _build_message(value: Any) -> Message:
    if type(value) is not dict:
        raise ValueError("not a JSON-RPC object")
    id_ = value.get("id")
    if id_ is not None and not is_valid_id(id_):
        raise ValueError("id is neither a short string nor a safe integer")
    method = value.get("method")
    if type(method) is str:
        params = value.get("params")
        if params is None:
            params = {}
        if type(params) is not dict:
            raise ValueError("params is not an object")
        return Message("notification" if id_ is None else "request", id_, method, params)
    result = value.get("result")
    if type(result) is dict and "error" not in value:
        return Message("result", id_, "", result, len(value) == 3)
    if type(value.get("error")) is dict and "result" not in value:
        return Message("error", id_, body=value["error"])
    raise ValueError("neither a request nor a response")


def is_valid_id(id_: Any) -> bool:
    """Return True if a value may be the id of a request: a safe integer or a short string."""
    if type(id_) is int:
        return -_MAX_ID_INT <= id_ <= _MAX_ID_INT
    return isinstance(id_, str) and len(id_.encode()) <= _MAX_ID_BYTES


_ID_PATTERN: Final = re.compile(rb'"id"\s*:\s*(?:(-?[0-9]{1,16})|"([^"\\]{1,256})")\s*[,}]')
_RESPONSE_PATTERN: Final = re.compile(rb'"(?:result|error)"\s*:')


def extract_id(frame: bytes) -> MessageId | None:
    """Return the request id in the first 4 KiB of a broken response, or None.

    Used only to fail the call with that id early.
    """
    head = frame[:4096]
    found = _ID_PATTERN.search(head)
    if found is None or _RESPONSE_PATTERN.search(head) is None:
        return None
    return int(found[1]) if found[1] is not None else found[2].decode("utf-8", "replace")


def parse_error(body: Json) -> tuple[int, str, Any]:
    """Return the code, message, and data of a JSON-RPC error object, with defaults for invalid fields."""
    code = body.get("code")
    message = body.get("message")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else -32603,
        sanitize(message if isinstance(message, str) else "error without a message", 2000),
        body.get("data"),
    )


def classify_error(code: int) -> Certainty:
    """Return the certainty that the server executed a request, from its JSON-RPC error code."""
    if code in NOT_EXECUTED_CODES:
        return Certainty.REJECTED
    return Certainty.UNKNOWN if -32768 <= code <= -32000 else Certainty.EXECUTED
