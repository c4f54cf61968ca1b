"""One broker for all servers of a hub: who needs a credential, and whose it is.

This module is part of every hub, so it loads nothing of OAuth; that comes with the first server that asks for it.

A gateway has callers. What a person has logged in to is that person's: each caller has a login of his own, and the one
of the hub's owner serves nobody else, unless the entry says so (`shared`). What the hub has by a secret of its own
(`client_credentials`) serves all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from toolway.config.spec import OAuth, Server
from toolway.model import Authorizer, NotAuthorized
from toolway.security.sealed_tokens import SealedTokens
from toolway.security.shared_shelf import SharedShelf
from toolway.security.shelf import HasShelves, Now, Shelf
from toolway.security.tokens import Credential, MemoryTokens, TokenStore
from toolway.security.wallet import Login, Wallet, Whose

LOOK: Final = 1.0  # seconds between two looks for a login that somebody waits for

#: Hears of a login that was missing: of which server, and whose.
OnLogin = Callable[[str, str], None]


class Broker:
    def __init__(
        self,
        login: Login | None = None,
        store: TokenStore | None = None,
        now: Now = time.time,
        on_login: OnLogin | None = None,
    ) -> None:
        self._login = login
        self._store = store if store is not None else MemoryTokens()
        self._now = now
        self._on_login = on_login
        self._wallets: dict[tuple[Whose, OAuth], Wallet] = {}
        self._personal: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    def authorizer(self, name: str, server: Server, caller: str = "") -> Authorizer | None:
        """Who keeps the credential for `server`; None where none is needed, or its entry brings one."""
        return self._wallet(name, server, caller)

    def is_personal(self, name: str) -> bool:
        """Whether each caller has a credential of his own for this server, as far as is known."""
        return name in self._personal

    async def log_in(
        self, name: str, server: Server, login: Login, *, caller: str = "", redirect_uri: str | None = None
    ) -> Credential:
        """Let a person log in. Raises `NotAuthorized`."""
        wallet = self._must_have_wallet(name, server, caller)
        settings = server.auth or OAuth()
        return await wallet.log_in(login, server.headers, redirect_uri or settings.redirect_uri)

    async def log_out(self, name: str, server: Server, *, caller: str = "") -> bool:
        """Forget a login, and take it back where that can be done; whether there was one. Raises `NotAuthorized`."""
        return await self._must_have_wallet(name, server, caller).log_out()

    def forgive(self, name: str) -> None:
        """A person starts the server anew: what was refused before may be asked again."""
        for wallet in self._wallets.values():
            if wallet.whose.server == name:
                wallet.forgive()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(wallet.close() for wallet in self._wallets.values()))

    # -- wallets ------------------------------------------------------------------------------------------------------

    def _wallet(self, name: str, server: Server, caller: str) -> Wallet | None:
        settings = server.auth if server.auth is not None else OAuth()
        unasked = server.transport == "openapi" and server.auth is None  # an API that wants a key wants no login
        if server.url is None or unasked or brings_its_own(server.headers):
            self._personal.discard(name)
            return None
        for_all = server.shared or settings.grant == "client_credentials"
        whose = Whose(name, server.url, "" if for_all else caller, for_all, server.reach)
        if for_all:
            self._personal.discard(name)
        elif server.auth is not None:
            self._personal.add(name)
        key = (whose, settings)
        found = self._wallets.get(key)
        if found is None:
            found = self._wallets[key] = self._made(whose, settings)
        return found

    def _must_have_wallet(self, name: str, server: Server, caller: str) -> Wallet:
        wallet = self._wallet(name, server, caller)
        if wallet is None:
            why = "its entry has a token of its own" if server.url is not None else "it is no remote server"
            fix = "remove the Authorization header from its entry" if server.url is not None else ""
            raise NotAuthorized(f"nobody can log in to {name}: {why}", code="E-AUTH-FLOW", fix=fix)
        if server.auth is not None and server.auth.grant == "client_credentials":
            reason = f"nobody has to log in to {name}: the hub does it by the secret of the entry"
            raise NotAuthorized(reason, code="E-AUTH-FLOW", fix="call one of its tools")
        return wallet

    def _made(self, whose: Whose, settings: OAuth) -> Wallet:
        shelf = self._shelf(f"{whose.server} {whose.url}", whose.principal)
        login = self._login if not whose.principal else None
        wallet = Wallet(whose, settings, shelf, login, self._now, partial(self._awake, whose), self._look)
        if not wallet.idle:
            self._awake(whose)
        return wallet

    def _shelf(self, upstream: str, principal: str) -> Shelf:
        if isinstance(self._store, SealedTokens):
            return SharedShelf(self._store, upstream, principal, self._now)
        if isinstance(self._store, HasShelves):
            return self._store.shelf(upstream, principal, self._now)
        return Shelf(self._store, upstream, principal, self._now)

    def _awake(self, whose: Whose) -> None:
        if not whose.for_all:
            self._personal.add(whose.server)

    # -- logins that are missing --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Somebody was told to log in: look, for as long as there is one, whether that has been done."""
        if self._on_login is not None and self._looking is None:
            self._looking = asyncio.create_task(self._look_for_logins(self._on_login))
            self._looking.add_done_callback(self._looked)

    async def _look_for_logins(self, tell: OnLogin) -> None:
        while waiting := [wallet for wallet in self._wallets.values() if wallet.wants_login]:
            await asyncio.sleep(LOOK)
            for wallet in waiting:
                if wallet.login_came():
                    tell(wallet.whose.server, wallet.whose.principal)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None


def brings_its_own(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "authorization" for name in headers)
