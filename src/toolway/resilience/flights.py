"""Work that several callers wait for. It goes on while anyone waits, and is cancelled when the last one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from toolway.model import Reply


class Flight:
    def __init__(self, work: asyncio.Future[Reply]) -> None:
        self.work = work
        self.waiting = 0


class Flights:
    def __init__(self) -> None:
        self._flying: dict[Hashable, Flight] = {}

    def get(self, key: Hashable) -> Flight | None:
        return self._flying.get(key)

    def start(self, key: Hashable, work: Callable[[], Awaitable[Reply]]) -> Flight:
        flight = Flight(asyncio.ensure_future(work()))
        self._flying[key] = flight
        flight.work.add_done_callback(lambda _: self._flying.pop(key, None))
        return flight

    async def join(self, flight: Flight) -> Reply:
        """The flight's outcome. A caller who is cancelled leaves the others to it."""
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.work)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.work.done():
                flight.work.cancel()
