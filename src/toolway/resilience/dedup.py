"""The dedup stage: identical reads of one caller that run at the same time are made once.

Only where the operator said that the tool is a READ, or that the server is trusted: a server's own hint is not enough
to give one call's answer to another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from msgspec.structs import replace

from toolway.model import Call, Next, Reply, Stage
from toolway.resilience.flights import Flights

FOLLOWERS: Final = 100


def dedup(identity_of: Callable[[Call], Hashable | None]) -> Stage:
    """`identity_of` is None for a call that must be made by itself."""
    flights = Flights()

    def stage(call: Call, next: Next) -> Awaitable[Reply]:
        identity = identity_of(call)
        return next(call) if identity is None else shared(identity, call, next)

    async def shared(identity: Hashable, call: Call, next: Next) -> Reply:
        flight = flights.get(identity)
        if flight is None or flight.leaving:
            own = replace(call, attempt=call.attempt.fresh())  # whoever leaves first, the work has its own record
            flight = flights.start(identity, lambda _: next(own), own.attempt)
        elif flight.waiting > FOLLOWERS:
            return await next(call)
        return await flights.join(flight, call.attempt)

    return stage
