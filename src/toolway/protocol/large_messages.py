"""Large JSON messages: decoding in slices, and the size limits that are checked before decoding.

A decoder creates all of a message's values in one step and blocks every other task. So a large message is decoded in
a thread, in slices of about a millisecond. A message with too many values is detected from its bytes, and rejected
before it is decoded.

`yield_loop` is called after each slice and releases the interpreter. Without it, a thread releases the interpreter
only on request, 5 ms later, each time the loop returns from a system call.

Each slice is decoded strictly. Duplicate keys are not detected here: the last one wins, as in every decoder without
that check.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jiter
import msgspec

YieldLoop = Callable[[], None]


# -- decoding in slices ------------------------------------------------------------------------------------------------

CHUNK_BYTES: Final = 16 * 1024  # bytes decoded in one step
MEMBERS_PER_YIELD: Final = 1000  # members of an object decoded before the loop may run


def decode_in_chunks(data: bytes, depth: int, yield_loop: YieldLoop) -> Any:
    """Decode JSON bytes; large arrays and objects are split down to `depth` nesting levels.

    `yield_loop` is called between the parts. Raises `ValueError` if the bytes are not valid JSON.
    """
    if len(data) > CHUNK_BYTES and depth > 0:
        data = data.strip()
        if data.startswith(b"{"):
            return _decode_object(msgspec.json.decode(data, type=dict[str, msgspec.Raw]), depth - 1, yield_loop)
        if data.startswith(b"["):
            return _decode_array(msgspec.json.decode(data, type=list[msgspec.Raw]), depth - 1, yield_loop)
    return jiter.from_json(data, allow_inf_nan=False, cache_mode="keys")


def _decode_object(raw: dict[str, msgspec.Raw], depth: int, yield_loop: YieldLoop) -> dict[str, Any]:
    members: dict[str, Any] = {}
    yield_loop()
    for number, (key, value) in enumerate(raw.items(), 1):
        members[key] = decode_in_chunks(bytes(value), depth, yield_loop)
        if number % MEMBERS_PER_YIELD == 0:
            yield_loop()
    return members


def _decode_array(raw: list[msgspec.Raw], depth: int, yield_loop: YieldLoop) -> list[Any]:
    """Decode the items of a JSON array in batches of at most `CHUNK_BYTES`."""
    items: list[Any] = []
    batch: list[bytes] = []
    size = 0
    yield_loop()
    for each in raw:
        item = bytes(each)
        if size + len(item) > CHUNK_BYTES:
            items += _decode_batch(batch)
            batch, size = [], 0
            yield_loop()
        if len(item) > CHUNK_BYTES:
            items.append(decode_in_chunks(item, depth, yield_loop))
        else:
            batch.append(item)
            size += len(item) + 1
    return items + _decode_batch(batch)


def _decode_batch(batch: list[bytes]) -> list[Any]:
    items: list[Any] = jiter.from_json(b"[" + b",".join(batch) + b"]", allow_inf_nan=False, cache_mode="keys")
    return items


# -- size, counted before decoding -------------------------------------------------------------------------------------

SLICE_BYTES: Final = 64 * 1024
OMITTED: Final = "toolway/setAside"  # key in the placeholder of an item that was too large to decode

_ITEM_NAME: Final = re.compile(rb'"(?:name|uri|uriTemplate)"\s*:\s*"([^"\\]{1,128})"')
_Members = dict[str, msgspec.Raw]


class ValueCount(NamedTuple):
    """Number of values and keys in a JSON text."""

    values: int  # an empty list or object counts twice
    keys: int  # of all objects together


def count_values(data: bytes, max_values: int, yield_loop: YieldLoop) -> ValueCount:
    """Count the values and keys of a JSON text from its bytes, without decoding it.

    Stops after more than `max_values` values.
    """
    values, keys, inside, escape = 1, 0, 0, b""
    for start in range(0, len(data), SLICE_BYTES):
        piece = (escape + data[start : start + SLICE_BYTES]).replace(rb"\\", b"")
        escape = b"\\" if piece.endswith(b"\\") else b""
        parts = piece.removesuffix(b"\\").replace(rb"\"", b"").split(b'"')
        outside_strings = b"".join(parts[inside::2])  # text outside strings
        inside = (inside + len(parts) - 1) % 2
        values += outside_strings.count(b",") + outside_strings.count(b"[") + outside_strings.count(b"{")
        keys += outside_strings.count(b":")
        if values > max_values:
            break
        yield_loop()
    return ValueCount(values, keys)


def drop_oversized_items(frame: bytes, items: str, max_values: int, yield_loop: YieldLoop) -> bytes:
    """Replace each list item of more than `max_values` values in a response with a placeholder.

    `items` is the key of the list. A huge item then only costs itself, and not the whole list. Raises `ValueError` if
    `frame` is not a JSON-RPC response with such a list.
    """
    response = msgspec.json.decode(frame, type=_Members)
    yield_loop()
    result = msgspec.json.decode(response.get("result", b"{}"), type=_Members)
    yield_loop()
    found = msgspec.json.decode(result.get(items, b"[]"), type=list[msgspec.Raw])
    reduced = [
        _placeholder(item) if count_values(bytes(item), max_values, yield_loop).values > max_values else item
        for item in found
    ]
    return msgspec.json.encode({**response, "result": {**result, items: reduced}})


def _placeholder(item: msgspec.Raw) -> dict[str, Any]:
    """Return the placeholder for a list item that is too large, with its name if that is in the first bytes."""
    name = _ITEM_NAME.search(bytes(item)[:SLICE_BYTES])
    text = name[1].decode("utf-8", "replace") if name else ""
    return {"name": text, "uri": text, "uriTemplate": text, OMITTED: True}
