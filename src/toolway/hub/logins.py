"""A hub's logins to its servers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from toolway.auth.token_manager import LoginCallback
from toolway.config.schema import Server
from toolway.errors import ToolwayError
from toolway.events import AccessEvent
from toolway.hub.upstreams import UpstreamManager
from toolway.middleware.resolve import require_server
from toolway.upstream.error_mapping import raising_access_denied

if TYPE_CHECKING:
    from toolway.auth.token_exchange import SubjectTokens


class LoginService:
    """Logs callers in and out of servers and updates the affected upstreams."""

    def __init__(self, upstreams: UpstreamManager) -> None:
        self._upstreams = upstreams
        self._auth = upstreams.auth
        self._context = upstreams.context

    async def login(
        self, server: str, callback: LoginCallback, *, caller: str = "", redirect_uri: str | None = None
    ) -> None:
        """Log a user in to a server and store the token, even if one is already stored.

        `redirect_uri` replaces the redirect URI of the config entry. Raises `NotFound` if the server is unknown, and
        `AccessDenied` if the login fails or the server does not support logins.
        """
        with raising_access_denied(server):
            found = await self._resolve_server(server)
            await self._auth.log_in(server, found, callback, caller=caller, redirect_uri=redirect_uri)
        self._context.emit(AccessEvent(server, "login", principal_id=caller))
        self.on_login(server, caller)

    async def logout(self, server: str, *, caller: str = "") -> bool:
        """Delete a caller's stored login to a server, and revoke it if the issuer supports that.

        Return True if there was a login. Raises `NotFound` if the server is unknown, and `AccessDenied` if it does
        not support logins.
        """
        with raising_access_denied(server):
            existed = await self._auth.log_out(server, await self._resolve_server(server), caller=caller)
        self._context.emit(AccessEvent(server, "logout", principal_id=caller))
        self.on_login(server, caller)
        return existed

    async def logout_everywhere(self, caller: str) -> None:
        """Delete a caller's stored logins to all servers, because the caller no longer exists."""
        for name in list(self._upstreams.servers):
            with suppress(ToolwayError):  # servers without logins raise
                await self.logout(name, caller=caller)

    async def _resolve_server(self, name: str) -> Server:
        require_server(self._upstreams.servers, name)
        return await self._context.resolve_secrets(self._upstreams.servers[name])

    def on_login(self, name: str, caller: str) -> None:
        """Let a server's connection pick up a login that was just stored or deleted.

        If the connection is ready, fetch its tool list again. Otherwise start it, even if earlier starts failed. A
        caller without its own connection gets one only if the tool list is missing.
        """
        upstreams = self._upstreams
        if not upstreams.is_open or name not in upstreams.upstreams:
            return
        if caller:
            upstream = upstreams.per_caller.get(name, caller)
            if upstream is None and self._context.is_list_missing(name, "tools"):
                upstream = upstreams.per_caller.get_or_start(name, upstreams.servers[name], caller)
        else:
            upstream = upstreams.upstreams[name]
        if upstream is None:
            return
        if upstream.negotiated is not None:
            upstream.refresh("tools")
            return
        # Not `restart`: a start in progress may use this login already, and calls may be sent as soon as it is ready.
        upstream.retry_start()
        if not caller:
            upstreams.reset_failures(name)

    def has_on_behalf_servers(self) -> bool:
        """Return True if any server is called with tokens exchanged for its callers' tokens."""
        return any(each.auth is not None and each.auth.is_on_behalf for each in self._upstreams.servers.values())

    def use_subject_tokens(self, source: SubjectTokens) -> None:
        """Set where to get callers' tokens, which are exchanged for tokens to call servers on the callers' behalf."""
        self._auth.subject_tokens = source
