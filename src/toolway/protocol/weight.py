"""What a message would cost to decode, told from its bytes.

A decoder makes all values of a message in one go, and nobody else gets a turn meanwhile. So a message of very many
values must be known, and refused, before it is decoded. The bytes are looked at in slices of a millisecond or two:
in a thread, others get their turn in between.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

SLICE: Final = 64 * 1024
SET_ASIDE: Final = "toolway/setAside"  # stands in an item whose definition was too heavy to be read


class Weight(NamedTuple):
    values: int  # an empty list or object counts twice
    keys: int  # of all objects together


def weigh(data: bytes, most: int) -> Weight:
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
    return Weight(values, keys)


class _Named(msgspec.Struct):
    name: str = ""


class _Answer(msgspec.Struct):
    result: dict[str, msgspec.Raw]


def lightened(frame: bytes, items: str, most: int) -> bytes:
    """The answer `frame` with a stand-in for each of its `items` that has more than `most` values, so that one of them
    costs itself and not the whole list. Raises `ValueError` where it is no such answer."""
    found = msgspec.json.decode(frame, type=_Answer).result.get(items)
    if found is None:
        return frame
    for item in msgspec.json.decode(found, type=list[msgspec.Raw]):
        heavy = bytes(item)
        if weigh(heavy, most).values > most:
            name = msgspec.json.decode(heavy, type=_Named).name
            frame = frame.replace(heavy, msgspec.json.encode({"name": name[:128], SET_ASIDE: True}), 1)
    return frame
