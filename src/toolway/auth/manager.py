"""Credentials for all of a hub's servers: which server needs one, and which principal owns it.

Every hub loads this module, so it imports no OAuth code. That is loaded for the first server that requires a login.

A gateway has several callers. A login belongs to the user who made it, so each caller has a separate login. The hub
owner's login is not used for other callers, unless the entry says so (`shareConnection`). A token that the hub gets
with the secret in the entry (`client_credentials`) is used for all callers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from toolway.auth.encrypted_token_store import EncryptedTokenStore
from toolway.auth.token_manager import LoginCallback, TokenManager, TokenOwner
from toolway.auth.token_slot import Clock, TokenSlot, TokenSlotProvider
from toolway.auth.token_store import Credential, MemoryTokenStore, TokenStore
from toolway.config.schema import OAuth, Server
from toolway.types import AuthError, Authorizer

if TYPE_CHECKING:
    from toolway.auth.exchange_manager import ExchangeManager, TokenEndpoints
    from toolway.auth.token_exchange import SubjectTokens

MAX_EXCHANGE_MANAGERS: Final = 20_000  # pairs of a server and a caller on whose behalf it is called
LOGIN_POLL_INTERVAL_S: Final = 1.0  # seconds between two checks for a missing login

#: Called with (server, principal) when a missing login has been stored.
OnLogin = Callable[[str, str], None]


class AuthManager:
    """A hub's OAuth logins and tokens: one `TokenManager` per server, principal, and settings."""

    def __init__(
        self,
        login: LoginCallback | None = None,
        store: TokenStore | None = None,
        now: Clock = time.time,
        on_login: OnLogin | None = None,
    ) -> None:
        self._login_callback = login
        self._store = store if store is not None else MemoryTokenStore()
        self._now = now
        self._on_login = on_login
        self._token_managers: dict[tuple[TokenOwner, OAuth], TokenManager] = {}
        self._exchange_managers: dict[tuple[TokenOwner, OAuth], ExchangeManager] = {}  # least recently used first
        self._endpoints: TokenEndpoints | None = None
        self.subject_tokens: SubjectTokens | None = None  # of callers that logged in; set by a gateway with a login
        self.per_user_servers: set[str] = set()
        self._login_poll: asyncio.Task[None] | None = None

    def authorizer(self, name: str, server: Server, caller: str = "") -> Authorizer | None:
        """Return the `Authorizer` that provides OAuth tokens for `server`, or None if it needs none.

        A server needs none if it is local, has a static Authorization header, or uses a part's transport without
        `auth`.
        """
        if server.auth is not None and server.auth.is_on_behalf:
            return self._exchange_manager(name, server, server.auth, caller)
        return self._token_manager(name, server, caller)

    def _exchange_manager(self, name: str, server: Server, settings: OAuth, caller: str) -> ExchangeManager:
        """Return the manager that gets tokens to call one server on behalf of one caller.

        Create it if it is missing.
        """
        from toolway.auth.exchange_manager import ExchangeManager, TokenEndpoints

        self.per_user_servers.add(name)
        if self._endpoints is None:
            self._endpoints = TokenEndpoints(self._now)
        owner = TokenOwner(name, server.http_url or "", caller, False, server.effective_network_policy)
        key = (owner, settings)
        found = self._exchange_managers.pop(key, None)
        if found is None:
            if len(self._exchange_managers) >= MAX_EXCHANGE_MANAGERS:
                unused = [each for each, manager in self._exchange_managers.items() if manager.is_unused]
                for each in unused or list(self._exchange_managers)[:1]:
                    self._exchange_managers.pop(each).drop()
            found = ExchangeManager(owner, settings, lambda: self.subject_tokens, self._endpoints, self._now)
        self._exchange_managers[key] = found
        return found

    def is_per_user(self, name: str) -> bool:
        """Return True if each caller is known to need a separate login for the server `name`."""
        return name in self.per_user_servers

    async def log_in(
        self, name: str, server: Server, login: LoginCallback, *, caller: str = "", redirect_uri: str | None = None
    ) -> Credential:
        """Log a user in to an OAuth server through the `login` callback, and return the credential.

        Raises `AuthError` if the server does not support logins, or if the login fails.
        """
        token_manager = self._require_token_manager(name, server, caller)
        settings = server.auth or OAuth()
        return await token_manager.log_in(login, server.headers, redirect_uri or settings.redirect_uri)

    async def log_out(self, name: str, server: Server, *, caller: str = "") -> bool:
        """Delete the caller's stored login for a server, and revoke it if the issuer supports that.

        Return True if a login was stored. Raises `AuthError` if the server does not support logins, or if the token
        store fails.
        """
        return await self._require_token_manager(name, server, caller).log_out()

    def reset_failures(self, name: str) -> None:
        """Forget rejected and failed logins for a server, because someone restarted it."""
        for token_manager in self._token_managers.values():
            if token_manager.owner.server == name:
                token_manager.reset_failures()
        for manager in self._exchange_managers.values():
            if manager.owner.server == name:
                manager.reset_failures()

    async def close(self) -> None:
        if self._login_poll is not None:
            self._login_poll.cancel()
        await asyncio.gather(*(token_manager.close() for token_manager in self._token_managers.values()))
        await asyncio.gather(*(manager.close() for manager in self._exchange_managers.values()))
        if self._endpoints is not None:
            await self._endpoints.close()

    # -- token managers -----------------------------------------------------------------------------------------------

    def _token_manager(self, name: str, server: Server, caller: str) -> TokenManager | None:
        settings = server.auth if server.auth is not None else OAuth()
        no_login = server.transport_settings is not None and server.auth is None  # an HTTP API expects an API key
        url = server.http_url  # the metadata of a WebSocket server is at the http form of its url
        if url is None or no_login or has_static_auth(server.headers):
            self.per_user_servers.discard(name)
            return None
        for_all_callers = server.share_connection or settings.grant == "client_credentials"
        owner = TokenOwner(
            name, url, "" if for_all_callers else caller, for_all_callers, server.effective_network_policy
        )
        if for_all_callers:
            self.per_user_servers.discard(name)
        elif server.auth is not None:
            self.per_user_servers.add(name)
        key = (owner, settings)
        found = self._token_managers.get(key)
        if found is None:
            found = self._token_managers[key] = self._create_token_manager(owner, settings)
        return found

    def _require_token_manager(self, name: str, server: Server, caller: str) -> TokenManager:
        if server.auth is not None and server.auth.is_on_behalf:
            reason = f"{name} does not need a login: calls use the caller's token"
            raise AuthError(reason, code="E-AUTH-FLOW", hint="log in to the gateway, and call one of its tools")
        token_manager = self._token_manager(name, server, caller)
        if token_manager is None:
            why = "its entry has a static token" if server.url is not None else "it is not a remote server"
            hint = "remove the Authorization header from its entry" if server.url is not None else ""
            raise AuthError(f"{name} supports no login: {why}", code="E-AUTH-FLOW", hint=hint)
        if server.auth is not None and server.auth.grant == "client_credentials":
            reason = f"{name} does not need a login: the hub gets a token with the secret in its entry"
            raise AuthError(reason, code="E-AUTH-FLOW", hint="call one of its tools")
        return token_manager

    def _create_token_manager(self, owner: TokenOwner, settings: OAuth) -> TokenManager:
        slot = self._token_slot(f"{owner.server} {owner.url}", owner.principal)
        login = self._login_callback if not owner.principal else None
        token_manager = TokenManager(
            owner, settings, slot, login, self._now, partial(self._on_activated, owner), self._start_login_poll
        )
        if not token_manager.is_inactive:
            self._on_activated(owner)
        return token_manager

    def _token_slot(self, upstream: str, principal: str) -> TokenSlot:
        if isinstance(self._store, EncryptedTokenStore):
            from toolway.auth.shared_token_slot import SharedTokenSlot

            return SharedTokenSlot(self._store, upstream, principal, self._now)
        if isinstance(self._store, TokenSlotProvider):
            return self._store.token_slot(upstream, principal, self._now)
        return TokenSlot(self._store, upstream, principal, self._now)

    def _on_activated(self, owner: TokenOwner) -> None:
        if not owner.for_all_callers:
            self.per_user_servers.add(owner.server)

    # -- missing logins -----------------------------------------------------------------------------------------------

    def _start_login_poll(self) -> None:
        """Start polling the token store for missing logins. Polling ends when none is missing."""
        if self._on_login is not None and self._login_poll is None:
            self._login_poll = asyncio.create_task(self._poll_logins(self._on_login))
            self._login_poll.add_done_callback(self._on_login_poll_done)

    async def _poll_logins(self, on_login: OnLogin) -> None:
        while waiting := [
            token_manager for token_manager in self._token_managers.values() if token_manager.login_needed
        ]:
            await asyncio.sleep(LOGIN_POLL_INTERVAL_S)
            for token_manager in waiting:
                if token_manager.detect_login():
                    on_login(token_manager.owner.server, token_manager.owner.principal)

    def _on_login_poll_done(self, task: asyncio.Task[None]) -> None:
        self._login_poll = None


def has_static_auth(headers: Mapping[str, str]) -> bool:
    """Return True if the headers of a server's config entry contain Authorization."""
    return any(name.lower() == "authorization" for name in headers)
