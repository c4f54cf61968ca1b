"""The rates of keys across all gateways: tokens are leased from the record ahead of use, so no call waits for it.

`purse.py` says how much a gateway has in hand, and how far the sum of all can be from the rate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from toolway.cluster.asking import Asking
from toolway.cluster.record.rates import Grant, Question
from toolway.gateway.rates import Rate
from toolway.gateway.replica.shared.purse import Purse

LEAST: Final = 0.05  # seconds between two questions to the record
TICK: Final = 0.5  # seconds after which keys are looked at that nobody uses any more
PATIENCE: Final = 2.0  # seconds for an answer of the record
AT_ONCE: Final = 200  # keys in one question
MOST: Final = 10_000  # keys that are in use at the same time; more share one purse, which is refused when it is empty
CLEAN: Final = 3600.0  # seconds between two looks for buckets that nobody has used for days

log = logging.getLogger("toolway.cluster")


class Buckets(Protocol):
    async def settle(self, tenant: str, questions: Sequence[Question]) -> Mapping[str, Grant]: ...

    async def forget_old(self, tenant: str) -> None: ...


class LeasedRates:
    """`Rates` of a gateway in a cluster. `gateways` says how many there are."""

    def __init__(self, buckets: Buckets, tenant: str, gateways: Callable[[], int], now: Callable[[], float]) -> None:
        self._buckets = buckets
        self._tenant = tenant
        self._gateways = gateways
        self._now = now
        self._purses: dict[str, Purse] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._asking = Asking(PATIENCE)
        self._task: asyncio.Task[None] | None = None
        self._cleaned = now()
        self.alone = False  # the record does not answer
        self.questions = 0  # to the record

    def take(self, key: str, rate: Rate) -> float:
        now = self._now()
        purse = self._purses.get(key)
        if purse is None or purse.rate != rate:
            if len(self._purses) >= MOST:
                return LEAST  # for as long as nobody pauses
            purse = self._purses[key] = Purse(rate, self._gateways(), now)
        wait = purse.take(now, alone=self.alone)
        if key not in self._due and purse.wants(now):
            self._due.add(key)
            self._wake.set()
        return wait

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_settling())

    async def close(self) -> None:
        """Give back what is left, if the record is there."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        left = {key: charge for key, purse in self._purses.items() if (charge := purse.closing())}
        with suppress(Exception):
            for some in _in_parts(list(left), AT_ONCE):
                await self._ask([_question(key, self._purses[key], (left[key], 0)) for key in some])
        await self._asking.wait_ended()

    async def _keep_settling(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK if self._purses else CLEAN):
                    await self._wake.wait()
            self._wake.clear()
            self._look()
            for some in _in_parts(sorted(self._due), AT_ONCE):
                await self._settle(some)
            await self._clean()
            await asyncio.sleep(LEAST)

    def _look(self) -> None:
        """Those that want something though nobody calls; and those that nobody uses any more."""
        now = self._now()
        if self.alone:
            self._due.update(islice(self._purses, 1))  # whether the record is back
        for key, purse in list(self._purses.items()):
            if purse.wants(now):
                self._due.add(key)
            elif purse.over(now):
                del self._purses[key]
                self._due.discard(key)
        self.alone = self.alone and bool(self._purses)  # where nobody is counted, nobody is counted alone

    async def _settle(self, keys: Sequence[str]) -> None:
        now = self._now()
        asked = {key: self._purses[key].question(now) for key in keys}
        self._due.difference_update(keys)
        try:
            granted = await self._ask([_question(key, self._purses[key], asked[key]) for key in keys])
        except Exception as exc:
            if not self.alone:
                log.warning("rates are kept by each gateway alone: %s", type(exc).__name__)
            self.alone = True
            for key in keys:
                self._purses[key].unanswered(asked[key][0], self._now())
            return
        self.alone = False
        for key, grant in granted.items():
            self._purses[key].answered(grant.tokens, grant.wait, self._now())

    async def _ask(self, questions: Sequence[Question]) -> Mapping[str, Grant]:
        self.questions += 1
        return await self._asking(self._buckets.settle(self._tenant, questions))

    async def _clean(self) -> None:
        if self._now() - self._cleaned >= CLEAN:
            self._cleaned = self._now()
            try:
                await self._asking(self._buckets.forget_old(self._tenant))
            except Exception as exc:  # no call depends on it
                log.warning("old buckets of rates could not be forgotten: %s", type(exc).__name__)


def _question(key: str, purse: Purse, asked: tuple[float, int]) -> Question:
    return Question(key, purse.rate.calls, purse.rate.pace, *asked)


def _in_parts(all_: Sequence[str], size: int) -> list[Sequence[str]]:
    return [all_[at : at + size] for at in range(0, len(all_), size)]
