"""The credential for one server and one principal: known without waiting, renewed once for all who need it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from toolway.addresses import PUBLIC, Addresses
from toolway.config.spec import OAuth
from toolway.model import NotAuthorized, Refusal
from toolway.secrets import remember
from toolway.security.patience import Patience, wants_more_scope
from toolway.security.renewal import revocation
from toolway.security.shelf import RENEW_LIMIT, Now, Shelf, part
from toolway.security.tokens import Credential

#: Called with (server, the address to log in at). Brings a person there and returns the address at which the login
#: ended, which is `redirect_uri` with what the authorization server added.
Login: TypeAlias = Callable[[str, str], str | Awaitable[str]]

LOGIN_LIMIT: Final = 300.0  # seconds for all of a login; a person is slow
CALM: Final = 5.0  # seconds after a failure in which the issuer is not asked again
CALM_LOGIN: Final = 300.0  # the same for a person


@dataclass(frozen=True, slots=True)
class Whose:
    """What a wallet is for."""

    server: str
    url: str
    principal: str = ""  # empty for the hub's own
    for_all: bool = False  # whether every caller of a gateway is served by it
    reach: Addresses = PUBLIC  # where requests for it may go


class Wallet:
    """An `Authorizer`. Times are of the wall clock, because tokens end by it."""

    def __init__(
        self,
        whose: Whose,
        settings: OAuth,
        shelf: Shelf,
        login: Login | None,
        now: Now,
        on_awake: Callable[[], None],
        on_wanting: Callable[[], None],
    ) -> None:
        self.whose = whose
        self._settings = settings
        self._shelf = shelf
        self._login = login
        self._now = now
        self._on_awake = on_awake
        self._on_wanting = on_wanting
        self.wants_login = False  # somebody was told to log in
        #: Whether there is nothing to send and nobody has asked for it, as with most servers: then links go by us.
        self.idle = login is None and settings == OAuth() and not shelf.may_hold
        self._patience = Patience()
        self._loaded = False
        self._credential: Credential | None = None
        self._spent: str | None = None  # the refresh token that the issuer no longer takes
        self._trouble: tuple[float, NotAuthorized] | None = None  # until when a failed renewal is not tried again
        self._failed: tuple[float, NotAuthorized] | None = None  # the same for getting another credential
        self._work: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self.idle = False
        self._on_awake()

    def serves(self, caller: str) -> bool:
        return self.whose.for_all or caller in ("", self.whose.principal)

    @property
    def interactive(self) -> bool:
        return self._login is not None and self._settings.grant == "authorization_code"

    # -- what the link asks -------------------------------------------------------------------------------------------

    async def authorization(self) -> str:
        while not self._loaded or self._shelf.changed():
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

    def login_came(self) -> bool:
        """Whether somebody has logged in elsewhere, who was wanted."""
        if self.wants_login and self._shelf.changed() and self._shelf.may_hold:
            self.wants_login = False
            self.forgive()
            return True
        return False

    # -- what a person asks -------------------------------------------------------------------------------------------

    async def log_in(self, login: Login, headers: Mapping[str, str], redirect_uri: str) -> Credential:
        """Let a person log in, whatever there is already. Raises `NotAuthorized`."""
        flow = await part("flow")
        settings = replace(self._settings, redirect_uri=redirect_uri)
        refusal = await flow.asked_for(self.whose.url, headers, self.whose.reach)
        held = await self._shelf.load()
        before = replace(held, scope=None) if held is not None else None  # who we are there, not what we may
        wanted = flow.Wanted(self.whose.url, settings, refusal, before, self.whose.reach)
        try:
            async with asyncio.timeout(LOGIN_LIMIT):
                credential: Credential = await flow.obtain(wanted, partial(self._ask, login), self._now)
        except TimeoutError:
            raise NotAuthorized("nobody logged in in time", code="E-AUTH-FLOW", fix="try again") from None
        await self._keep(credential)
        return credential

    async def log_out(self) -> bool:
        """Forget the login, and take it back where its issuer can do that; whether there was one. Raises
        `NotAuthorized`."""
        dropped = await self._shelf.drop()
        self._take(None)
        for credential in dropped:
            await self._take_back(credential)
        return bool(dropped)

    async def _take_back(self, credential: Credential) -> None:
        """Whether the issuer hears it or not, we have forgotten it."""
        if credential.revoke_url is None:
            return
        form, headers = revocation(credential)
        with suppress(NotAuthorized):
            await (await part("fetching")).post(credential.revoke_url, form, headers, self.whose.reach, RENEW_LIMIT)

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
        """What lies on the shelf: another process may have logged in or out, or renewed."""
        found = await self._shelf.load()
        if found != self._credential:
            self._take(found)
        self._loaded = True

    def _take(self, credential: Credential | None) -> None:
        self._credential = credential
        self._spent = self._trouble = self._failed = None
        if credential is not None:
            for secret in (credential.access, credential.refresh, credential.client.secret):
                remember(secret or "")  # whoever repeats it is not repeated
            self.wants_login = False
            self.wake()

    async def _keep(self, credential: Credential) -> None:
        await self._shelf.keep(credential)
        self._take(credential)

    def _renewable(self, held: Credential) -> bool:
        return held.refresh is not None and held.refresh != self._spent

    async def _renew(self, held: Credential) -> None:
        """Replace `held`, or raise `NotAuthorized` and keep it."""
        if self._trouble is not None and self._now() < self._trouble[0]:
            raise self._trouble[1]
        try:
            self._take(await self._shelf.renew(held, self.whose.reach))
        except NotAuthorized as trouble:
            if trouble.code == "E-AUTH-LOGIN":
                self._spent = held.refresh
                trouble = self._log_in_again(trouble.reason)
            self._trouble = self._now() + CALM, trouble
            raise trouble from None

    async def _replace(self, refusal: Refusal) -> None:
        """Get another credential than the one refused. Raises `NotAuthorized`."""
        self.wake()
        await self._load()
        held = self._credential
        if self._header != refusal.sent:
            return  # another process has it already
        if held is None:
            self._must_be_able()
        flow = await part("flow")
        wanted = flow.Wanted(self.whose.url, self._settings, refusal, held, self.whose.reach)
        may_renew = held is not None and self._renewable(held) and not wants_more_scope(refusal)
        if held is not None and may_renew and await flow.still_trusts(wanted, held.issuer):
            try:
                await self._renew(held)
                return
            except NotAuthorized as trouble:
                if trouble.code != "E-AUTH-LOGIN" or not self._can_obtain:
                    raise
        self._must_be_able()
        await self._obtain(wanted, partial(self._ask, self._login) if self._login is not None else None)

    async def _obtain(self, wanted: Any, ask: Any) -> None:
        if self._failed is not None and self._now() < self._failed[0]:
            raise self._failed[1]
        flow = await part("flow")
        try:
            async with asyncio.timeout(LOGIN_LIMIT if self.interactive else 2 * RENEW_LIMIT):
                if self._settings.grant == "client_credentials":
                    await self._obtain_alone(wanted)
                else:
                    await self._keep(await flow.obtain(wanted, ask, self._now))
        except TimeoutError:
            reason = "nobody logged in" if self.interactive else "the authorization server took too long"
            trouble = NotAuthorized(f"{reason} in time", code="E-AUTH-FLOW", fix="try again")
            self._failed = self._now() + self._calm(trouble), trouble
            raise trouble from None
        except NotAuthorized as trouble:
            self._failed = self._now() + self._calm(trouble), trouble
            raise

    async def _obtain_alone(self, wanted: Any) -> None:
        """One process gets the token for all that share the shelf."""
        flow = await part("flow")
        async with self._shelf.alone():
            await self._load()
            if self._credential == wanted.before:
                await self._keep(await flow.obtain(wanted, None, self._now))

    def _calm(self, trouble: NotAuthorized) -> float:
        return CALM_LOGIN if self.interactive and trouble.code != "E-AUTH-SERVER" else CALM

    @property
    def _can_obtain(self) -> bool:
        return self._login is not None or self._settings.grant == "client_credentials"

    def _must_be_able(self) -> None:
        if not self._can_obtain:
            raise self._log_in_again(f"{self.whose.server} wants a login")

    def _log_in_again(self, reason: str) -> NotAuthorized:
        self.wants_login = True
        self._on_wanting()
        fix = f"toolway login {self.whose.server}"
        if self.whose.principal:
            fix += " --gateway URL --token KEY"
        return NotAuthorized(reason, code="E-AUTH-LOGIN", fix=fix)

    async def _ask(self, login: Login, url: str) -> str:
        try:
            ended_at = login(self.whose.server, url)
            return await ended_at if inspect.isawaitable(ended_at) else ended_at
        except NotAuthorized:
            raise
        except Exception as exc:
            reason = f"the login callback failed: {type(exc).__name__}"
            raise NotAuthorized(reason, code="E-AUTH-FLOW", fix="see what the callback does") from exc
