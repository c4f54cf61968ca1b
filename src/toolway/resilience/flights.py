"""Work that several callers wait for. It goes on while anyone waits, and is cancelled when the last one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from toolway.errors import Certainty
from toolway.model import Attempt, Reply

FAREWELL: Final = 0.5  # seconds


class Flight:
    work: asyncio.Future[Reply]

    def __init__(self, attempt: Attempt, label: str) -> None:
        self.attempt = attempt  # of the call that is being made
        self.label = label  # what the call is, for those who want to join
        self.waiting = 0
        self.leaving = False  # the last one has left: it is being cancelled, and nobody can join
        self._busy = False

    def cancel(self) -> None:
        self.leaving = True
        if not self._busy:
            self.work.cancel()

    def begin_whole(self) -> None:
        """The work comes to a part that is done as a whole: who cancels it waits until `end_whole`."""
        self._busy = True

    def end_whole(self) -> None:
        """Raises `CancelledError` where the work was cancelled meanwhile."""
        self._busy = False
        if self.leaving:
            raise asyncio.CancelledError


class Flights:
    def __init__(self) -> None:
        self._flying: dict[Hashable, Flight] = {}

    def __len__(self) -> int:
        return len(self._flying)

    def get(self, key: Hashable) -> Flight | None:
        return self._flying.get(key)

    def start(
        self, key: Hashable, work: Callable[[Flight], Awaitable[Reply]], attempt: Attempt, label: str = ""
    ) -> Flight:
        flight = self._flying[key] = Flight(attempt, label)
        flight.work = asyncio.ensure_future(work(flight))
        flight.work.add_done_callback(lambda _: self._land(key, flight))
        return flight

    async def join(self, flight: Flight, attempt: Attempt) -> Reply:
        """The flight's outcome. A caller who is cancelled leaves the others to it."""
        if attempt is not flight.attempt:
            attempt.leader = flight.attempt
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.work)
        finally:
            flight.waiting -= 1
            if flight.waiting and not flight.work.done():
                attempt.certainty = Certainty.C2  # we leave, and it goes on without us
            elif not flight.work.done():
                flight.cancel()
                # Only then is it known how far the call got, which whoever ends us is about to tell.
                await asyncio.wait({flight.work}, timeout=FAREWELL)

    def _land(self, key: Hashable, flight: Flight) -> None:
        if not flight.work.cancelled():
            flight.work.exception()  # looked at, also where everybody has left
        if self._flying.get(key) is flight:
            del self._flying[key]
