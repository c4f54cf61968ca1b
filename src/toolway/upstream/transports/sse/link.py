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
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway.config.spec import Server
from toolway.model import Attempt, Authorizer, Certainty, Era, Json
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Loss, Request, RpcError
from toolway.upstream.transports.http.asks import ServerRequests
from toolway.upstream.transports.http.link import CANCEL_TIME, MAX_NOTICES, REPLY_TIME
from toolway.upstream.transports.http1.client import HttpLimits
from toolway.upstream.transports.sse.channel import Channel
from toolway.upstream.transports.sse.fates import Post, look_at, stopped, taken
from toolway.upstream.transports.sse.sending import Sender

POST_TIME: Final = 10.0  # seconds for the response to a POST whose answer has come
MAX_POSTS: Final = 64  # of that kind; one more is cut off
RETIRED: Final = 900.0  # seconds for the last answers on a stream whose session is forgotten
VERSION_SINCE: Final = "2025-06-18"  # the first version that is told in a header


class SseLink:
    def __init__(self, server: Server, limits: HttpLimits | None = None, authorizer: Authorizer | None = None) -> None:
        self._server = server
        self._limits = limits
        self._authorizer = authorizer
        self._asks = ServerRequests(partial(self._tell_quietly, REPLY_TIME))
        self._channel: Channel | None = None
        self._sender: Sender | None = None
        self._posts: set[Post] = set()  # whose answers have come
        self._tasks: set[asyncio.Task[None]] = set()
        self._notices = 0  # of cancellation, under way
        self._doubts = False  # whether the stream is being asked for a sign of life
        self._loss: asyncio.Future[Loss] | None = None
        self._dropped = 0
        self._noise = 0
        self._closed = False

    # -- the life of the link -----------------------------------------------------------------------------------------

    async def open(self, inbound: Inbound) -> None:
        self._inbound = inbound
        self._loop = asyncio.get_running_loop()
        self._loss = self._loop.create_future()
        try:
            self._sender = Sender(self._server, self._limits, self._authorizer)
        except ValueError as exc:
            fix = "correct `url` or `headers` in the server's entry"
            raise Fault(str(exc), Certainty.C0, code="E-HTTP-CONFIG", fix=fix) from None
        await self._connect()

    async def _connect(self) -> Channel:
        """Open a stream. Raises `Fault`."""
        assert self._sender is not None
        channel = Channel(self._sender.stream, self._sender.target, self._server.limits.frame, self._hear)
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
            self._lose(replace(channel.over.result(), usual=True))

    def _lose(self, loss: Loss) -> None:
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(loss)

    def adopt(self, era: Era, version: str) -> None:
        assert self._sender is not None
        self._sender.tell_version(version if version >= VERSION_SINCE else "")

    def forget_session(self) -> None:
        """The server has forgotten the session of this stream: the next handshake opens another. What it took before
        may still be answered on the old one."""
        channel, self._channel = self._channel, None
        if self._sender is not None:
            self._sender.tell_version("")
        if channel is not None:
            self._own(self._see_out(channel))

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
        try:
            if channel is not None:
                await self._done_with(channel)
            tasks = [*self._tasks, *self._posts]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self._asks.close(), return_exceptions=True)
        finally:
            if self._sender is not None:
                self._sender.close()
            await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        if request.method == "server/discover":
            # It is years younger than this transport, and some servers that are asked too early never speak again.
            raise RpcError(METHOD_NOT_FOUND, "HTTP+SSE knows no server/discover")
        attempt = request.attempt
        attempt.phase = "send"
        attempt.encoded = None
        assert self._sender is not None
        channel = await self._channel_for(request.method)
        target = await channel.wait_up()
        id_, answer = channel.outstanding.add(request)
        heard = channel.received
        try:
            body = _encoded(id_, request)
            what = f"{request.method} {request.params.get('name', '')}"
            posting = self._sender.request(target, id_, body, what, attempt, request.fresh)
            return await self._await(asyncio.create_task(posting), answer, attempt)
        except asyncio.CancelledError:
            if attempt.certainty is Certainty.C2 and not request.quiet:
                self._tell_cancelled(id_)
                self._doubt(channel, heard)
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

    async def _await(self, post: Post, answer: asyncio.Future[Json], attempt: Attempt) -> Json:
        """The answer, wherever it comes first; or what the POST says, where that rules an answer out."""
        try:
            both: set[asyncio.Future[Any]] = {post, answer}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await taken(post, answer)
            return await answer
        except Fault as fault:
            await stopped(post)  # what has not left must not leave any more
            if answer.done():  # it is the stream's, and does not know what has left since it ended
                fault.certainty = max(fault.certainty, attempt.certainty)
            raise
        except asyncio.CancelledError:
            await stopped(post)
            raise
        finally:
            self._let_end(post)

    def _let_end(self, post: Post) -> None:
        """The answer was here before the response to its POST, which may take its time, but not for ever."""
        post.add_done_callback(look_at)
        if post.done():
            return
        if len(self._posts) >= MAX_POSTS or self._closed:
            post.cancel()
            return
        limit = self._loop.call_later(POST_TIME, post.cancel)
        self._posts.add(post)
        post.add_done_callback(self._posts.discard)
        post.add_done_callback(lambda _: limit.cancel())

    def _doubt(self, channel: Channel, heard: int) -> None:
        """A call was given up for which nothing at all came on the stream: perhaps it leads nowhere."""
        if channel.received == heard and channel is self._channel and not self._closed and not self._doubts:
            self._doubts = True
            self._own(self._ask_for_life(channel))

    async def _ask_for_life(self, channel: Channel) -> None:
        heard = channel.received
        try:
            async with asyncio.timeout(self._server.health.timeout):
                await self.request(Request("ping", {}, quiet=True))
        except TimeoutError:
            # A server that has other calls of ours may be too busy to answer.
            if channel.received == heard and not len(channel.outstanding):
                channel.end(Loss("nothing comes on the stream of the server any more", "E-HEALTH"))
        except (Fault, RpcError):
            pass  # an answer of any kind is a sign of life; a loss is noticed elsewhere
        finally:
            self._doubts = False

    # -- messages without an answer -----------------------------------------------------------------------------------

    async def notify(self, method: str, params: Json) -> None:
        assert self._sender is not None
        channel = await self._channel_for(method)
        await self._sender.tell(await channel.wait_up(), wire.notification(method, params), method)

    def _tell_cancelled(self, id_: int) -> None:
        if self._notices < MAX_NOTICES and not self._closed:
            self._notices += 1
            notice = wire.notification("notifications/cancelled", {"requestId": id_})
            self._own(self._tell_quietly(CANCEL_TIME, notice)).add_done_callback(self._told)

    def _told(self, _: asyncio.Task[None]) -> None:
        self._notices -= 1

    async def _tell_quietly(self, limit: float, body: bytes) -> None:
        channel = self._channel
        if channel is None or channel.endpoint is None or self._sender is None:
            return
        with contextlib.suppress(Fault, TimeoutError):
            async with asyncio.timeout(limit):
                await self._sender.tell(channel.endpoint, body)

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- what the server sends of its own accord ----------------------------------------------------------------------

    def _hear(self, message: wire.Message) -> None:
        if message.kind == "request":
            if not self._asks.take(message, self._inbound):
                self._dropped += 1
            return
        if message.method == "notifications/cancelled":
            self._asks.cancelled(message.body)
        self._inbound.on_notification(message.method, message.body)


def _encoded(id_: int, request: Request) -> bytes:
    try:
        return wire.request(id_, request.method, request.params)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise Fault(f"the request cannot be written: {exc}", Certainty.C0, code="E-REQUEST") from None
