"""Decoding a large JSON text piece by piece, so that other threads get their turn in between.

What comes out is what the strict decoder makes of each piece. A key that stands twice is not noticed here: the last one
stays, as with every decoder that does not look for it.
"""

from __future__ import annotations

from typing import Any, Final

import jiter
import msgspec

PIECE: Final = 64 * 1024  # bytes that are decoded in one go


def decode(data: bytes, depth: int) -> Any:
    """The value of `data`, not nested deeper than `depth` where it is large. Raises `ValueError`."""
    if len(data) > PIECE and depth > 0:
        data = data.strip()
        if data.startswith(b"{"):
            members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            return {key: decode(bytes(value), depth - 1) for key, value in members.items()}
        if data.startswith(b"["):
            return _items(msgspec.json.decode(data, type=list[msgspec.Raw]), depth - 1)
    return jiter.from_json(data, allow_inf_nan=False, cache_mode="keys")


def _items(raw: list[msgspec.Raw], depth: int) -> list[Any]:
    """The items, as many at once as make a piece."""
    items: list[Any] = []
    line: list[bytes] = []
    size = 0
    for each in raw:
        item = bytes(each)
        if size + len(item) > PIECE:
            items += _together(line)
            line, size = [], 0
        if len(item) > PIECE:
            items.append(decode(item, depth))
        else:
            line.append(item)
            size += len(item) + 1
    return items + _together(line)


def _together(line: list[bytes]) -> list[Any]:
    made: list[Any] = jiter.from_json(b"[" + b",".join(line) + b"]", allow_inf_nan=False, cache_mode="keys")
    return made
