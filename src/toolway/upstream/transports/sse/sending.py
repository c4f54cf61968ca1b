"""The two kinds of request of HTTP+SSE: a GET that brings the stream, and a POST that brings a message.

Both go to the server's own origin alone, redirects included, and with the credential that somebody else keeps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from toolway.config.spec import Server
from toolway.model import Attempt, Authorizer, Certainty
from toolway.protocol import wire
from toolway.upstream.link import Fault, RpcError
from toolway.upstream.transports.http import base, verdict
from toolway.upstream.transports.http import link as http
from toolway.upstream.transports.http.authorized import NONE, authorized
from toolway.upstream.transports.http.link import MAX_REDIRECTS, start_of
from toolway.upstream.transports.http1.client import (
    Client,
    HeaderBlock,
    HttpFault,
    HttpLimits,
    Response,
    Target,
    header_block,
)
from toolway.upstream.transports.sse import said

T = TypeVar("T")


class Sender:
    """`target` is where the stream is. Raises `ValueError` for a URL or headers that cannot be sent."""

    def __init__(self, server: Server, limits: HttpLimits | None, authorizer: Authorizer | None) -> None:
        assert server.url is not None
        self.target = Target.parse(server.url)
        self._bases = base.bases(server)
        self._client = Client(limits or base.limits(server), server.reach)
        self._authorizer = authorizer
        self._version = NONE  # the header line that names the protocol's version, where it is to be told

    def tell_version(self, version: str) -> None:
        """Name this version with every message from now on; none where it is empty."""
        self._version = header_block({base.VERSION: version} if version else {})

    def close(self) -> None:
        self._client.close()

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def stream(self, last_id: str) -> Response:
        """The stream of events, after the event of this id; whoever has it must leave it. Raises `Fault`."""
        resumed = header_block({base.LAST_EVENT: last_id} if last_id else {})
        return await self._authorized(partial(self._get, resumed), "GET")

    async def _get(self, resumed: HeaderBlock, token: HeaderBlock) -> Response:
        target = self.target
        try:
            for _ in range(MAX_REDIRECTS + 1):
                # On a connection of its own: one that was kept may lead nowhere, and nobody would notice for long.
                response = self._client.send("GET", target, (self._bases.get, resumed, token), max_idle=0.0)
                await response.begin()
                if response.status == 200 and verdict.media_type(response.headers) == "text/event-stream":
                    return response
                try:
                    if not 300 <= response.status < 400:
                        raise said.no_stream(response.status, response.headers, await start_of(response))
                    target = said.moved(target, response.status, response.headers)
                    response.finish_soon()
                finally:
                    response.leave()
        except HttpFault as fault:
            raise verdict.from_http_fault(fault) from None
        raise verdict.redirect_loop()

    # -- messages -----------------------------------------------------------------------------------------------------

    async def request(
        self, target: Target, id_: int, body: bytes, what: str, attempt: Attempt, fresh: bool
    ) -> wire.Message | None:
        """The server has taken the request; its answer, where it is in the response. Raises `Fault` or `RpcError`."""

        async def take(response: Response) -> wire.Message | None:
            said_in_full = await start_of(response)
            if response.status >= 400:
                raise said.refused(response.status, response.headers, said_in_full, id_)
            return said.taken(response.status, response.headers, said_in_full, id_)

        def send(token: HeaderBlock) -> Awaitable[wire.Message | None]:
            return self._post(target, body, token, take, http.FRESH if fresh else None, attempt)

        return await self._authorized(send, what, attempt)

    async def tell(self, target: Target, body: bytes, what: str = "") -> None:
        """Send a message that has no answer. Raises `Fault`."""
        await self._authorized(lambda token: self._post(target, body, token, _accepted), what)

    async def _authorized(
        self, send: Callable[[HeaderBlock], Awaitable[T]], what: str, attempt: Attempt | None = None
    ) -> T:
        authorizer = self._authorizer
        if authorizer is None or authorizer.idle:
            try:
                return await send(NONE)
            except Fault as fault:
                if authorizer is None or fault.status != 401:
                    raise
                authorizer.wake()
                if attempt is not None:
                    attempt.certainty = Certainty.C0  # it was refused: the next sending is the first that counts
        return await authorized(authorizer, what, send, attempt)

    async def _post(
        self,
        target: Target,
        body: bytes,
        token: HeaderBlock,
        take: Callable[[Response], Awaitable[T]],
        max_idle: float | None = None,
        attempt: Attempt | None = None,
    ) -> T:
        headers = (self._bases.post, self._version, token)
        on_sent = attempt.sent if attempt is not None else None
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._client.send("POST", target, headers, body, max_idle=max_idle, on_sent=on_sent)
                response.on_dial = attempt.connecting if attempt is not None else None
                await response.begin()
                try:
                    if not 300 <= response.status < 400:
                        return await take(response)
                    target = verdict.redirect(target, response.status, response.headers)
                    response.finish_soon()
                finally:
                    response.leave()
        except HttpFault as fault:
            raise verdict.from_http_fault(fault) from None
        raise verdict.redirect_loop()


async def _accepted(response: Response) -> None:
    """The server took a message that has no answer. Raises `Fault` where it did not."""
    if 200 <= response.status < 300:
        response.finish_soon()
        return
    body = await start_of(response)
    problem = said.refused(response.status, response.headers, body, None)
    if isinstance(problem, RpcError):
        problem = verdict.refused_notice(response.status, response.headers, body, in_session=True)
    raise problem
