"""`/login`: logs each caller in to a server that requires OAuth.

    POST /login/github      {"redirect_uri": "http://127.0.0.1:33418/callback"} → {"id": …, "url": …}
    POST /login/github/end  {"id": …, "ended_at": the URL that the browser was redirected to} → {"logged_in": true}
    DELETE /login/github                                                        → {"had": true}

The browser and the redirect port are the caller's. The gateway starts the login, keeps its secrets (the PKCE verifier
and state), and obtains the token, which never leaves the gateway. Only the caller who started a login can finish it;
other callers cannot even see it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from toolway.auth.urls import is_loopback
from toolway.errors import CallError, NotFound, ToolwayError
from toolway.gateway.authenticator import json_error
from toolway.gateway.principals import Principal
from toolway.http.exchange import JSON_TYPE, Exchange
from toolway.hub.servers import HubServers
from toolway.protocol import jsonrpc
from toolway.types import Json

MAX_PENDING_LOGINS: Final = 100  # pending logins, at most half of them of one principal
MAX_URL_CHARS: Final = 16 * 1024  # characters of a URL
_NO_STORE_HEADERS: Final = (("content-type", JSON_TYPE), ("cache-control", "no-store"))


@dataclass
class PendingLogin:
    """One principal's OAuth login to one server, in progress."""

    principal_id: str
    caller_id: str
    server: str
    task: asyncio.Task[None] | None = None
    url: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    redirected_to: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def wait_for_redirect(self, server: str, url: str) -> str:
        """Publish the authorization URL for the user to open in a browser.

        Wait for the login to finish, and return the URL to which the browser was redirected.
        """
        self.url.set_result(url)
        return await self.redirected_to

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class LoginEndpoint:
    """Handles all `/login` requests, by which principals log in to servers with OAuth.

    `can_access` returns True if a principal may see any of a server's tools.
    """

    def __init__(self, servers: HubServers, can_access: Callable[[Principal, str], bool]) -> None:
        self._servers = servers
        self._can_access = can_access
        self._pending: dict[str, PendingLogin] = {}
        self._logout_tasks: set[asyncio.Task[None]] = set()

    async def handle(self, exchange: Exchange, principal: Principal) -> None:
        request = exchange.request
        parts = request.path.split("/")[2:]
        try:
            body = jsonrpc.decode_json(request.body) if request.body else {}
            if not isinstance(body, dict):
                raise ValueError("expected an object")
            result = await self._route(request.method, parts, body, principal)
        except ValueError as exc:
            exchange.reply(*json_error(400, f"invalid request: {exc}"))
        except NotFound as exc:
            exchange.reply(*_error_reply(404, exc))
        except CallError as exc:
            exchange.reply(*_error_reply(502, exc))
        else:
            if result is None:
                exchange.reply(*json_error(404, "unknown path", endpoints=["/login/{server}"]))
            else:
                exchange.reply(200, jsonrpc.encode_json(result), _NO_STORE_HEADERS)

    async def _route(self, method: str, parts: list[str], body: Json, principal: Principal) -> Json | None:
        match method, parts:
            case "POST", [server]:
                self._check_access(principal, server)
                return await self._start_login(server, principal, _check_loopback_uri(body.get("redirect_uri")))
            case "POST", [server, "end"]:
                return await self._finish_login(server, principal, body.get("id"), body.get("ended_at"))
            case "DELETE", [server]:
                self._check_access(principal, server)
                return {"had": await self._servers.logins.logout(server, caller=principal.caller_id)}
        return None

    def _check_access(self, principal: Principal, server: str) -> None:
        if server not in self._servers.entries or not self._can_access(principal, server):
            raise NotFound(f"unknown server {server!r}", server=server)

    async def _start_login(self, server: str, principal: Principal, redirect_uri: str) -> Json:
        login = PendingLogin(principal.id, principal.caller_id, server)
        id_ = secrets.token_urlsafe(24)
        self._make_room(principal.id)
        self._pending[id_] = login
        login.task = asyncio.create_task(
            self._servers.logins.login(
                server, login.wait_for_redirect, caller=principal.caller_id, redirect_uri=redirect_uri
            )
        )
        login.task.add_done_callback(lambda work: self._on_login_done(id_, work))
        either: set[asyncio.Future[Any]] = {login.task, login.url}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not login.url.done():
            await login.task  # raises the error
            raise AssertionError("login ended without an authorization URL")
        return {"id": id_, "url": login.url.result()}

    def _make_room(self, principal_id: str) -> None:
        """Cancel one pending login if there are too many to add one for this principal.

        That is the oldest login of the principal with the most logins, so no one can crowd out a principal with
        fewer.
        """
        counts = Counter(login.principal_id for login in self._pending.values())
        if counts[principal_id] >= MAX_PENDING_LOGINS // 2:
            victim = principal_id
        elif len(self._pending) >= MAX_PENDING_LOGINS:
            most = max(counts.values())
            victim = principal_id if counts[principal_id] == most else counts.most_common(1)[0][0]
        else:
            return
        id_ = next(id_ for id_, login in self._pending.items() if login.principal_id == victim)
        self._pending.pop(id_).cancel()

    async def _finish_login(self, server: str, principal: Principal, id_: object, redirected_to: object) -> Json:
        login = self._pending.get(id_) if isinstance(id_, str) else None
        if login is None or login.principal_id != principal.id or login.server != server or login.redirected_to.done():
            raise NotFound("unknown login, or one that has finished", hint=f"start again: toolway login {server}")
        if not isinstance(redirected_to, str) or len(redirected_to) > MAX_URL_CHARS:
            raise ValueError("ended_at must be a URL")
        login.redirected_to.set_result(redirected_to)
        assert login.task is not None
        await asyncio.shield(login.task)
        return {"logged_in": True}

    def _on_login_done(self, id_: str, task: asyncio.Task[None]) -> None:
        self._pending.pop(id_, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the waiting request has already raised it

    def log_out_everywhere(self, caller: str) -> None:
        """Log a caller out of all servers and end its pending logins, after its API key was revoked."""
        for id_ in [id_ for id_, login in self._pending.items() if login.caller_id == caller]:
            self._pending.pop(id_).cancel()
        task = asyncio.get_running_loop().create_task(self._servers.logins.logout_everywhere(caller))
        self._logout_tasks.add(task)
        task.add_done_callback(self._logout_tasks.discard)


def _check_loopback_uri(uri: Any) -> str:
    """Return `uri` if it is a loopback HTTP URL. Any other target could leak the OAuth code.

    Raises `ValueError` if it is not.
    """
    parts = urlsplit(uri) if isinstance(uri, str) and len(uri) < MAX_URL_CHARS else None
    if parts is None or parts.scheme != "http" or not is_loopback(parts.hostname or "") or parts.username is not None:
        raise ValueError("redirect_uri must be http://127.0.0.1:PORT/…")
    assert isinstance(uri, str)
    return uri


def _error_reply(status: int, error: ToolwayError) -> tuple[int, bytes, Any]:
    return json_error(status, error.message, detail=error.detail, hint=error.hint, code=error.code)
