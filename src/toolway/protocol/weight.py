"""What a message would cost to decode, told from its bytes.

A decoder makes all values of a message in one go, and nobody else gets a turn meanwhile. So a message of very many
values must be known, and refused, before it is decoded. The bytes are looked at in slices of a millisecond or two:
in a thread, others get their turn in between (`breathe`, as in `pieces.py`).
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from toolway.protocol.pieces import Breathe

SLICE: Final = 64 * 1024
SET_ASIDE: Final = "toolway/setAside"  # stands in an item whose definition was too heavy to be read


class Weight(NamedTuple):
    values: int  # an empty list or object counts twice
    keys: int  # of all objects together


def weigh(data: bytes, most: int, breathe: Breathe) -> Weight:
    """What JSON text holds. Looks no further where that is more than `most` values."""
    values, keys, inside, escape = 1, 0, 0, b""
    for start in range(0, len(data), SLICE):
        piece = (escape + data[start : start + SLICE]).replace(rb"\\", b"")
        escape = b"\\" if piece.endswith(b"\\") else b""
        parts = piece.removesuffix(b"\\").replace(rb"\"", b"").split(b'"')
        bare = b"".join(parts[inside::2])  # what stands in no string
        inside = (inside + len(parts) - 1) % 2
        values += bare.count(b",") + bare.count(b"[") + bare.count(b"{")
        keys += bare.count(b":")
        if values > most:
            break
        breathe()
    return Weight(values, keys)


_NAME: Final = re.compile(rb'"(?:name|uri|uriTemplate)"\s*:\s*"([^"\\]{1,128})"')
_Members = dict[str, msgspec.Raw]


def lightened(frame: bytes, items: str, most: int, breathe: Breathe) -> bytes:
    """The answer `frame` with a stand-in for each of its `items` that has more than `most` values, so that one of them
    costs itself and not the whole list. Raises `ValueError` where it is no such answer."""
    answer = msgspec.json.decode(frame, type=_Members)
    breathe()
    result = msgspec.json.decode(answer.get("result", b"{}"), type=_Members)
    breathe()
    found = msgspec.json.decode(result.get(items, b"[]"), type=list[msgspec.Raw])
    light = [_stand_in(item) if weigh(bytes(item), most, breathe).values > most else item for item in found]
    return msgspec.json.encode({**answer, "result": {**result, items: light}})


def _stand_in(item: msgspec.Raw) -> dict[str, Any]:
    """What is left of an item: a name, if it is found soon, for people to know which it was."""
    name = _NAME.search(bytes(item)[:SLICE])
    text = name[1].decode("utf-8", "replace") if name else ""
    return {"name": text, "uri": text, "uriTemplate": text, SET_ASIDE: True}
