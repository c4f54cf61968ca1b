"""Compressed bodies, opened piece by piece so that a small one cannot become a large one unnoticed."""

from __future__ import annotations

import zlib
from typing import Final

PIECE: Final = 64 * 1024
MAX_RATIO: Final = 20
FLOOR: Final = 64 * 1024  # so much may come of however little

_GZIP: Final = 16 + zlib.MAX_WBITS
CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})


class BadCompression(Exception):
    """A body that is no valid stream of its coding, or one that grows too much."""


class Inflate:
    """Decodes one gzip or deflate body. After each `feed`, `take` until it returns nothing; at the end, `finish`."""

    __slots__ = ("_decoder", "_gzip", "_in", "_out", "_pending")

    def __init__(self, coding: str) -> None:
        self._gzip = coding != "deflate"
        self._decoder: zlib._Decompress | None = None
        self._pending = b""
        self._in = 0
        self._out = 0

    def feed(self, data: bytes) -> None:
        self._pending += data
        self._in += len(data)

    def take(self) -> bytes:
        """The next piece, or nothing where more input is needed. Raises `BadCompression`."""
        if self._decoder is None:
            if len(self._pending) < 2:
                return b""
            self._decoder = zlib.decompressobj(_GZIP if self._gzip else _deflate_bits(self._pending))
        try:
            piece = self._decoder.decompress(self._pending, PIECE)
        except zlib.error as exc:
            raise BadCompression(f"not a valid compressed body ({exc})") from None
        self._pending = self._decoder.unconsumed_tail
        if self._decoder.unused_data:
            raise BadCompression("bytes after the end of a compressed body")
        self._out += len(piece)
        if self._out > FLOOR and self._out > MAX_RATIO * self._in:
            raise BadCompression(f"a compressed body that grows more than {MAX_RATIO}:1")
        return piece

    def finish(self) -> None:
        if self._in and (self._decoder is None or not self._decoder.eof):
            raise BadCompression("a compressed body that ends early")


def _deflate_bits(start: bytes) -> int:
    """`deflate` means a zlib stream, but some servers send the bare one."""
    zlib_header = start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS
