"""`/login`: each caller's own login to a server that wants one.

    POST /login/github      {"redirect_uri": "http://127.0.0.1:33418/callback"} → {"id": …, "url": …}
    POST /login/github/end  {"id": …, "ended_at": the address at which the browser came back} → {"logged_in": true}
    DELETE /login/github                                                        → {"had": true}

The browser and the port it comes back to are the caller's; the gateway begins the login, keeps what proves that it did
(PKCE's verifier, the state) and gets the token, which never leaves it. A login that was begun is ended by the caller
who began it and by nobody else: to all others it does not exist.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from toolway.errors import CallError, NotFound, ToolwayError
from toolway.gateway.door import problem
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import JSON
from toolway.gateway.principals import Principal
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol import wire
from toolway.security.urls import is_loopback

MOST: Final = 100  # logins under way; one more ends the oldest
LONGEST: Final = 16 * 1024  # characters of an address
_FIELDS: Final = (("content-type", JSON), ("cache-control", "no-store"))


@dataclass
class _Begun:
    """A login that is under way, and whose it is."""

    principal: str
    server: str
    work: asyncio.Task[None] | None = None
    url: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended_at: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def ask(self, server: str, url: str) -> str:
        """The caller is told where to go, and tells us where he came back to."""
        self.url.set_result(url)
        return await self.ended_at

    def stop(self) -> None:
        if self.work is not None:
            self.work.cancel()


class Logins:
    """`may_use` says whether a principal sees anything of a server."""

    def __init__(self, hub: Hub, may_use: Callable[[Principal, str], bool]) -> None:
        self._hub = hub
        self._may_use = may_use
        self._begun: dict[str, _Begun] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def handle(self, exchange: Exchange, principal: Principal) -> None:
        request = exchange.request
        parts = request.path.split("/")[2:]
        try:
            body = wire.decode(request.body) if request.body else {}
            if not isinstance(body, dict):
                raise ValueError("an object is expected")
            answer = await self._answer(request.method, parts, body, principal)
        except ValueError as exc:
            exchange.reply(*problem(400, f"the request cannot be read: {exc}"))
        except NotFound as exc:
            exchange.reply(*_of_error(404, exc))
        except CallError as exc:
            exchange.reply(*_of_error(502, exc))
        else:
            if answer is None:
                exchange.reply(*problem(404, "there is nothing at this path", endpoints=["/login/{server}"]))
            else:
                exchange.reply(200, wire.encode(answer), _FIELDS)

    async def _answer(self, method: str, parts: list[str], body: Json, principal: Principal) -> Json | None:
        match method, parts:
            case "POST", [server]:
                self._must_see(principal, server)
                return await self._begin(server, principal, _loopback(body.get("redirect_uri")))
            case "POST", [server, "end"]:
                return await self._end(server, principal, body.get("id"), body.get("ended_at"))
            case "DELETE", [server]:
                self._must_see(principal, server)
                return {"had": await self._hub.log_out(server, caller=principal.caller)}
        return None

    def _must_see(self, principal: Principal, server: str) -> None:
        if server not in self._hub.servers or not self._may_use(principal, server):
            raise NotFound(f"there is no server {server!r}", server=server)

    async def _begin(self, server: str, principal: Principal, redirect_uri: str) -> Json:
        begun = _Begun(principal.id, server)
        id_ = secrets.token_urlsafe(24)
        while len(self._begun) >= MOST:
            self._begun.pop(next(iter(self._begun))).stop()
        self._begun[id_] = begun
        begun.work = asyncio.create_task(
            self._hub.log_in(server, begun.ask, caller=principal.caller, redirect_uri=redirect_uri)
        )
        begun.work.add_done_callback(lambda work: self._over(id_, work))
        either: set[asyncio.Future[Any]] = {begun.work, begun.url}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not begun.url.done():
            await begun.work  # raises why not
            raise AssertionError("a login cannot end before it is begun")
        return {"id": id_, "url": begun.url.result()}

    async def _end(self, server: str, principal: Principal, id_: object, ended_at: object) -> Json:
        begun = self._begun.get(id_) if isinstance(id_, str) else None
        if begun is None or begun.principal != principal.id or begun.server != server or begun.ended_at.done():
            raise NotFound("there is no such login under way", fix=f"begin again: toolway login {server}")
        if not isinstance(ended_at, str) or len(ended_at) > LONGEST:
            raise ValueError("ended_at must be an address")
        begun.ended_at.set_result(ended_at)
        assert begun.work is not None
        await asyncio.shield(begun.work)
        return {"logged_in": True}

    def _over(self, id_: str, work: asyncio.Task[None]) -> None:
        self._begun.pop(id_, None)
        if not work.cancelled():
            work.exception()  # whoever waited has seen it

    def end(self, caller: str) -> None:
        """A key was revoked: its logins end with it."""
        task = asyncio.get_running_loop().create_task(self._hub.log_out_everywhere(caller))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _loopback(uri: Any) -> str:
    """A login ends on the machine of whoever began it, or a code could be sent anywhere. Raises `ValueError`."""
    parts = urlsplit(uri) if isinstance(uri, str) and len(uri) < LONGEST else None
    if parts is None or parts.scheme != "http" or not is_loopback(parts.hostname or "") or parts.username is not None:
        raise ValueError("redirect_uri must be http://127.0.0.1:PORT/…")
    assert isinstance(uri, str)
    return uri


def _of_error(status: int, error: ToolwayError) -> tuple[int, bytes, Any]:
    return problem(status, error.what, evidence=error.evidence, fix=error.fix, code=error.code)
