"""A server behind a URL: Streamable HTTP, both eras.

Every request is a POST of its own, so its failure is its own: there is no shared reader that could die. The answer is
the POST's response, as JSON or as a stream of events in which it comes last. In the handshake era the link also keeps
the session that `initialize` set up, answers what the server asks, and listens to its optional GET stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeVar

from toolway.config.spec import Server
from toolway.model import Attempt, Authorizer, Certainty, Era, Json, NotAuthorized, Refusal
from toolway.protocol import wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Loss, Request
from toolway.upstream.transports.decoding import parse_heavy
from toolway.upstream.transports.http import base, verdict
from toolway.upstream.transports.http.asks import ServerRequests
from toolway.upstream.transports.http.authorized import authorized, credential
from toolway.upstream.transports.http.events_stream import Event, EventStream, EventTooLong
from toolway.upstream.transports.http.listen import listen, read_events, resume
from toolway.upstream.transports.http1.client import (
    Client,
    HeaderBlock,
    HttpFault,
    HttpLimits,
    Prepared,
    Response,
    Target,
    header_block,
)

T = TypeVar("T")

FRESH: Final = 2.0  # seconds a kept connection may have been idle where a loss must not be ambiguous
MAX_REDIRECTS: Final = 3
MAX_HEADS: Final = 1000  # that are kept ready, by method and name
_UNLIKE: Final = frozenset({"resources/read", "tasks/get", "tasks/update", "tasks/cancel"})  # named by something else
_FIRST: Final = frozenset({"server/discover", "initialize"})
MAX_NOTICES: Final = 64  # of cancellation under way; one more is not sent
CANCEL_TIME: Final = 0.5
REPLY_TIME: Final = 10.0
DELETE_TIME: Final = 1.0
REASON_TIME: Final = 2.0  # for the body of a refusal, which can only explain it
REASON_BYTES: Final = 64 * 1024
#: Comes with the whole SDK, which takes half a second to load: on the loop it would hold up every other server.
HEADER_RULES: Final = "toolway.protocol.headers"


class HttpLink:
    """`client` is one that somebody else keeps, whose connections other links use too."""

    def __init__(
        self,
        server: Server,
        limits: HttpLimits | None = None,
        authorizer: Authorizer | None = None,
        client: Client | None = None,
    ) -> None:
        assert server.url is not None
        self.session_id: str | None = None
        self._server = server
        self._authorizer = authorizer
        self._frame = server.limits.frame
        self._client = client if client is not None else Client(limits or base.limits(server), server.reach)
        self._is_ours = client is None
        self._asks = ServerRequests(partial(self._post_quietly, REPLY_TIME))
        self._era: Era | None = None
        self._version = ""
        self._in_session = header_block({})  # of every request after the handshake
        self._heads: dict[tuple[str | None, str, str], tuple[HeaderBlock, Prepared, bool]] = {}
        self._last_id = 0
        self._dropped = 0
        self._noise = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    # -- the life of the link -----------------------------------------------------------------------------------------

    async def open(self, inbound: Inbound) -> None:
        """Nothing is sent yet: a URL has no connection of its own to bring up."""
        assert self._server.url is not None
        self._inbound = inbound
        if HEADER_RULES not in sys.modules:
            await asyncio.to_thread(import_module, HEADER_RULES)
        try:
            self._target = Target.parse(self._server.url)
            self._bases = base.bases(self._server)
        except ValueError as exc:
            fix = "correct `url` or `headers` in the server's entry"
            raise Fault(str(exc), Certainty.C0, code="E-HTTP-CONFIG", fix=fix) from None

    def adopt(self, era: Era, version: str) -> None:
        if era == "modern":
            self.forget_session()
        self._era = era
        self._version = version
        self._keep_session(self.session_id)

    def forget_session(self) -> None:
        self._keep_session(None)
        self._stop_listening()

    async def wait_lost(self) -> Loss:
        never: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        return await never

    def facts(self) -> LinkFacts:
        return LinkFacts(dropped=self._dropped, noise=self._noise)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, self._asks.close(), return_exceptions=True)
            await self._end_session()
        finally:
            if self._is_ours:
                self._client.close()
            await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    # -- sending ------------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        self._last_id = id_ = self._last_id + 1
        attempt = request.attempt
        attempt.phase = "send"
        attempt.encoded = None
        attempt.wire_id = id_
        try:
            lines, head, in_session = self._headers(request)
            body = wire.request(id_, request.method, request.params)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise Fault(f"the request cannot be written: {exc}", Certainty.C0, code="E-REQUEST") from None
        max_idle = FRESH if request.fresh else None
        take = partial(self._answer, id_, request, in_session)
        try:
            authorizer = self._authorizer
            if authorizer is None or authorizer.idle:
                try:
                    return await self._post(
                        body,
                        lines,
                        take,
                        head=head,
                        max_idle=max_idle,
                        on_sent=attempt.sent,
                        on_dial=attempt.connecting,
                    )
                except Fault as fault:
                    if authorizer is None or fault.status != 401:
                        raise
                    authorizer.wake()
                    attempt.certainty = Certainty.C0  # it was refused, so the next sending is the first that counts
            return await authorized(
                authorizer,
                f"{request.method} {request.params.get('name', '')}",
                lambda token: self._post(
                    body,
                    HeaderBlock(lines + token),
                    take,
                    max_idle=max_idle,
                    on_sent=attempt.sent,
                    on_dial=attempt.connecting,
                ),
                attempt,
            )
        except asyncio.CancelledError:
            if self._era == "handshake" and attempt.certainty is Certainty.C2 and not request.quiet:
                self._tell_cancelled(id_)
            raise

    async def notify(self, method: str, params: Json) -> None:
        take = partial(_accepted, self.session_id is not None)
        await self._post_authorized(wire.notification(method, params), self._in_session, take, method)
        if method == "notifications/initialized":
            self._start_listening()

    async def _post_authorized(
        self, body: bytes, headers: HeaderBlock, take: Callable[[Response], Awaitable[T]], what: str = ""
    ) -> T:
        if self._authorizer is None or self._authorizer.idle:
            return await self._post(body, headers, take)
        return await authorized(
            self._authorizer, what, lambda token: self._post(body, HeaderBlock(headers + token), take)
        )

    async def _post(
        self,
        body: bytes,
        headers: HeaderBlock,
        take: Callable[[Response], Awaitable[T]],
        *,
        head: Prepared | None = None,
        max_idle: float | None = None,
        on_sent: Callable[[], None] | None = None,
        on_dial: Callable[[], None] | None = None,
    ) -> T:
        """What `take` makes of the response, behind redirects within the origin. `head` is `headers`, prepared. Raises
        `Fault`."""
        target = self._target
        try:
            for _ in range(MAX_REDIRECTS + 1):
                if head is None:
                    head = self._client.prepare("POST", target, (self._bases.post, headers))
                response = self._client.send_prepared(head, target, body, max_idle=max_idle, on_sent=on_sent)
                response.on_dial = on_dial
                await response.begin()
                try:
                    if not 300 <= response.status < 400:
                        return await take(response)
                    target, head = verdict.redirect(target, response.status, response.headers), None
                    response.finish_soon()
                finally:
                    response.leave()
        except HttpFault as fault:
            raise verdict.from_http_fault(fault) from None
        raise verdict.redirect_loop()

    def _headers(self, request: Request) -> tuple[HeaderBlock, Prepared | None, bool]:
        """The header lines of `request`, the head that was prepared of them before, and whether they name a session.
        Raises `ValueError`."""
        name = request.params.get("name")
        key = (request.version, request.method, name if isinstance(name, str) else "")
        known = self._heads.get(key) if request.input_schema is None else None
        if known is not None:
            return known
        lines, in_session = self._lines(request)
        if request.input_schema is not None or request.method in _UNLIKE:
            return lines, None, in_session
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        head = self._client.prepare("POST", self._target, (self._bases.post, lines))
        self._heads[key] = (lines, head, in_session)
        return self._heads[key]

    def _lines(self, request: Request) -> tuple[HeaderBlock, bool]:
        if request.version is not None:
            from toolway.protocol import headers as mirrored  # it is there: `open` has loaded it

            lines = mirrored.for_request(request.version, request.method, request.params, request.input_schema)
            return header_block(lines), False
        if request.method == "initialize":
            return header_block({}), False
        return self._in_session, self.session_id is not None

    def _tell_cancelled(self, id_: int) -> None:
        if len(self._tasks) < MAX_NOTICES and not self._closed:
            notice = wire.notification("notifications/cancelled", {"requestId": id_})
            self._own(self._post_quietly(CANCEL_TIME, notice))

    async def _post_quietly(self, limit: float, body: bytes) -> None:
        with contextlib.suppress(Fault, TimeoutError):
            async with asyncio.timeout(limit):
                await self._post_authorized(body, self._in_session, partial(_accepted, False))

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _answer(self, id_: int, request: Request, in_session: bool, response: Response) -> Json:
        status = response.status
        if status >= 400:
            body = await start_of(response)
            raise verdict.refusal(status, response.headers, body, id_, in_session=in_session)
        if request.method == "initialize":
            self._begin_session(response.headers.get("mcp-session-id"))
        kind = verdict.media_type(response.headers)
        if kind == "application/json" and status != 202:
            frame = response.whole(self._frame) or await response.read(self._frame)
            try:
                message = await parse_heavy(frame, request.method) if wire.is_heavy(frame) else wire.parse(frame)
            except wire.BadMessage as bad:
                raise verdict.bad_message(bad) from None
            if request.attempt.keeps_bytes and message.plain:
                request.attempt.encoded = wire.result_bytes(frame, id_)
        elif kind == "text/event-stream":
            message = await self._answer_in_events(response, id_, request)
        else:
            raise verdict.no_answer(status, response.headers, await start_of(response))
        return verdict.result_of(message, id_, status)

    async def _answer_in_events(self, response: Response, id_: int, request: Request) -> wire.Message:
        found: list[wire.Message] = []
        request.attempt.phase = "stream"

        async def deliver(event: Event) -> bool:
            answer = await self._sort(event, id_, request)
            if answer is not None:
                found.append(answer)
            return answer is not None

        stream = EventStream(self._frame)
        try:
            how = await read_events(response, stream, deliver)
            if not found and self._era == "handshake":
                await resume(self._get, stream, self._frame, deliver)
        except EventTooLong as exc:
            raise verdict.too_long(exc.limit) from None
        if not found:
            raise verdict.cut(how)
        return found[0]

    # -- what the server sends of its own accord ----------------------------------------------------------------------

    async def _sort(self, event: Event, id_: int | None, request: Request | None) -> wire.Message | None:
        """Bring what `event` carries to where it belongs; an answer is returned. `request` is what a stream answers."""
        method, about = (request.method, request.attempt) if request is not None else ("", None)
        modern = request is not None and request.version is not None
        try:
            message = await _message(event.data, method) if event.event == "message" else None
        except wire.BadMessage as bad:
            if id_ is not None and verdict.same_id(bad.id, id_):
                raise verdict.bad_message(bad) from None
            message = None
        if message is None:
            self._noise += 1
            if event.event == "endpoint" and method in _FIRST:
                raise verdict.older_transport()
        elif message.kind == "notification":
            self._on_notification(message, about)
        elif message.kind == "request":
            if modern or not self._asks.take(message, self._inbound, about):
                self._dropped += 1
        elif id_ is not None:
            return message
        else:
            self._dropped += 1
        return None

    def _on_notification(self, message: wire.Message, about: Attempt | None) -> None:
        if message.method == "notifications/cancelled":
            self._asks.cancelled(message.body)
        self._inbound.on_notification(message.method, message.body, about)

    # -- the session of the handshake era -----------------------------------------------------------------------------

    def _begin_session(self, id_: str | None) -> None:
        try:
            self._keep_session(id_ or None)
        except ValueError:
            reason = "the server gave a session id that no header can carry"
            raise Fault(reason, Certainty.C2, code="E-HTTP-CONTENT") from None

    def _keep_session(self, id_: str | None) -> None:
        headers = {base.VERSION: self._version} if self._era == "handshake" else {}
        if id_ is not None:
            headers[base.SESSION] = id_
        self._in_session = header_block(headers)
        self._heads = {}
        self.session_id = id_

    @contextlib.asynccontextmanager
    async def _get(self, last_id: str) -> AsyncIterator[Response]:
        headers = (self._bases.get, self._in_session, header_block({base.LAST_EVENT: last_id} if last_id else {}))
        token = await self._token()
        async with self._client.send("GET", self._target, (*headers, header_block(token))) as response:
            if response.status != 401 or not await self._other_token(response, token):
                yield response
                return
        token = await self._token()
        async with self._client.send("GET", self._target, (*headers, header_block(token))) as response:
            yield response

    async def _token(self) -> dict[str, str]:
        """For what is sent of our own accord: nothing, where there is none."""
        value = ""
        if self._authorizer is not None:
            with contextlib.suppress(Fault):
                value = await credential(self._authorizer)
        return {"Authorization": value} if value else {}

    async def _other_token(self, response: Response, token: dict[str, str]) -> bool:
        if self._authorizer is None:
            return False
        challenge = response.headers.get("www-authenticate", "")
        try:
            return await self._authorizer.challenged(Refusal(401, challenge, token.get("Authorization", ""), "GET"))
        except NotAuthorized:
            return False

    def _start_listening(self) -> None:
        self._stop_listening()
        if not self._closed:
            self._listener = self._own(listen(self._get, self._heard, self._frame))

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None

    async def _heard(self, event: Event) -> None:
        await self._sort(event, None, None)

    async def _end_session(self) -> None:
        if self.session_id is None:
            return
        with contextlib.suppress(HttpFault, TimeoutError):
            async with asyncio.timeout(DELETE_TIME):
                headers = (self._bases.get, self._in_session, header_block(await self._token()))
                async with self._client.send("DELETE", self._target, headers):
                    pass


async def _message(frame: bytes, method: str) -> wire.Message:
    """Decode what came in answer to `method`; in a thread, where that takes long. Raises `BadMessage`."""
    return await parse_heavy(frame, method) if wire.is_heavy(frame) else wire.parse(frame)


async def _accepted(in_session: bool, response: Response) -> None:
    """The server took a message that has no answer. Raises `Fault` where it did not."""
    if not 200 <= response.status < 300:
        body = await start_of(response)
        raise verdict.refused_notice(response.status, response.headers, body, in_session=in_session)
    response.finish_soon()


async def start_of(response: Response, within: float = REASON_TIME) -> bytes:
    """What the body says, as far as it comes in time: the status has decided already."""
    body = bytearray()
    with contextlib.suppress(HttpFault, TimeoutError):
        async with asyncio.timeout(within):
            async for chunk in response:
                body += chunk
                if len(body) >= REASON_BYTES:
                    break
    return bytes(body[:REASON_BYTES])
