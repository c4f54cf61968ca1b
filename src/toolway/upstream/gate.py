"""Who starts when many want to: a few processes at a time, and at once whoever is being waited for.

Forty servers that start together fight for the same cores, and the one that somebody needs now is as late as the
rest. So a start takes a turn, keeps it until the server answers or for a moment at most, and a call lets its server
pass the line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from toolway.upstream.flag import Flag

HOLD: Final = 1.0  # a server that has not answered by then no longer keeps others waiting


class StartGate:
    def __init__(self, turns: int) -> None:
        self._free = turns
        self._line: deque[asyncio.Future[None]] = deque()

    async def enter(self, urgent: Flag) -> Turn:
        """Wait for a turn, or not at all as soon as `urgent` is set."""
        turn = Turn(self)
        if self._free > 0:
            self._free -= 1
            turn.hold()
            return turn
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        hurry = asyncio.ensure_future(urgent.wait())
        either: set[asyncio.Future[Any]] = {place, hurry}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if place.done():
                turn.hold()
            return turn
        except asyncio.CancelledError:
            if place.done():
                self.leave()
            raise
        finally:
            hurry.cancel()
            if not place.done():
                self._line.remove(place)

    def leave(self) -> None:
        if self._line:
            self._line.popleft().set_result(None)
        else:
            self._free += 1


class Turn:
    """A turn at the gate; given back once, by `end` or by time."""

    def __init__(self, gate: StartGate) -> None:
        self._gate = gate
        self._timer: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HOLD, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._gate.leave()
