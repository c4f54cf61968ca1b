"""Logins at upstream servers, sealed, for all nodes; and who alone may renew one.

Which logins there are, and of which change, is known in memory (`look`), so that links find out without waiting.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway.cluster.passes import Sealer
from toolway.cluster.record.changes import bump
from toolway.cluster.record.clock import seconds_now
from toolway.cluster.record.envelopes import Envelopes, Unsealable
from toolway.cluster.record.tables import CredentialRow
from toolway.cluster.record.writing import insert_once
from toolway.security.kept import Kept, with_one, without
from toolway.security.shelf import RENEW_LIMIT
from toolway.security.tokens import Credential, Key, packed, unpacked

KIND: Final = "logins"
CLOSING: Final = RENEW_LIMIT + 5.0  # seconds at the end for renewals that are under way


class Credentials:
    """A `TokenStore`; `record_shelf.py` has it shared. Raises `Unsealable`, and what SQLAlchemy raises."""

    def __init__(self, engine: AsyncEngine, sealer: Sealer, tenant: str) -> None:
        self._engine = engine
        self._envelopes = Envelopes(sealer)
        self._tenant = tenant
        self._stamps: dict[str, int] | None = None  # the last change of each; nobody has looked yet
        self._seen = 0
        self._renewals: set[asyncio.Task[Credential]] = set()

    # -- as a store ---------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Credential | None:
        return (await self.read(key.upstream, key.principal)).get(key.issuer)

    async def put(self, key: Key, credential: Credential) -> None:
        await self.change(key.upstream, key.principal, lambda kept: with_one(kept, key.issuer, credential))

    async def remove(self, key: Key) -> None:
        await self.change(key.upstream, key.principal, lambda kept: without(kept, key.issuer))

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        return list(reversed(await self.read(upstream, principal)))

    # -- for those who know that it is shared -------------------------------------------------------------------------

    def go_on(self, renewal: Coroutine[Any, Any, Credential]) -> asyncio.Task[Credential]:
        """Renew to the end, whoever waits for it."""
        task = asyncio.create_task(renewal)
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waited has seen it
        return task

    async def close(self) -> None:
        """Before the way to the database ends: what issuers have given is kept. Bounded, as a renewal is."""
        if self._renewals:
            await asyncio.wait(self._renewals, timeout=CLOSING)

    async def look(self) -> None:
        """Know what has changed since the last look. For the start, and for whoever hears that logins have changed."""
        asked = select(CredentialRow.id, CredentialRow.revision).where(
            CredentialRow.tenant == self._tenant, CredentialRow.revision > self._seen
        )
        async with self._engine.connect() as db:
            rows = (await db.execute(asked)).all()
        self._stamps = self._stamps or {}
        for row in rows:
            self._stamps[row.id] = row.revision
            self._seen = max(self._seen, row.revision)

    def stamp(self, upstream: str, principal: str) -> int | None:
        """Another one after every change, as far as is known; None where nothing was ever kept. Does not wait."""
        return self._stamps.get(_id(upstream, principal)) if self._stamps is not None else 0

    async def read(self, upstream: str, principal: str) -> Kept:
        """By issuer, the last one put last."""
        async with self._engine.connect() as db:
            row = (await db.execute(select(CredentialRow).where(self._is(upstream, principal)))).one_or_none()
        if row is None:
            return {}
        self._know(upstream, principal, row.revision)
        return self._opened(row.sealed, upstream, principal)

    async def change(self, upstream: str, principal: str, change: Callable[[Kept], Kept]) -> None:
        """Read, change and replace, alone. What does not open is replaced: whoever puts something has it."""
        async with self._engine.begin() as db:
            sealed = await self._locked(db, upstream, principal)
            try:
                before = self._opened(sealed, upstream, principal)
            except Unsealable:
                before = {}
            after = change(before)
            if after == before and (before or not sealed):
                return
            revision = await bump(db, KIND, self._tenant)
            values = {"sealed": self._sealed(after, upstream, principal), "revision": revision}
            await db.execute(update(CredentialRow).where(self._is(upstream, principal)).values(values))
        self._know(upstream, principal, revision)

    # -- who alone may renew ------------------------------------------------------------------------------------------

    async def reserve(self, upstream: str, principal: str, seconds: float) -> str | None:
        """A name under which we alone may renew it for so long; None while somebody else may."""
        name = secrets.token_hex(8)
        async with self._engine.begin() as db:
            await self._locked(db, upstream, principal)
            free = and_(self._is(upstream, principal), CredentialRow.renewer_until < seconds_now())
            taken = {"renewer": name, "renewer_until": seconds_now() + seconds}
            done = await db.execute(update(CredentialRow).where(free).values(taken))
            return name if done.rowcount else None

    async def let_go(self, upstream: str, principal: str, name: str) -> None:
        async with self._engine.begin() as db:
            ours = and_(self._is(upstream, principal), CredentialRow.renewer == name)
            await db.execute(update(CredentialRow).where(ours).values(renewer_until=0.0))

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _locked(self, db: AsyncConnection, upstream: str, principal: str) -> str:
        """What is sealed there, and nobody else changes to the end of the transaction."""
        row = {"tenant": self._tenant, "id": _id(upstream, principal)}
        await insert_once(db, CredentialRow, {**row, "sealed": "", "revision": 0, "renewer": "", "renewer_until": 0.0})
        asked = select(CredentialRow.sealed).where(self._is(upstream, principal)).with_for_update()
        return (await db.execute(asked)).scalar_one()

    def _is(self, upstream: str, principal: str) -> ColumnElement[bool]:
        return and_(CredentialRow.tenant == self._tenant, CredentialRow.id == _id(upstream, principal))

    def _know(self, upstream: str, principal: str, revision: int) -> None:
        if self._stamps is not None and revision:
            id = _id(upstream, principal)
            self._stamps[id] = max(revision, self._stamps.get(id, 0))

    def _sealed(self, kept: Kept, upstream: str, principal: str) -> str:
        if not kept:
            return ""
        facts = [[issuer, packed(credential)] for issuer, credential in kept.items()]
        return self._envelopes.seal(facts, "login", self._tenant, upstream, principal)

    def _opened(self, sealed: str, upstream: str, principal: str) -> Kept:
        facts: list[tuple[str, dict[str, Any]]] = (
            self._envelopes.open(sealed, "login", self._tenant, upstream, principal) if sealed else []
        )
        return {issuer: unpacked(each) for issuer, each in facts}


def _id(upstream: str, principal: str) -> str:
    return hashlib.sha256(json.dumps([upstream, principal]).encode()).hexdigest()[:40]
