"""JSON-RPC envelopes: bytes to messages and back, with the limits of what is believed.

A message is decoded once, strictly (no duplicate keys, no NaN, no byte order mark, bounded depth and width), and then
passed on as it is. What a server adds that nobody knows yet arrives unharmed.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

import jiter
import msgspec
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
)

from toolway.model import Certainty, Json
from toolway.protocol import pieces, weight
from toolway.protocol.shown import clean_text as clean_text

FRAME_LIMIT: Final = 8 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_KEYS: Final = 10_000
MAX_ITEMS: Final = 100_000
MAX_VALUES: Final = 250_000  # of a whole message
SMALL: Final = 4096  # bytes
FEW: Final = 60  # values, which is fewer than may be nested
HEAVY_BYTES: Final = 256 * 1024
HEAVY_VALUES: Final = 20_000
HEAVY_ANYWAY: Final = 1024 * 1024  # bytes that it takes too long even to count the values of
_MAX_ID_BYTES: Final = 256
_MAX_ID_INT: Final = 2**53

# Of the handshake era, and the one code of its range with a meaning.
RESOURCE_NOT_FOUND: Final = -32002
# A server that answers with one of these has not begun the work.
REFUSALS: Final = frozenset(
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
# Codes by which a server shows that it speaks the modern era.
MODERN_REFUSALS: Final = frozenset({HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION})

Id = int | str
encode = msgspec.json.Encoder().encode


class BadMessage(Exception):
    """Bytes that are no acceptable message. `id` is set where the message still shows whose answer it was, and `code`
    and `fix` where more is known than that it is unreadable."""

    def __init__(self, reason: str, id: Id | None = None, *, code: str = "", fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.id = id
        self.code = code
        self.fix = fix


class Message(msgspec.Struct, frozen=True, gc=False):
    """One decoded envelope. `kind` says which of the fields count."""

    kind: Literal["request", "notification", "result", "error"]
    id: Id | None
    method: str = ""
    body: Any = None  # params, result or error
    plain: bool = False  # nothing else stands beside a result


def request(id: Id, method: str, params: Json) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def notification(method: str, params: Json) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


class AsItCame(NamedTuple):
    """An object that is passed on: the bytes of it that came, and what is put in their place or behind them."""

    came: memoryview
    end: bytes


def result(id: Id, body: Json | AsItCame) -> bytes:
    if isinstance(body, AsItCame):
        return b"".join((b'{"jsonrpc":"2.0","id":', encode(id), b',"result":', body.came, body.end))
    return encode({"jsonrpc": "2.0", "id": id, "result": body})


def result_bytes(frame: bytes, id: int) -> memoryview | None:
    """The result of a `plain` answer as it stands in the frame; None where the frame is not written as nearly all are.
    Passing it on costs a tenth of writing it anew."""
    begin = b'{"jsonrpc":"2.0","id":%d,"result":' % id
    if frame.startswith(begin) and frame.endswith(b"}}"):
        return memoryview(frame)[len(begin) : -1]
    end = b',"jsonrpc":"2.0","id":%d}' % id
    if frame.startswith(b'{"result":{') and frame.endswith(b"}" + end):
        return memoryview(frame)[10 : -len(end)]
    return None


def error(id: Id, code: int, message: str, data: Any = None) -> bytes:
    body: Json = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return encode({"jsonrpc": "2.0", "id": id, "error": body})


def parse(frame: bytes) -> Message:
    """Decode one envelope that is not heavy. Raises `BadMessage`."""
    try:
        return _envelope(decode(frame))
    except (ValueError, RecursionError) as exc:
        raise BadMessage(str(exc), readable_id(frame)) from None


def is_heavy(frame: bytes) -> bool:
    """Whether decoding would hold up everybody else."""
    size = len(frame)
    return size > HEAVY_BYTES and (
        size > HEAVY_ANYWAY or frame.count(b",") + frame.count(b"[") + frame.count(b"{") > HEAVY_VALUES
    )


def _hold() -> None:
    """Let nobody else run."""


def parse_gently(frame: bytes, items: str = "", breathe: pieces.Breathe = _hold) -> Message:
    """The same for a heavy message, in a thread, where `breathe` is called again and again to let others run. `items`
    names the list that the answer was asked for, if it was one: then an item of very many values is set aside, and the
    others stay."""
    try:
        return _envelope(decode_gently(frame, items, breathe))
    except _TooMany as exc:
        raise BadMessage(str(exc), readable_id(frame), code="E-ANSWER-LIMIT", fix=_ASK_FOR_LESS) from None
    except (ValueError, RecursionError) as exc:
        raise BadMessage(str(exc), readable_id(frame)) from None


class _TooMany(ValueError):
    """More values than may be decoded."""


_ASK_FOR_LESS: Final = "ask the server for less at a time, for instance by pages; many values may come as one text"


def decode_gently(data: bytes, items: str, breathe: pieces.Breathe) -> Any:
    """As strict, and slower, but nobody waits for it long."""
    found = weight.weigh(data, MAX_VALUES, breathe)
    if found.values > MAX_VALUES and items:
        data = weight.lightened(data, items, HEAVY_VALUES, breathe)
        found = weight.weigh(data, MAX_VALUES, breathe)
    if found.values > MAX_VALUES:
        raise _TooMany(f"it has more than {MAX_VALUES} values, which would hold up everybody else")
    value = pieces.decode(data, MAX_DEPTH + 1, breathe)
    # A key that stood twice is missing now.
    if _check_limits(value, breathe) != found.keys:
        raise ValueError("a key that stands twice in one object")
    return value


def decode(data: bytes) -> Any:
    """Strict JSON within the limits. Raises `ValueError`."""
    value = jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="all")
    # A look at the bytes of a small message tells that it keeps the limits; at the values of a large one, where they
    # are few, as in most: 100 kB of text are one. Only what is neither is looked at twice.
    if len(data) <= SMALL:
        clear = data.count(b"[") + data.count(b"{") <= MAX_DEPTH and not _may_hold_huge_number(data)
    else:
        clear = _keeps_limits(value, FEW) or (
            len(data) <= HEAVY_BYTES
            and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
            and data.count(b",") < MAX_KEYS
            and not _may_hold_huge_number(data)
        )
    if not clear:
        _check_limits(value)
    return value


def _keeps_limits(root: Any, most: int) -> bool:
    """Whether so few values are there that it is told at once that they keep the limits."""
    level = [root]
    while level:
        most -= len(level)
        if most < 0:
            return False
        below: list[Any] = []
        _look_at(level, below)
        level = below
    return True


# Digits, exponents and signs and nothing else, so that a number beyond a double shows as a plain run of bytes.
_SHAPE: Final = bytes(48 if b in b"0123456789" else 101 if b in b"eE" else 43 if b in b"+" else 32 for b in range(256))
_STRIDE: Final = 150  # a run of 300 digits is met twice in a row at this stride


def _may_hold_huge_number(data: bytes) -> bool:
    shape = data.translate(_SHAPE)
    if b"0e000" in shape or b"0e+000" in shape:
        return True
    return len(data) > 2 * _STRIDE and b"00" in shape[::_STRIDE]


_LARGEST: Final = 1.7976931348623157e308
_NUMBERS: Final = (int, float)


_NODES: Final = 2000  # that are looked at before others get their turn


def _check_limits(root: Any, breathe: pieces.Breathe = _hold) -> int:
    """How many keys there are. Raises `ValueError` where something is beyond the limits."""
    keys = 0
    level = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for start in range(0, len(level), _NODES):
            keys += _look_at(level[start : start + _NODES], below)
            breathe()
        if not below:
            return keys
        level = below
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _look_at(nodes: list[Any], below: list[Any]) -> int:
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
        elif isinstance(node, _NUMBERS) and not -_LARGEST <= node <= _LARGEST:
            raise ValueError("a number beyond what JSON readers agree on")
    return keys


def _envelope(value: Any) -> Message:
    if not isinstance(value, dict):
        raise ValueError("not a JSON-RPC object")
    id_ = value.get("id")
    if id_ is not None and not _valid_id(id_):
        raise ValueError("an id that is neither a short string nor a safe integer")
    method = value.get("method")
    if isinstance(method, str):
        params = value.get("params")
        if params is None:
            params = {}
        if not isinstance(params, dict):
            raise ValueError("params that are no object")
        return Message("notification" if id_ is None else "request", id_, method, params)
    if isinstance(value.get("result"), dict) and "error" not in value:
        return Message("result", id_, "", value["result"], len(value) == 3)
    if isinstance(value.get("error"), dict) and "result" not in value:
        return Message("error", id_, body=value["error"])
    raise ValueError("neither a request nor a response")


def _valid_id(id_: Any) -> bool:
    if type(id_) is int:
        return -_MAX_ID_INT <= id_ <= _MAX_ID_INT
    return isinstance(id_, str) and len(id_.encode()) <= _MAX_ID_BYTES


_READABLE_ID: Final = re.compile(rb'"id"\s*:\s*(?:(-?[0-9]{1,16})|"([^"\\]{1,256})")\s*[,}]')
_ANSWER: Final = re.compile(rb'"(?:result|error)"\s*:')


def readable_id(frame: bytes) -> Id | None:
    """The id that a spoiled answer still shows in its first 4 KiB, or None. Only for failing that call early."""
    head = frame[:4096]
    found = _READABLE_ID.search(head)
    if found is None or _ANSWER.search(head) is None:
        return None
    return int(found[1]) if found[1] is not None else found[2].decode("utf-8", "replace")


def error_fields(body: Json) -> tuple[int, str, Any]:
    """Code, message and data of an error object, whatever the server put there."""
    code = body.get("code")
    message = body.get("message")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else -32603,
        clean_text(message if isinstance(message, str) else "error without a message", 2000),
        body.get("data"),
    )


def certainty_of_error(code: int) -> Certainty:
    """What a JSON-RPC error of a server says about whether the work was done."""
    if code in REFUSALS:
        return Certainty.C1
    return Certainty.C2 if -32768 <= code <= -32000 else Certainty.C3
