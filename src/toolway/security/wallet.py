"""The credential for one server and one principal: known without waiting, renewed once for all who need it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from toolway.config.spec import OAuth
from toolway.model import NotAuthorized, Refusal
from toolway.security.patience import Patience, wants_more_scope
from toolway.security.renewal import renewal, renewed
from toolway.security.tokens import Credential, Key, TokenStore

#: Called with (server, the address to log in at). Brings a person there and returns the address at which the login
#: ended, which is `redirect_uri` with what the authorization server added.
Login: TypeAlias = Callable[[str, str], str | Awaitable[str]]
Now: TypeAlias = Callable[[], float]

RENEW_LIMIT: Final = 10.0  # seconds for renewing a token
LOGIN_LIMIT: Final = 300.0  # seconds for all of a login; a person is slow
CALM: Final = 5.0  # seconds after a renewal that failed in which the next one is not tried

_NOBODY: Final = "give the hub a way to log in, Hub(…, login=…), or a token under `headers`"


class Wallet:
    """An `Authorizer`. Times are of the wall clock, because tokens end by it."""

    def __init__(
        self, server: str, url: str, principal: str, settings: OAuth, store: TokenStore, login: Login | None, now: Now
    ) -> None:
        self._server = server
        self._url = url
        self._upstream = f"{server} {url}"
        self._principal = principal
        self._settings = settings
        self._store = store
        self._login = login
        self._now = now
        self._patience = Patience()
        self._loaded = False
        self._credential: Credential | None = None
        self._spent: str | None = None  # the refresh token that the issuer no longer takes
        self._trouble: tuple[float, NotAuthorized] | None = None  # until when a failed renewal is not tried again
        self._work: asyncio.Task[None] | None = None

    @property
    def interactive(self) -> bool:
        return self._login is not None and self._settings.grant == "authorization_code"

    # -- what the link asks -------------------------------------------------------------------------------------------

    async def authorization(self) -> str:
        if not self._loaded:
            await self._once(self._load)
        held = self._credential
        if held is None:
            return ""
        if held.renew_at is None or self._now() < held.renew_at or not self._renewable(held):
            return held.header
        try:
            await self._once(partial(self._renew, held))
        except NotAuthorized:
            if held.expires_at is None or self._now() >= held.expires_at:
                raise
        return self._credential.header if self._credential is not None else ""

    async def challenged(self, refusal: Refusal) -> bool:
        await self._idle()  # whoever was refused meanwhile gets what is being fetched now
        if refusal.sent != self._header:
            return True
        if not self._patience.grants(refusal, self._now()):
            return False
        await self._once(partial(self._replace, refusal))
        return refusal.sent != self._header

    def refused_again(self, refusal: Refusal) -> None:
        if refusal.sent == self._header:
            self._patience.ends_for(refusal.sent, self._now())

    @property
    def _header(self) -> str:
        return self._credential.header if self._credential is not None else ""

    # -- one at a time ------------------------------------------------------------------------------------------------

    async def _once(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work`, or wait for what is under way, which is the same or makes it needless. It belongs to nobody who
        waits: one who leaves does not end it for the others. Raises `NotAuthorized`."""
        if self._work is None:
            self._work = asyncio.create_task(work())
            self._work.add_done_callback(self._ended)
        await asyncio.shield(self._work)

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if not work.cancelled():
            work.exception()  # whoever waited has seen it

    async def _idle(self) -> None:
        if self._work is not None:
            await asyncio.wait({self._work})

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        for issuer in (await self._store.issuers(self._upstream, self._principal))[:1]:
            self._credential = await self._store.get(Key(issuer, self._upstream, self._principal))
        self._loaded = True

    async def _keep(self, credential: Credential) -> None:
        await self._store.put(Key(credential.issuer, self._upstream, self._principal), credential)
        self._credential = credential
        self._spent, self._trouble = None, None

    def _renewable(self, held: Credential) -> bool:
        return held.refresh is not None and held.refresh != self._spent

    async def _renew(self, held: Credential) -> None:
        """Replace `held`, or raise `NotAuthorized` and keep it."""
        if self._trouble is not None and self._now() < self._trouble[0]:
            raise self._trouble[1]
        import httpx2  # only where there is OAuth

        from toolway.security.fetching import fetch

        form, headers = renewal(held)
        try:
            answer = await fetch(httpx2.Request("POST", held.token_url, data=form, headers=headers), RENEW_LIMIT)
            new = renewed(held, answer.status_code, answer.content, self._now())
        except NotAuthorized as trouble:
            if trouble.code == "E-AUTH-LOGIN":
                self._spent = held.refresh
            self._trouble = self._now() + CALM, trouble
            raise
        await self._keep(new)

    async def _replace(self, refusal: Refusal) -> None:
        """Get another credential than the one refused. Raises `NotAuthorized`."""
        from toolway.security import flow

        wanted = flow.Wanted(self._url, self._settings, refusal, self._credential)
        held = self._credential
        if held is not None and self._renewable(held) and not wants_more_scope(refusal):
            trusted = await self._trusted_issuers(wanted)
            if trusted is None or flow.trusts(trusted, held.issuer):
                try:
                    return await self._renew(held)
                except NotAuthorized as trouble:
                    if trouble.code != "E-AUTH-LOGIN":
                        raise
        self._must_be_able()
        ask = self._ask if self._login is not None else None
        try:
            async with asyncio.timeout(LOGIN_LIMIT if self.interactive else RENEW_LIMIT):
                await self._keep(await flow.obtain(wanted, ask, self._now))
        except TimeoutError:
            reason = "nobody logged in" if self.interactive else "the authorization server took too long"
            raise NotAuthorized(f"{reason} in time", code="E-AUTH-FLOW", fix="try again") from None
        return None

    async def _trusted_issuers(self, wanted: Any) -> list[str] | None:
        from toolway.security import flow

        try:
            return await flow.issuers_of(wanted)
        except NotAuthorized:
            return None  # that it cannot be asked changes nothing about whom it named before

    def _must_be_able(self) -> None:
        if self._settings.grant == "authorization_code" and self._login is None:
            raise NotAuthorized(f"{self._server} wants a login", code="E-AUTH-LOGIN", fix=_NOBODY)

    async def _ask(self, url: str) -> str:
        assert self._login is not None
        try:
            ended_at = self._login(self._server, url)
            return await ended_at if inspect.isawaitable(ended_at) else ended_at
        except NotAuthorized:
            raise
        except Exception as exc:
            reason = f"the login callback failed: {type(exc).__name__}"
            raise NotAuthorized(reason, code="E-AUTH-FLOW", fix="see what the callback does") from exc
