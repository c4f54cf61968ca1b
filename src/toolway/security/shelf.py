"""Where the credential of one server and one principal lies: read, replaced and renewed.

Any store is good for one process (`Shelf`). Of the store on disk all processes of a user have a shelf
(`shared_shelf.py`), which renews once for all of them.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, runtime_checkable

from toolway.addresses import Addresses
from toolway.model import NotAuthorized
from toolway.security.renewal import renewal, renewed
from toolway.security.tokens import Credential, Key, MemoryTokens, TokenStore

RENEW_LIMIT: Final = 10.0  # seconds for renewing a token

Now = Callable[[], float]


class Shelf:
    """Of a store that nobody else changes."""

    def __init__(self, store: TokenStore, upstream: str, principal: str, now: Now = time.time) -> None:
        self._store = store
        self._upstream = upstream
        self._principal = principal
        self._now = now

    @property
    def may_hold(self) -> bool:
        """Whether there can be something without anybody of ours having put it there. Does not wait."""
        return not isinstance(self._store, MemoryTokens) or len(self._store) > 0

    def changed(self) -> bool:
        """Whether somebody else has changed what is here since it was read. Does not wait."""
        return False

    async def load(self) -> Credential | None:
        """The last one that was put here. Raises `NotAuthorized`."""
        try:
            for issuer in (await self._store.issuers(self._upstream, self._principal))[:1]:
                return await self._store.get(Key(issuer, self._upstream, self._principal))
        except Exception as exc:
            raise store_failed(exc) from exc
        return None

    async def keep(self, credential: Credential) -> None:
        """Raises `NotAuthorized`."""
        try:
            await self._store.put(Key(credential.issuer, self._upstream, self._principal), credential)
        except Exception as exc:
            raise store_failed(exc) from exc

    async def drop(self) -> list[Credential]:
        """Keep nothing any more; what was kept. Raises `NotAuthorized`."""
        dropped: list[Credential] = []
        try:
            for issuer in await self._store.issuers(self._upstream, self._principal):
                key = Key(issuer, self._upstream, self._principal)
                found = await self._store.get(key)
                await self._store.remove(key)
                dropped += [found] if found is not None else []
        except Exception as exc:
            raise store_failed(exc) from exc
        return dropped

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """While nobody else gets a credential for the same. Raises `NotAuthorized`."""
        yield

    async def renew(self, held: Credential, reach: Addresses) -> Credential:
        """What replaces `held`, which is kept where that fails. Raises `NotAuthorized`."""
        new = await renewed_by_issuer(held, reach, self._now)
        await self.keep(new)
        return new

    async def _look_again(self, held: Credential) -> tuple[Credential, bool]:
        """What is here by the time we alone may renew `held`, and whether it is renewed already: whoever had the turn
        before us may have done it. Raises `NotAuthorized`."""
        found = await self.load()
        if found is None:
            raise NotAuthorized("the login was taken back", code="E-AUTH-LOGIN")
        if found.access != held.access and (found.renew_at is None or self._now() < found.renew_at):
            return found, True
        if found.refresh is None:
            raise NotAuthorized("the login is over", code="E-AUTH-LOGIN")
        return found, False


@runtime_checkable
class HasShelves(Protocol):
    """A store that others change too, and that knows how to renew once for all of them."""

    def shelf(self, upstream: str, principal: str, now: Now) -> Shelf: ...


async def renewed_by_issuer(held: Credential, reach: Addresses, now: Now) -> Credential:
    """Ask the issuer. Raises `NotAuthorized`."""
    form, headers = renewal(held)
    post = (await part("fetching")).post
    status, body = await post(held.token_url, form, headers, reach, RENEW_LIMIT)
    return renewed(held, status, body, now())


async def part(module: str) -> Any:
    """A part of OAuth, which is large: not loaded before it is needed, and then aside, so that no call waits for it."""
    return await asyncio.to_thread(importlib.import_module, f"toolway.security.{module}")


def store_failed(exc: Exception) -> NotAuthorized:
    """The evidence of an error of ours is for people; that of another may hold what was to be kept."""
    what, evidence, fix = getattr(exc, "what", ""), getattr(exc, "evidence", ""), getattr(exc, "fix", "")
    said = ": ".join(part for part in (what, evidence) if part) or type(exc).__name__
    reason = f"the store of tokens failed: {said}"
    return NotAuthorized(reason, code="E-AUTH-STORE", fix=fix or "see what is wrong with it")
