"""Decoding a large JSON text piece by piece, in a thread, so that the event loop gets its turn in between.

`breathe` is called after each piece, a millisecond or so of work, and lets others run. Without it a thread gives up the
interpreter only when it is asked to, 5 ms later, each time that the loop comes back from the system.

What comes out is what the strict decoder makes of each piece. A key that stands twice is not noticed here: the last one
stays, as with every decoder that does not look for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jiter
import msgspec

PIECE: Final = 16 * 1024  # bytes that are decoded in one go
MEMBERS: Final = 1000  # of an object that are decoded one by one before others get their turn

Breathe = Callable[[], None]


def decode(data: bytes, depth: int, breathe: Breathe) -> Any:
    """The value of `data`, not nested deeper than `depth` where it is large. Raises `ValueError`."""
    if len(data) > PIECE and depth > 0:
        data = data.strip()
        if data.startswith(b"{"):
            return _object(msgspec.json.decode(data, type=dict[str, msgspec.Raw]), depth - 1, breathe)
        if data.startswith(b"["):
            return _array(msgspec.json.decode(data, type=list[msgspec.Raw]), depth - 1, breathe)
    return jiter.from_json(data, allow_inf_nan=False, cache_mode="keys")


def _object(raw: dict[str, msgspec.Raw], depth: int, breathe: Breathe) -> dict[str, Any]:
    made: dict[str, Any] = {}
    breathe()
    for number, (key, value) in enumerate(raw.items(), 1):
        made[key] = decode(bytes(value), depth, breathe)
        if number % MEMBERS == 0:
            breathe()
    return made


def _array(raw: list[msgspec.Raw], depth: int, breathe: Breathe) -> list[Any]:
    """The items, as many at once as make a piece."""
    items: list[Any] = []
    line: list[bytes] = []
    size = 0
    breathe()
    for each in raw:
        item = bytes(each)
        if size + len(item) > PIECE:
            items += _together(line)
            line, size = [], 0
            breathe()
        if len(item) > PIECE:
            items.append(decode(item, depth, breathe))
        else:
            line.append(item)
            size += len(item) + 1
    return items + _together(line)


def _together(line: list[bytes]) -> list[Any]:
    made: list[Any] = jiter.from_json(b"[" + b",".join(line) + b"]", allow_inf_nan=False, cache_mode="keys")
    return made
