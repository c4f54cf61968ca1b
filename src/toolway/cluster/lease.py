"""The lease of a node, kept: asked for, renewed, and let go in time (`tenure.py` says when)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from toolway.cluster.asking import Asking
from toolway.cluster.record.nodes import Card, Nodes
from toolway.cluster.tenure import Tenure, Terms
from toolway.cluster.trouble import Trouble

RETRY: Final = 0.5  # seconds after a record that did not answer


class Lease:
    """`began` and `ended` are told at once, and must not wait; `load` is what the others are told that we run."""

    def __init__(
        self,
        card: Card,
        nodes: Nodes,
        ask: Asking,
        now: Callable[[], float],
        terms: Terms,
        *,
        began: Callable[[], None],
        ended: Callable[[], None],
        load: Callable[[], int],
    ) -> None:
        self._card = card
        self._nodes = nodes
        self._ask = ask
        self._now = now
        self._terms = terms
        self._began = began
        self._ended = ended
        self._load = load
        self._tenure = Tenure(terms)
        self._trouble = Trouble("the record does not answer, and the lease is not renewed")

    @property
    def epoch(self) -> int | None:
        """The number under which we own at this moment, by our own clock; None when we own nothing."""
        return self._tenure.epoch(self._now())

    async def keep(self) -> None:
        while True:
            asked_at = self._now()
            try:
                await self._renew(self._tenure.epoch(asked_at), asked_at)
                self._trouble.over()
                wait = self._terms.renew if self.epoch is not None else 0.0
            except Exception as exc:
                self._trouble.say(exc)
                wait = min(RETRY, self._terms.renew)
            if not await self._sleep_while_held(wait):
                self._ended()

    async def leave(self) -> None:
        """What we owned is free at once, if the record can be told."""
        epoch = self.epoch
        self._tenure.refused()
        if epoch is not None:
            with suppress(Exception):
                await self._ask(self._nodes.leave(self._card.id, epoch))

    async def _renew(self, epoch: int | None, asked_at: float) -> None:
        if epoch is None:
            self._ended()
            self._tenure.began(await self._ask(self._nodes.join(self._card)), asked_at)
            self._began()
        elif await self._ask(self._nodes.renew(self._card.id, epoch, self._load())):
            self._tenure.renewed(asked_at, self._now())
        else:
            self._tenure.refused()

    async def _sleep_while_held(self, seconds: float) -> bool:
        """Whether we have a lease; woken when it ends, so that what we own is let go in time."""
        await asyncio.sleep(max(0.0, min(seconds, self._left()) if self._left() > 0 else seconds))
        return self.epoch is not None

    def _left(self) -> float:
        return self._tenure.ends_at() - self._now()
