"""The last bytes of a stream, and never more."""

from __future__ import annotations

from collections import deque


class Tail:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        if not self._limit:
            return
        chunk = chunk[-self._limit :]
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())
        if len(self._chunks) > 256:  # many small writes: keep the overhead bounded too
            self._chunks = deque([b"".join(self._chunks)[-self._limit :]])
            self._size = len(self._chunks[0])

    def text(self, lines: int = 20) -> str:
        whole = b"".join(self._chunks).decode("utf-8", "replace")
        return "\n".join(whole.rstrip().splitlines()[-lines:])
