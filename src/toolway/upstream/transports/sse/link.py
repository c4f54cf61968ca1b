"""A server behind a URL that speaks HTTP+SSE, the transport of 2024-11-05.

All answers come on one stream, opened first; each message is a POST of its own to the address that the stream names. So
a request has two fates, and both count: a POST that was refused was not executed, one that was taken waits for the
stream, and one whose response was lost may still be answered there. The stream is the session: when it ends, the link
does, and the next link shakes hands anew. Only where the server forgot the session and kept the stream does the link
open another one, for all requests that met it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway.config.spec import Server
from toolway.model import Attempt, Authorizer, Certainty, Era, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Loss, Request, RpcError
from toolway.upstream.transports.http import base, verdict
from toolway.upstream.transports.http.asks import ServerRequests
from toolway.upstream.transports.http.authorized import NONE, authorized
from toolway.upstream.transports.http.link import (
    CANCEL_TIME,
    FRESH,
    MAX_NOTICES,
    MAX_REDIRECTS,
    REPLY_TIME,
    start_of,
)
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
from toolway.upstream.transports.sse.channel import ENDED, Channel

T = TypeVar("T")

LATE: Final = 1.0  # seconds in which an answer may come whose POST got no response
POST_TIME: Final = 10.0  # seconds for the response to a POST whose answer has come
MAX_POSTS: Final = 64  # of that kind; one more is cut off
RETIRED: Final = 900.0  # seconds for the last answers on a stream whose session is forgotten
VERSION_SINCE: Final = "2025-06-18"  # the first version that is told in a header
_PROXIES: Final = (None, 502, 504)  # statuses of a POST that say nothing about the server behind


class SseLink:
    def __init__(self, server: Server, limits: HttpLimits | None = None, authorizer: Authorizer | None = None) -> None:
        assert server.url is not None
        self._server = server
        self._authorizer = authorizer
        self._client = Client(limits or base.limits(server), server.reach)
        self._asks = ServerRequests(partial(self._post_quietly, REPLY_TIME))
        self._said = header_block({})  # of every message after the handshake
        self._channel: Channel | None = None
        self._retired: set[asyncio.Task[None]] = set()
        self._posts: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loss: asyncio.Future[Loss] | None = None
        self._dropped = 0
        self._noise = 0
        self._closed = False

    # -- the life of the link -----------------------------------------------------------------------------------------

    async def open(self, inbound: Inbound) -> None:
        assert self._server.url is not None
        self._inbound = inbound
        self._loop = asyncio.get_running_loop()
        self._loss = self._loop.create_future()
        try:
            self._target = Target.parse(self._server.url)
            self._bases = base.bases(self._server)
        except ValueError as exc:
            fix = "correct `url` or `headers` in the server's entry"
            raise Fault(str(exc), Certainty.C0, code="E-HTTP-CONFIG", fix=fix) from None
        await self._connect()

    async def _connect(self) -> Channel:
        """Open a stream. Raises `Fault`."""
        channel = Channel(self._stream, self._target, self._server.limits.frame, self._hear)
        try:
            await channel.open()
        except BaseException as exc:
            await channel.close()
            if isinstance(exc, Fault):
                exc.certainty = Certainty.C0  # whatever was refused was the stream, and no request
            raise
        self._channel = channel
        channel.over.add_done_callback(lambda _: self._on_over(channel))
        return channel

    def _on_over(self, channel: Channel) -> None:
        """A stream has ended. If it was the one in use, so has the link."""
        if channel is self._channel:
            self._lose(channel.over.result())

    def _lose(self, loss: Loss) -> None:
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(loss)

    def adopt(self, era: Era, version: str) -> None:
        self._said = header_block({base.VERSION: version} if version >= VERSION_SINCE else {})

    def forget_session(self) -> None:
        """The server has forgotten the session of this stream: the next handshake opens another. What it took before
        may still be answered on the old one."""
        channel, self._channel = self._channel, None
        self._said = header_block({})
        if channel is not None:
            task = asyncio.create_task(self._see_out(channel))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)

    async def _see_out(self, channel: Channel) -> None:
        try:
            await channel.wait_answered(RETIRED)
        finally:
            await self._done_with(channel)

    async def _done_with(self, channel: Channel) -> None:
        await channel.close()
        self._dropped += channel.outstanding.dropped
        self._noise += channel.noise

    async def wait_lost(self) -> Loss:
        assert self._loss is not None
        return await asyncio.shield(self._loss)

    def facts(self) -> LinkFacts:
        now = self._channel
        dropped, noise = (now.outstanding.dropped, now.noise) if now is not None else (0, 0)
        return LinkFacts(dropped=self._dropped + dropped, noise=self._noise + noise, transport="sse")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lose(Loss("closed by us", "E-CLOSED"))
        channel, self._channel = self._channel, None
        tasks = [*self._tasks, *self._posts, *self._retired]
        try:
            if channel is not None:
                await self._done_with(channel)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self._asks.close(), return_exceptions=True)
        finally:
            self._client.close()
            await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def _stream(self, last_id: str) -> Response:
        """The stream of events, after the event of this id. Raises `Fault`."""
        resumed = header_block({base.LAST_EVENT: last_id} if last_id else {})
        if self._authorizer is None:
            return await self._get(resumed, NONE)
        return await authorized(self._authorizer, "GET", partial(self._get, resumed))

    async def _get(self, resumed: HeaderBlock, token: HeaderBlock) -> Response:
        target = self._target
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._client.send("GET", target, (self._bases.get, resumed, token))
                await response.begin()
                is_stream = response.status == 200 and verdict.media_type(response.headers) == "text/event-stream"
                if is_stream:
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

    def _hear(self, message: wire.Message) -> None:
        if message.kind == "request":
            if not self._asks.take(message, self._inbound):
                self._dropped += 1
            return
        if message.method == "notifications/cancelled":
            self._asks.cancelled(message.body)
        self._inbound.on_notification(message.method, message.body)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        if request.method == "server/discover":
            # It came four eras after this transport; servers that are asked before the handshake fall silent.
            raise RpcError(METHOD_NOT_FOUND, "HTTP+SSE knows no server/discover")
        attempt = request.attempt
        attempt.phase = "send"
        attempt.encoded = None
        channel = await self._channel_for(request.method)
        target = await channel.wait_up()
        id_, answer = channel.outstanding.add(request)
        try:
            body = self._encoded(id_, request)
            take = partial(self._take, id_, attempt)
            max_idle = FRESH if request.fresh else None
            post = asyncio.create_task(
                self._authorized(
                    lambda token: self._post(target, body, token, take, max_idle, attempt.sent),
                    f"{request.method} {request.params.get('name', '')}",
                    attempt,
                )
            )
            return await self._await(post, answer, attempt)
        except asyncio.CancelledError:
            if attempt.certainty is Certainty.C2 and not request.quiet:
                self._tell_cancelled(id_)
            raise
        finally:
            channel.forget(id_)

    async def _channel_for(self, method: str) -> Channel:
        """Raises `Fault`: nothing was sent."""
        if self._channel is None and method == "initialize" and not self._closed:
            return await self._connect()
        if self._channel is None:
            raise Fault("the server no longer knows the session", Certainty.C0, code="E-HTTP-SESSION")
        return self._channel

    def _encoded(self, id_: int, request: Request) -> bytes:
        try:
            return wire.request(id_, request.method, request.params)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise Fault(f"the request cannot be written: {exc}", Certainty.C0, code="E-REQUEST") from None

    async def _await(
        self, post: asyncio.Task[wire.Message | None], answer: asyncio.Future[Json], attempt: Attempt
    ) -> Json:
        """The answer, wherever it comes first; or what the POST says, where that rules an answer out."""
        try:
            both: set[asyncio.Future[Any]] = {post, answer}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await self._posted(post, answer)
            return await answer
        except Fault as fault:
            await _stopped(post)  # what has not left must not leave any more
            fault.certainty = max(fault.certainty, attempt.certainty) if fault.code == ENDED else fault.certainty
            raise
        except asyncio.CancelledError:
            await _stopped(post)
            raise
        finally:
            self._let_end(post)

    async def _posted(self, post: asyncio.Task[wire.Message | None], answer: asyncio.Future[Json]) -> None:
        """Return when only the stream can tell more. Raises `Fault` or `RpcError`."""
        try:
            message = await post
        except Fault as fault:
            if fault.certainty is not Certainty.C2 or fault.status not in _PROXIES:
                raise
            # The response is lost, and perhaps nothing else.
            await asyncio.wait({answer}, timeout=LATE)
            if not answer.done():
                raise
        else:
            if message is not None and not answer.done():
                _settle(answer, message)

    def _let_end(self, post: asyncio.Task[Any]) -> None:
        """The answer was here before the response to its POST, which may take its time, but not for ever."""
        if post.done():
            _look(post)
        elif len(self._posts) >= MAX_POSTS or self._closed:
            post.add_done_callback(_look)
            post.cancel()
        else:
            self._posts.add(post)
            limit = self._loop.call_later(POST_TIME, post.cancel)
            post.add_done_callback(_look)
            post.add_done_callback(self._posts.discard)
            post.add_done_callback(lambda _: limit.cancel())

    async def notify(self, method: str, params: Json) -> None:
        channel = await self._channel_for(method)
        target = await channel.wait_up()
        body = wire.notification(method, params)
        await self._authorized(lambda token: self._post(target, body, token, _accepted), method)

    async def _authorized(
        self, send: Callable[[HeaderBlock], Awaitable[T]], what: str, attempt: Attempt | None = None
    ) -> T:
        if self._authorizer is None:
            return await send(NONE)
        return await authorized(self._authorizer, what, send, attempt)

    async def _post(
        self,
        target: Target,
        body: bytes,
        token: HeaderBlock,
        take: Callable[[Response], Awaitable[T]],
        max_idle: float | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> T:
        """What `take` makes of the response, behind redirects within the origin. Raises `Fault` or `RpcError`."""
        headers = (self._bases.post, self._said, token)
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._client.send("POST", target, headers, body, max_idle=max_idle, on_sent=on_sent)
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

    async def _take(self, id_: int, attempt: Attempt, response: Response) -> wire.Message | None:
        """The server has the message, or says why not; an answer, where it is in the response. Raises as `_post`."""
        body = await start_of(response)
        if response.status >= 400:
            raise said.refused(response.status, response.headers, body, id_)
        return said.taken(response.status, response.headers, body, id_)

    def _tell_cancelled(self, id_: int) -> None:
        if len(self._tasks) < MAX_NOTICES and not self._closed:
            notice = wire.notification("notifications/cancelled", {"requestId": id_})
            self._own(self._post_quietly(CANCEL_TIME, notice))

    async def _post_quietly(self, limit: float, body: bytes) -> None:
        channel = self._channel
        if channel is None or channel.endpoint is None:
            return
        target = channel.endpoint
        with contextlib.suppress(Fault, RpcError, TimeoutError):
            async with asyncio.timeout(limit):
                await self._authorized(lambda token: self._post(target, body, token, _accepted), "")

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _accepted(response: Response) -> None:
    """The server took a message that has no answer. Raises `Fault` where it did not."""
    if not 200 <= response.status < 300:
        body = await start_of(response)
        problem = said.refused(response.status, response.headers, body, None)
        if isinstance(problem, RpcError):
            problem = verdict.refused_notice(response.status, response.headers, body, in_session=True)
        raise problem
    response.finish_soon()


def _settle(answer: asyncio.Future[Json], message: wire.Message) -> None:
    if message.kind == "result":
        answer.set_result(message.body)
    else:
        answer.set_exception(RpcError(*wire.error_fields(message.body)))


async def _stopped(post: asyncio.Task[Any]) -> None:
    """Cancel it, and wait until what it sent is known."""
    post.cancel()
    await asyncio.wait({post}, timeout=1.0)


def _look(task: asyncio.Task[Any]) -> None:
    """Nobody else wants to know how it failed."""
    if not task.cancelled():
        task.exception()
