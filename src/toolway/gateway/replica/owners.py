"""Who owns a place, as far as this node knows. The record is asked where it does not; calls are not held up by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from toolway.cluster.record.places import Held, Place, Places
from toolway.cluster.trouble import Trouble

MOST: Final = 100_000  # places that are remembered


class Owners:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: dict[Place, Held] = {}
        self._asking: dict[Place, asyncio.Task[Held | None]] = {}
        self._trouble = Trouble("the record cannot be asked who owns a server")

    def known(self, place: Place) -> Held | None:
        return self._known.get(place)

    def forget(self, held: Held) -> None:
        """It was not there, or not under this fence."""
        if self._known.get(held.place) == held:
            del self._known[held.place]

    def hear(self, took: Iterable[Held]) -> None:
        """Others told us what they have taken; of interest where we have asked before."""
        for held in took:
            known = self._known.get(held.place)
            if known is not None and held.fence > known.fence:
                self._known[held.place] = held

    async def ask(self, place: Place) -> Held | None:
        """What the record says; None where nobody owns it, or the record does not answer. Asked once for all."""
        asking = self._asking.get(place)
        if asking is None:
            asking = self._asking[place] = asyncio.create_task(self._look_up(place))
            asking.add_done_callback(lambda done: self._asking.pop(place, None))
        return await asyncio.shield(asking)

    async def _look_up(self, place: Place) -> Held | None:
        try:
            found = await self._places.owner(place)
        except Exception as exc:
            self._trouble.say(exc)
            return None
        self._trouble.over()
        if found is not None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[place] = found
        return found

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
