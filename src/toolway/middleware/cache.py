"""Response cache middleware: returns a stored result to the same caller until the result expires.

There are limits on the number of entries, on the bytes of one entry and of all (including their keys), and on the
time (an hour). The clock is monotonic and given as an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import msgspec
from msgspec.structs import replace

from toolway.types import Call, CallHandler, CallResult, Middleware

MAX_ENTRIES: Final = 1024
MAX_ENTRY_BYTES: Final = 1024 * 1024  # bytes of one result with its key
MAX_BYTES: Final = 64 * 1024 * 1024  # bytes of all
MAX_TTL_S: Final = 3600.0  # seconds


class ResponseCache:
    """Call results by cache key, within limits: the least recently used result is dropped first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: OrderedDict[Hashable, tuple[float, CallResult, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> CallResult | None:
        until, reply, _ = self._entries.get(key, (0.0, None, 0))
        if reply is None or self._now() >= until:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return replace(reply, from_cache=True, duration=0.0)

    def put(self, key: Hashable, reply: CallResult, ttl_s: float) -> None:
        size = len(msgspec.json.encode(reply.raw)) + _key_size(key)
        if size > MAX_ENTRY_BYTES:
            return
        self._drop(key)
        self._entries[key] = (self._now() + min(ttl_s, MAX_TTL_S), reply, size)
        self._bytes += size
        while len(self._entries) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        _, _, size = self._entries.pop(key, (0.0, None, 0))
        self._bytes -= size

    def invalidate(self, server: str) -> None:
        """Drop all cached results of a server whose definition changed or that was removed."""
        for key in [k for k, (_, reply, _) in self._entries.items() if reply.server == server]:
            self._drop(key)


def _key_size(key: Hashable) -> int:
    """Return a cache key's size in bytes.

    Keys count toward the cache's limits, because callers choose the arguments and URIs in them.
    """
    return sum(len(part) for part in key if isinstance(part, str | bytes)) if isinstance(key, tuple) else 0


def response_cache(
    store: ResponseCache, key_for: Callable[[Call], Hashable | None], ttl_for: Callable[[Call, CallResult], float]
) -> Middleware:
    """Return middleware that answers calls from `store` and stores their results in it.

    `key_for` returns the cache key of a call, or None if it is never cached. `ttl_for` returns the seconds for which a
    result may be cached.
    """

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        key = key_for(call)
        return next(call) if key is None else run_cached(key, call, next)

    async def run_cached(key: Hashable, call: Call, next: CallHandler) -> CallResult:
        cached = store.get(key)
        if cached is not None:
            return cached
        reply = await next(call)
        ttl_s = ttl_for(call, reply)
        if ttl_s > 0 and not reply.is_error:
            store.put(key, reply, ttl_s)
        return reply

    return middleware
