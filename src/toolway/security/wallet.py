"""The credential for one server and one principal: known without waiting, renewed once for all who need it."""

from __future__ import annotations

import asyncio
import importlib
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
CALM: Final = 5.0  # seconds after a failure in which the issuer is not asked again
CALM_LOGIN: Final = 300.0  # the same for a person

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
        self._failed: tuple[float, NotAuthorized] | None = None  # the same for getting another credential
        self._work: asyncio.Task[None] | None = None

    @property
    def interactive(self) -> bool:
        return self._login is not None and self._settings.grant == "authorization_code"

    # -- what the link asks -------------------------------------------------------------------------------------------

    async def authorization(self) -> str:
        while not self._loaded:
            await self._once(self._load)
        held = self._credential
        if held is None:
            return ""
        if held.renew_at is None or self._now() < held.renew_at or not self._renewable(held):
            return held.header
        try:
            await self._once(partial(self._renew, held))
        except NotAuthorized as trouble:
            # A login that is over is answered by the next one, which the server's refusal will bring about.
            over = trouble.code == "E-AUTH-LOGIN" and self._can_obtain
            if not over and (held.expires_at is None or self._now() >= held.expires_at):
                raise
        return self._credential.header if self._credential is not None else ""

    async def challenged(self, refusal: Refusal) -> bool:
        while self._work is not None:  # whoever was refused meanwhile gets what is being fetched now
            await asyncio.wait({self._work})
        if refusal.sent != self._header:
            return True
        if not self._patience.grants(refusal, self._now()):
            return False
        await self._once(partial(self._replace, refusal))
        return refusal.sent != self._header

    def refused_again(self, refusal: Refusal) -> None:
        if refusal.sent == self._header:
            self._patience.ends_for(refusal.sent, self._now())

    def forgive(self) -> None:
        """Forget what was refused and what failed."""
        self._patience = Patience()
        self._spent = self._trouble = self._failed = None

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

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        try:
            for issuer in (await self._store.issuers(self._upstream, self._principal))[:1]:
                self._credential = await self._store.get(Key(issuer, self._upstream, self._principal))
        except Exception as exc:
            raise _store_failed(exc) from exc
        self._loaded = True

    async def _keep(self, credential: Credential) -> None:
        try:
            await self._store.put(Key(credential.issuer, self._upstream, self._principal), credential)
        except Exception as exc:
            raise _store_failed(exc) from exc
        self._credential = credential
        self._spent = self._trouble = self._failed = None

    def _renewable(self, held: Credential) -> bool:
        return held.refresh is not None and held.refresh != self._spent

    async def _renew(self, held: Credential) -> None:
        """Replace `held`, or raise `NotAuthorized` and keep it."""
        if self._trouble is not None and self._now() < self._trouble[0]:
            raise self._trouble[1]
        form, headers = renewal(held)
        try:
            post = (await _loaded("fetching")).post
            status, body = await post(held.token_url, form, headers, RENEW_LIMIT)
            new = renewed(held, status, body, self._now())
        except NotAuthorized as trouble:
            if trouble.code == "E-AUTH-LOGIN":
                self._spent = held.refresh
            self._trouble = self._now() + CALM, trouble
            raise
        await self._keep(new)

    async def _replace(self, refusal: Refusal) -> None:
        """Get another credential than the one refused. Raises `NotAuthorized`."""
        flow = await _loaded("flow")
        wanted = flow.Wanted(self._url, self._settings, refusal, self._credential)
        held = self._credential
        may_renew = held is not None and self._renewable(held) and not wants_more_scope(refusal)
        if held is not None and may_renew and await flow.still_trusts(wanted, held.issuer):
            try:
                await self._renew(held)
                return
            except NotAuthorized as trouble:
                if trouble.code != "E-AUTH-LOGIN":
                    raise
        self._must_be_able()
        await self._obtain(wanted)

    async def _obtain(self, wanted: Any) -> None:
        if self._failed is not None and self._now() < self._failed[0]:
            raise self._failed[1]
        flow = await _loaded("flow")
        ask = self._ask if self._login is not None else None
        try:
            async with asyncio.timeout(LOGIN_LIMIT if self.interactive else RENEW_LIMIT):
                await self._keep(await flow.obtain(wanted, ask, self._now))
        except TimeoutError:
            reason = "nobody logged in" if self.interactive else "the authorization server took too long"
            trouble = NotAuthorized(f"{reason} in time", code="E-AUTH-FLOW", fix="try again")
            self._failed = self._now() + self._calm(trouble), trouble
            raise trouble from None
        except NotAuthorized as trouble:
            self._failed = self._now() + self._calm(trouble), trouble
            raise

    def _calm(self, trouble: NotAuthorized) -> float:
        return CALM_LOGIN if self.interactive and trouble.code != "E-AUTH-SERVER" else CALM

    @property
    def _can_obtain(self) -> bool:
        return self._login is not None or self._settings.grant == "client_credentials"

    def _must_be_able(self) -> None:
        if not self._can_obtain:
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


async def _loaded(module: str) -> Any:
    """A part of OAuth, which is large: not loaded before it is needed, and then aside, so that no call waits for it."""
    return await asyncio.to_thread(importlib.import_module, f"toolway.security.{module}")


def _store_failed(exc: Exception) -> NotAuthorized:
    reason = f"the store of tokens failed: {type(exc).__name__}"
    return NotAuthorized(reason, code="E-AUTH-STORE", fix="see what is wrong with it")
