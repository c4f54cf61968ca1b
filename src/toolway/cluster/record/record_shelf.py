"""The shelf of a login in the record: whoever needs another token, at whatever node, has it renewed once for all.

An issuer that rotates refresh tokens takes each of them once, and a second use for theft. So one node at a time may
renew, for a time that is longer than a renewal can take; whoever comes after it looks first whether it is done. A node
that dies meanwhile holds the others up until that time is over. One that was stopped meanwhile finds by its own clock
that its time is over, and sends nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from toolway.addresses import Addresses
from toolway.cluster.boot_clock import boot_time
from toolway.cluster.record.credentials import Credentials
from toolway.model import NotAuthorized
from toolway.security.kept import in_place_of
from toolway.security.shelf import RENEW_LIMIT, Now, Shelf, renewed_by_issuer, store_failed
from toolway.security.tokens import Credential

MARGIN: Final = 2.0  # seconds that the record may take to answer
RESERVED: Final = RENEW_LIMIT + 2 * MARGIN  # seconds for which one node alone may renew
OBTAINING: Final = 2 * RENEW_LIMIT + 2 * MARGIN  # the same for getting a token without a person
PAUSES: Final = (0.05, 0.1, 0.2, 0.5)  # seconds between two tries; the last one again and again


class RecordShelf(Shelf):
    """`clock` goes on while the machine sleeps and while we are stopped."""

    def __init__(
        self,
        store: Credentials,
        upstream: str,
        principal: str,
        now: Now = time.time,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        super().__init__(store, upstream, principal, now)
        self._tokens = store
        self._clock = clock
        self._seen: int | None = None

    @property
    def may_hold(self) -> bool:
        return self._tokens.stamp(self._upstream, self._principal) is not None

    def changed(self) -> bool:
        return self._tokens.stamp(self._upstream, self._principal) != self._seen

    async def load(self) -> Credential | None:
        found = await super().load()
        self._seen = self._tokens.stamp(self._upstream, self._principal)
        return found

    async def keep(self, credential: Credential) -> None:
        await super().keep(credential)
        self._seen = self._tokens.stamp(self._upstream, self._principal)

    async def renew(self, held: Credential, reach: Addresses) -> Credential:
        """Whoever leaves does not end it: what the issuer answers must be kept."""
        return await asyncio.shield(self._tokens.go_on(self._renewed(held, reach)))

    async def _renewed(self, held: Credential, reach: Addresses) -> Credential:
        async with self._reserved(RESERVED) as until:
            found, is_done = await self._look_again(held)
            if is_done:
                return found
            await self._renew(found, reach, until)
        return await self.load() or found

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._reserved(OBTAINING):
            yield

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _renew(self, held: Credential, reach: Addresses, until: float) -> None:
        """Raises `NotAuthorized`."""
        if self._clock() > until - RENEW_LIMIT - MARGIN:
            raise NotAuthorized(
                "this node was held up while it renewed the token", code="E-AUTH-SERVER", fix="try again"
            )
        try:
            new = await renewed_by_issuer(held, reach, self._now)
        except NotAuthorized as trouble:
            if trouble.code == "E-AUTH-LOGIN":
                await self._put(held, replace(held, refresh=None))  # nobody has to hear it again from the issuer
            raise
        await self._put(held, new)

    async def _put(self, held: Credential, new: Credential) -> None:
        in_place = partial(in_place_of, held, new)
        for pause in (0.1, 0.5, 1.0, None):  # this is the only copy
            try:
                return await self._tokens.change(self._upstream, self._principal, in_place)
            except Exception as exc:
                if pause is None:
                    raise store_failed(exc) from exc
                await asyncio.sleep(pause)
        return None

    @asynccontextmanager
    async def _reserved(self, seconds: float) -> AsyncIterator[float]:
        """While we alone may renew: until when, by our clock. Raises `NotAuthorized`."""
        name, until = await self._reserve(seconds)
        try:
            yield until
        finally:
            with suppress(Exception):  # then its time ends it
                await self._tokens.let_go(self._upstream, self._principal, name)

    async def _reserve(self, seconds: float) -> tuple[str, float]:
        give_up = self._clock() + seconds + MARGIN  # longer than anybody may have it
        tried = 0
        while True:
            asked_at = self._clock()
            try:
                name = await self._tokens.reserve(self._upstream, self._principal, seconds)
            except Exception as exc:
                raise store_failed(exc) from exc
            if name is not None:
                return name, asked_at + seconds
            if asked_at > give_up:
                reason = f"other nodes have been renewing the token for {seconds:.0f} s"
                raise NotAuthorized(reason, code="E-AUTH-SERVER", fix="try again")
            await asyncio.sleep(PAUSES[min(tried, len(PAUSES) - 1)])
            tried += 1


class RecordTokens(Credentials):
    """The store of tokens of a hub, with a shelf for each login."""

    def shelf(self, upstream: str, principal: str, now: Now = time.time) -> Shelf:
        return RecordShelf(self, upstream, principal, now)
