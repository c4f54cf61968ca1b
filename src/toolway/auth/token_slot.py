"""The storage slot for one server and principal's credential: load, save, and refresh.

`TokenSlot` works with any store that only one process uses. `shared_token_slot.py` has the slot for the store on
disk, where one process refreshes for all of a user's processes.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, runtime_checkable

from toolway.auth.refresh import parse_refresh_response, refresh_request
from toolway.auth.token_store import Credential, MemoryTokenStore, TokenKey, TokenStore
from toolway.network import NetworkPolicy
from toolway.types import AuthError

REFRESH_TIMEOUT_S: Final = 10.0  # seconds for a token refresh

Clock = Callable[[], float]


class TokenSlot:
    """Credential of one server and principal, in a token store that only this process changes."""

    def __init__(self, store: TokenStore, upstream: str, principal: str, now: Clock = time.time) -> None:
        self._store = store
        self._upstream = upstream
        self._principal = principal
        self._now = now

    @property
    def may_have_token(self) -> bool:
        """Return True if the store may have a token for this server and principal. Does not block."""
        return not isinstance(self._store, MemoryTokenStore) or len(self._store) > 0

    def has_changed(self) -> bool:
        """Return True if another process changed the stored credential since `load`. Never blocks."""
        return False

    async def load(self) -> Credential | None:
        """Return the credential that was saved last for this server and principal, or None.

        Raises `AuthError` if the token store fails.
        """
        try:
            for issuer in (await self._store.issuers(self._upstream, self._principal))[:1]:
                return await self._store.get(TokenKey(issuer, self._upstream, self._principal))
        except Exception as exc:
            raise token_store_error(exc) from exc
        return None

    async def save(self, credential: Credential) -> None:
        """Save a credential as the newest for this server and principal. Raises `AuthError` if the store fails."""
        try:
            await self._store.put(TokenKey(credential.issuer, self._upstream, self._principal), credential)
        except Exception as exc:
            raise token_store_error(exc) from exc

    async def delete(self) -> list[Credential]:
        """Delete all stored credentials of this server and principal, and return them.

        Raises `AuthError` if the token store fails.
        """
        deleted: list[Credential] = []
        try:
            for issuer in await self._store.issuers(self._upstream, self._principal):
                key = TokenKey(issuer, self._upstream, self._principal)
                found = await self._store.get(key)
                await self._store.remove(key)
                deleted += [found] if found is not None else []
        except Exception as exc:
            raise token_store_error(exc) from exc
        return deleted

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Keep other processes from requesting this server and principal's token while the block runs.

        This slot belongs to one process, so it does not lock. A shared slot takes a lock, and raises `AuthError` if
        it does not get the lock in time.
        """
        yield

    async def refresh(self, current: Credential, network_policy: NetworkPolicy) -> Credential:
        """Refresh `current` at its issuer, save the new credential and return it.

        Raises `AuthError` if the issuer does not refresh it, or if the store fails; `current` then stays
        stored.
        """
        new = await request_refresh(current, network_policy, self._now)
        await self.save(new)
        return new

    async def _reload_locked(self, current: Credential) -> tuple[Credential, bool]:
        """Load the stored credential again, while this process holds the refresh lock.

        Return the credential, and True if another process already refreshed it. Raises `AuthError` if the login
        was removed, or if it has no refresh token any more.
        """
        found = await self.load()
        if found is None:
            raise AuthError("the login was removed", code="E-AUTH-LOGIN")
        if found.access != current.access and (found.renew_at is None or self._now() < found.renew_at):
            return found, True
        if found.refresh is None:
            raise AuthError("the login has expired", code="E-AUTH-LOGIN")
        return found, False


@runtime_checkable
class TokenSlotProvider(Protocol):
    """A token store that several processes share. Its slots let one process at a time refresh a token."""

    def token_slot(self, upstream: str, principal: str, now: Clock) -> TokenSlot:
        """Return the storage slot for the credential of one server (`upstream`) and principal."""
        ...


async def request_refresh(current: Credential, network_policy: NetworkPolicy, now: Clock) -> Credential:
    """Send a refresh request to the issuer and return the new credential.

    Raises `AuthError` if the issuer cannot be reached, rejects the request, or sends an invalid response.
    """
    form, headers = refresh_request(current)
    post = (await import_lazily("oauth_http")).post
    status, body = await post(current.token_url, form, headers, network_policy, REFRESH_TIMEOUT_S)
    return parse_refresh_response(current, status, body, now())


async def import_lazily(module: str) -> Any:
    """Import a module of `toolway.auth` in a thread, because OAuth code is slow to load."""
    return await asyncio.to_thread(importlib.import_module, f"toolway.auth.{module}")


def token_store_error(exc: Exception) -> AuthError:
    """Return the `AuthError` for an exception that the token store raised.

    Toolway errors are shown with their detail. Of other exceptions only the class is shown, because their text may
    contain a token.
    """
    message, detail, hint = getattr(exc, "message", ""), getattr(exc, "detail", ""), getattr(exc, "hint", "")
    description = ": ".join(part for part in (message, detail) if part) or type(exc).__name__
    reason = f"the token store failed: {description}"
    return AuthError(reason, code="E-AUTH-STORE", hint=hint or "check the token store")
