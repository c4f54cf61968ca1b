"""One broker for all servers of a hub: who needs a credential, and whose it is.

This module is part of every hub, so it loads nothing of OAuth; that comes with the first server that asks for it.
"""

from __future__ import annotations

import asyncio
import time

from toolway.config.spec import OAuth, Server
from toolway.model import Authorizer
from toolway.security.tokens import MemoryTokens, TokenStore
from toolway.security.wallet import Login, Now, Wallet


class Broker:
    def __init__(self, login: Login | None = None, store: TokenStore | None = None, now: Now = time.time) -> None:
        self._login = login
        self._store = store if store is not None else MemoryTokens()
        self._now = now
        self._wallets: dict[tuple[str, str, OAuth], Wallet] = {}

    def authorizer(self, name: str, server: Server, principal: str = "") -> Authorizer | None:
        """Who keeps the credential for `server`; None where none is needed, or its entry brings one."""
        settings = server.auth
        if settings is None and self._login is not None and not _brings_its_own(server):
            settings = OAuth()
        if server.url is None or settings is None:
            return None
        key = (f"{name} {server.url}", principal, settings)
        found = self._wallets.get(key)
        if found is None:
            found = self._wallets[key] = Wallet(
                name, server.url, principal, settings, self._store, self._login, self._now
            )
        return found

    def forgive(self, name: str) -> None:
        """A person starts the server anew: what was refused before may be asked again."""
        for (upstream, _, _), wallet in self._wallets.items():
            if upstream.partition(" ")[0] == name:
                wallet.forgive()

    async def close(self) -> None:
        await asyncio.gather(*(wallet.close() for wallet in self._wallets.values()))


def _brings_its_own(server: Server) -> bool:
    return any(name.lower() == "authorization" for name in server.headers)
