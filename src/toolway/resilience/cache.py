"""The cache stage: answers that may be given again, for as long as was said, to the same caller only.

Bounded in entries, in bytes of one entry, and in time (an hour). The clock is handed in and is monotonic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import msgspec
from msgspec.structs import replace

from toolway.model import Call, Next, Reply, Stage

ENTRIES: Final = 1024
LARGEST: Final = 1024 * 1024  # bytes of one answer
LONGEST: Final = 3600.0


class Cache:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: OrderedDict[Hashable, tuple[float, Reply]] = OrderedDict()

    def get(self, key: Hashable) -> Reply | None:
        until, reply = self._entries.get(key, (0.0, None))
        if reply is None or self._now() >= until:
            self._entries.pop(key, None)
            return None
        self._entries.move_to_end(key)
        return replace(reply, from_cache=True, seconds=0.0)

    def put(self, key: Hashable, reply: Reply, seconds: float) -> None:
        if len(msgspec.json.encode(reply.raw)) > LARGEST:
            return
        self._entries[key] = (self._now() + min(seconds, LONGEST), reply)
        self._entries.move_to_end(key)
        while len(self._entries) > ENTRIES:
            self._entries.popitem(last=False)

    def forget(self, server: str) -> None:
        """A list of this server changed, or it was removed."""
        for key in [k for k, (_, reply) in self._entries.items() if reply.server == server]:
            del self._entries[key]


def cache(
    store: Cache, identity_of: Callable[[Call], Hashable | None], seconds_of: Callable[[Call, Reply], float]
) -> Stage:
    def stage(call: Call, next: Next) -> Awaitable[Reply]:
        identity = identity_of(call)
        return next(call) if identity is None else remembered(identity, call, next)

    async def remembered(identity: Hashable, call: Call, next: Next) -> Reply:
        known = store.get(identity)
        if known is not None:
            return known
        reply = await next(call)
        seconds = seconds_of(call, reply)
        if seconds > 0 and not reply.is_error:
            store.put(identity, reply, seconds)
        return reply

    return stage
