"""A session with a server: one connection in one protocol era.

It adds protocol metadata to requests, routes notifications, and answers server requests. A session begins when its
transport is opened, and ends with it. It knows nothing about restarts, lists, or other servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from typing import Final

import msgspec

from toolway._async import Timer, Timers
from toolway._version import __version__
from toolway.callbacks import FunctionCallbacks
from toolway.config.schema import EraSetting
from toolway.protocol import versions
from toolway.protocol.constants import LOG_LEVEL_META_KEY, METHOD_NOT_FOUND
from toolway.secrets.server_secrets import secrets_of
from toolway.types import Call, CallbackError, CallState, Certainty, ClientCallbacks, Era, Json, ProgressCallback
from toolway.upstream import negotiation, tasks
from toolway.upstream.negotiation import BAD_SSE_ENDPOINT_CODE, SSE_PROBE_TIMEOUT_S
from toolway.upstream.server_requests import MAX_REQUESTS_PER_CALL, RejectedServerRequest, ServerRequestRouter
from toolway.upstream.transport import (
    Disconnect,
    ExchangeListener,
    JSONRPCError,
    Request,
    RequestExchange,
    StartingTransport,
    Transport,
    TransportError,
)

CLIENT_INFO: Final[Json] = {"name": "toolway", "version": __version__}
MAX_INPUT_ROUNDS: Final = 8  # of input that a server may request in one call
NOTIFICATION_RATE: Final = (100.0, 1000.0)  # notifications per second, and burst
SERVER_REQUEST_RATE: Final = (20.0, 1000.0)  # server requests per second, and burst
CANCEL_TASK_TIMEOUT_S: Final = 5.0  # for a server to confirm that it cancels a task
SESSION_LOST_CODE: Final = "E-HTTP-SESSION"  # the server lost the session; nothing ran

SET_LEVEL_TIMEOUT_S: Final = 5.0  # seconds that a call waits for the server to set the log level
DELIVERED_LOG_MARKER: Final = "toolway/ofCall"  # internal marker of a log message that was delivered to its caller

_NO_LIMIT: Final = nullcontext()
_NO_STATE: Final = CallState()  # of a request that `start` sends: its progress is recorded in the exchange
NotificationListener = Callable[[str, Json], None]
#: Returns a transport of the legacy HTTP+SSE kind if the error of the first one allows it, else None.
FallbackTransport = Callable[[TransportError | JSONRPCError], Transport | None]
_log = logging.getLogger(__name__)


class Session:
    """One negotiated connection to a server: sends requests, receives notifications."""

    def __init__(
        self,
        server: str,
        transport: Transport,
        callbacks: ClientCallbacks,
        listener: NotificationListener,
        max_server_requests: int = MAX_REQUESTS_PER_CALL,
    ) -> None:
        self.transport = transport
        self.negotiated: negotiation.NegotiatedProtocol | None = None
        self._clock = asyncio.get_running_loop().time
        self.last_activity = self._clock()
        self._server = server
        self._callbacks = callbacks
        self._listener = listener
        request_limit = TokenBucket(*SERVER_REQUEST_RATE, self.last_activity)
        self._router = ServerRequestRouter(server, callbacks, max_server_requests, request_limit.try_acquire)
        self._log_rank = -1  # rank of the log level requested from a legacy server
        self._starting_transport: StartingTransport | None = None  # the transport, if it can send without waiting
        self._uses_turns = False
        self._is_bare = False
        self._follows_tasks = False  # the server has tasks, and they are declared on calls of the hub's own program
        self._call_capabilities = callbacks.capabilities
        self._background: set[asyncio.Task[None]] = set()  # that cancel tasks of the server
        self._acknowledged: asyncio.Event | None = None  # set while a subscription awaits its acknowledgement
        self._progress_callbacks: dict[int, ProgressCallback] = {}
        self._last_progress_token = 0
        self._initialize_count = 0
        self._reinit_lock = asyncio.Lock()
        self._session_lost = False  # the server lost the session, and no new `initialize` has succeeded yet
        self._notification_limit = TokenBucket(*NOTIFICATION_RATE, self.last_activity)
        self._timers = Timers()
        self.flights = 0  # calls in flight that no coroutine waits for; see `hub/flight.py`
        #: Called before a log message (False) or a server request (True) that names no call.
        self.before_message: Callable[[Session, bool], None] | None = None
        self.dropped_notifications = 0  # notifications over the rate limit
        self.ended_by: Disconnect | None = None  # why the supervisor ended it, for calls that were lost
        self.on_reinitialized: Callable[[], None] | None = None  # called after a new `initialize` lost subscriptions

    async def open(
        self, setting: EraSetting, era_hint: Era | None, fallback_transport: FallbackTransport | None = None
    ) -> None:
        """Open the transport and negotiate the protocol era.

        `fallback_transport` provides another transport if the error suggests that this one is the wrong kind. Raises
        `TransportError` or `JSONRPCError` if opening or negotiation fails with both.
        """
        await self.transport.open(self)
        try:
            negotiated = await self._negotiate(setting, era_hint)
        except (TransportError, JSONRPCError) as exc:
            transport = fallback_transport(exc) if fallback_transport is not None else None
            if transport is None or not await self._switch_transport(transport):
                raise
            negotiated = await self._negotiate(setting, era_hint)
        if negotiated.era != "legacy":
            self.transport.set_protocol(negotiated.era, negotiated.version)
        info = self.transport.info()
        # Neither a pipe nor a WebSocket nor an HTTP+SSE stream names the call of a server request. Only a process has a
        # pipe.
        shares_stream = info.pid is not None or info.transport in ("sse", "websocket")
        self._uses_turns = negotiated.era == "legacy" and shares_stream
        self._is_bare = negotiated.era == "bare"
        if isinstance(self._callbacks, FunctionCallbacks) and self._callbacks.follows_tasks:
            self._follows_tasks = versions.has_tasks(negotiated.era, negotiated.capabilities)
        if self._follows_tasks:
            self._call_capabilities = self._with_tasks()
        self._starting_transport = self.transport if isinstance(self.transport, StartingTransport) else None
        self.negotiated = negotiation.mask_description(negotiated, secrets_of(self._server).mask)

    async def _negotiate(self, setting: EraSetting, era_hint: Era | None) -> negotiation.NegotiatedProtocol:
        if self.transport.info().peer_is_modern:
            setting = "modern"
        return await negotiation.negotiate(self.transport, setting, era_hint, CLIENT_INFO, self._callbacks.capabilities)

    async def _switch_transport(self, transport: Transport) -> bool:
        """Switch this session to `transport`, if that opens in time. Return False if not.

        Raises `TransportError` if the server speaks this transport but names an endpoint that must not be used.
        """
        try:
            async with asyncio.timeout(SSE_PROBE_TIMEOUT_S):
                await transport.open(self)
        except BaseException as exc:
            await transport.close()
            if isinstance(exc, TimeoutError) or (isinstance(exc, TransportError) and exc.code != BAD_SSE_ENDPOINT_CODE):
                return False
            raise
        previous, self.transport = self.transport, transport
        await previous.close()
        return True

    @property
    def protocol(self) -> negotiation.NegotiatedProtocol:
        """Return the negotiated era, version and capabilities. The session must be open."""
        assert self.negotiated is not None, "the session is not open"
        return self.negotiated

    # -- requests to the server ---------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Return how many calls are running in this session."""
        return len(self._router) + self.flights

    @property
    def running_calls(self) -> list[Call]:
        """Return this session's running calls, except new ones (under 1 s) that are not waiting."""
        return self._router.calls()

    def start(
        self,
        name: str,
        arguments: Json,
        meta: msgspec.Raw | Json | None,
        listener: ExchangeListener,
        *,
        has_callbacks: bool,
        encoded_params: bytes = b"",
    ) -> RequestExchange | None:
        """Send a tool call at once and return its exchange, which gets the outcome.

        Return None without sending anything if the call would have to wait. `listener` gets the outcome. `meta` is
        the `_meta` of the request, encoded or not. `encoded_params` are all params as JSON, if they are encoded
        already. `has_callbacks` means that the caller answers requests of the server itself. A legacy server names no
        call in its requests, so such a call has to wait if its tool may send some. Raises `TransportError` if the
        call cannot be sent.

        After a call was sent, `end_flight` must follow when its result has arrived, or `adopt` to let a coroutine
        wait for the result.
        """
        transport, protocol = self._starting_transport, self.negotiated
        if transport is None or protocol is None or self._session_lost:
            return None
        version = protocol.version if protocol.era == "modern" else None
        if version is None and has_callbacks and not self._router.is_silent(name):
            return None
        params: Json = {"name": name, "arguments": arguments}
        if meta is not None:
            params["_meta"] = meta
        request = Request("tools/call", params, _NO_STATE, version, None, True, False, encoded_params)
        exchange = transport.start(request, listener)
        self.flights += exchange is not None
        return exchange

    @property
    def can_start(self) -> bool:
        """Return True if `start` can be used: sending never waits, and the server knows the handshake."""
        return self._starting_transport is not None and self.negotiated is not None and not self._is_bare

    @property
    def capabilities(self) -> Json:
        """Return the client capabilities that are declared in a tool call if its caller declares none."""
        return self._call_capabilities

    def _with_tasks(self) -> Json:
        return {**self._callbacks.capabilities, "extensions": {versions.TASKS_EXTENSION: {}}}

    def end_flight(self, now: float) -> None:
        """Record that the result of a call sent by `start` has arrived."""
        self.flights -= 1
        self.last_activity = now

    def adopt(self, call: Call) -> None:
        """Register a call sent by `start`, so a coroutine can wait for it with `call`.

        `call` or `abandon` must follow.
        """
        self.flights -= 1
        self._router.adopt(call)

    def abandon(self, call: Call, exchange: RequestExchange) -> None:
        """Cancel a call passed to `adopt` that no coroutine will wait for, including at the server."""
        self._router.remove(call)
        assert self._starting_transport is not None
        self._starting_transport.abandon(exchange, Request(call.method, call.params, call.state))

    async def call(self, call: Call, input_schema: object = None, exchange: RequestExchange | None = None) -> Json:
        """Send a call, answer the server's requests for input, and return the final result.

        If the call was already sent, `exchange` is what to wait for.

        Raises `TransportError` without a usable response, `JSONRPCError` if the server answers with an error, and
        `TimeoutError` if the attempt takes longer than `call.attempt_timeout`.
        """
        params = call.params
        if call.is_notification:
            if not self._is_bare:  # such a server would answer it
                await self.transport.notify(call.method, params)
            return {}
        token = self._register_progress(call.on_progress) if call.on_progress is not None else None
        if token is not None:
            params = _with_meta(params, "progressToken", token)
        try:
            if self._uses_turns and exchange is None:
                await self._router.wait_for_turn(call)
            self._router.add(call)
            with _NO_LIMIT if call.attempt_timeout is None else self._limit_attempt(call.state, call.attempt_timeout):
                if exchange is None and (call.on_log is not None or call.log_level is not None):
                    params = await self._request_log_level(call.log_level, params)
                declared, follows_task = call.capabilities, False
                if declared is None and call.callbacks is not None:
                    declared = call.callbacks.capabilities
                elif declared is None and call.method == "tools/call":
                    declared, follows_task = self._call_capabilities, self._follows_tasks
                result = await self.request(
                    call.method,
                    params,
                    call.state,
                    input_schema=input_schema,
                    capabilities=declared,
                    exchange=exchange,
                )
                if call.method == "tools/call" and ("content" not in result or self._is_bare):
                    result = self._normalize_tool_result(call, result)
                if result.get("resultType") == "input_required" and call.method in versions.INPUT_REQUIRED_METHODS:
                    if call.return_input_required:
                        self._read_input_requests(call, result)
                    else:
                        result = await self._run_input_rounds(call, params, result, input_schema, declared)
                if follows_task and result.get("resultType") == "task":
                    result = self._normalize_tool_result(call, await self._follow_task(call, result))
            self._router.on_result(call)
            return result
        finally:
            self._router.remove(call)
            if token is not None:
                del self._progress_callbacks[token]

    async def _follow_task(self, call: Call, created: Json) -> Json:
        """Wait for the task that a server created for a tool call; return the call's result.

        If the caller stops waiting, the task is cancelled. Raises `TransportError` if the task has no result.
        """
        state, messages = call.state, count(1)
        state.highest_certainty, state.raw_bytes = Certainty.UNKNOWN, None  # what arrived is not the result
        state.certainty, state.phase = Certainty.UNKNOWN, "server"

        async def request(method: str, params: Json) -> Json:
            of_task = CallState(caller=state.caller)  # whether a question arrived says nothing about the call
            return await self.request(method, params, of_task, capabilities=self._call_capabilities)

        def report(message: str) -> None:
            if call.on_progress is not None:
                self._report_progress(call.on_progress, next(messages), None, message)

        id_ = tasks.task_id_of(created)
        answer = partial(self._answer_input_requests, call)
        owner = tasks.TaskOwner(self._server, call.name, request, answer, report, lambda: self.ended_by is None)
        try:
            return await tasks.follow_task(created, owner)
        except asyncio.CancelledError:
            work = asyncio.get_running_loop().create_task(self._cancel_task(request, id_))
            self._background.add(work)
            work.add_done_callback(self._background.discard)
            raise

    async def _cancel_task(self, request: Callable[[str, Json], Awaitable[Json]], id_: str) -> None:
        with suppress(TransportError, JSONRPCError, TimeoutError):
            async with asyncio.timeout(CANCEL_TASK_TIMEOUT_S):
                await request("tasks/cancel", {"taskId": id_})

    def _normalize_tool_result(self, call: Call, result: Json) -> Json:
        normalized = versions.normalize_tool_result(result, bare=self._is_bare)
        if normalized is not result:
            call.state.raw_bytes = None  # the bytes as received are no longer the result
        return normalized

    def _limit_attempt(self, call_state: CallState, seconds: float) -> Timer:
        """Start an attempt's timer. Time spent waiting for the user does not count."""
        now = self._clock()
        waited = call_state.user_wait_seconds(now)
        return self._timers.start(now + seconds, lambda now: call_state.user_wait_seconds(now) - waited)

    async def request(
        self,
        method: str,
        params: Json,
        call_state: CallState | None = None,
        *,
        input_schema: object = None,
        capabilities: Json | None = None,
        exchange: RequestExchange | None = None,
    ) -> Json:
        """Send one request and return its result unchanged, or wait for `exchange` if it was already sent.

        If the server lost the session, it is initialized again and the request sent once more. Raises
        `TransportError` without a usable response, and `JSONRPCError` if the server answers with an error.
        """
        call_state = call_state if call_state is not None else CallState()
        if self._session_lost and exchange is None:
            await self._reinitialize(self._initialize_count)
        initialize_count = self._initialize_count
        for last_try in (False, True):
            request = self._build_request(method, params, call_state, input_schema, capabilities)
            try:
                if exchange is None:
                    result = await self.transport.request(request)
                else:
                    assert self._starting_transport is not None
                    sent, exchange = exchange, None
                    result = await self._starting_transport.wait(sent, request)
                self.last_activity = self._clock()
                return result
            except JSONRPCError:
                self.last_activity = self._clock()  # an error response proves that the server lives
                raise
            except TransportError as exc:
                if exc.code != SESSION_LOST_CODE or last_try:
                    raise
            call_state.certainty = Certainty.NOT_SENT  # the request was rejected, so the next one counts as the first
            await self._reinitialize(initialize_count)
        raise AssertionError("unreachable")

    async def ping(self) -> None:
        """Check that the server responds, even with an error. Raises `TransportError` if it does not."""
        try:
            if self.protocol.era == "modern":
                await self.request("server/discover", {})
            elif self._is_bare:
                await self.request("tools/list", {})  # it may ignore a method that it does not know
            else:
                await self.request("ping", {})
        except JSONRPCError:
            pass

    async def listen_for_list_changes(self) -> bool:
        """Receive list change notices until the stream ends. Return False if the server does not offer any.

        Raises `TransportError` if the connection is lost.
        """
        filters = versions.listen_filter(self.protocol.capabilities)
        if self.protocol.era != "modern" or not filters:
            return False
        return await self._open_stream(filters)

    async def listen_for_resources(self, filters: Mapping[str, Sequence[str]], acknowledged: asyncio.Event) -> bool:
        """Receive changes of these resources and tasks from a modern server until the stream ends.

        `acknowledged` is set when the server has accepted the subscription. Return False if the server has no
        subscriptions.
        """
        self._acknowledged = acknowledged
        return await self._open_stream(dict(filters))

    async def _open_stream(self, filters: Json) -> bool:
        declared = None
        if "taskIds" in filters:  # servers require this capability for tasks
            declared = self._with_tasks()
        try:
            await self.request("subscriptions/listen", {"notifications": filters}, capabilities=declared)
        except JSONRPCError as exc:
            return exc.code != METHOD_NOT_FOUND
        return True

    def _build_request(
        self, method: str, params: Json, call_state: CallState, input_schema: object, capabilities: Json | None
    ) -> Request:
        """Build a JSON-RPC request; in the modern era, with version, client info and capabilities.

        A bare server is not told about cancelled requests: it would answer the notification.
        """
        protocol, version = self.protocol, None
        if protocol.era == "modern":
            version = protocol.version
            declared = capabilities if capabilities is not None else self._callbacks.capabilities
            params = versions.add_protocol_meta(params, version, CLIENT_INFO, declared)
        elif self._is_bare and method == "tools/call":
            params = versions.bare_call_params(params)
        # A loss on a stale connection is indistinguishable from a loss after execution, which matters for tool calls.
        return Request(method, params, call_state, version, input_schema, method == "tools/call", self._is_bare)

    async def _reinitialize(self, initialize_count: int) -> None:
        """Send `initialize` again after the server lost the session: once, even if several requests noticed.

        If this fails, it raises `TransportError`, and the next request sends `initialize` again first. The request
        that noticed the loss did not run.
        """
        async with self._reinit_lock:
            if self._initialize_count != initialize_count and not self._session_lost:
                return
            self._session_lost = True
            self.transport.reset_session()
            try:
                found = await negotiation.initialize(self.transport, CLIENT_INFO, self._callbacks.capabilities)
                self.negotiated = negotiation.mask_description(found, secrets_of(self._server).mask)
            except (TransportError, JSONRPCError) as exc:
                raise TransportError(f"no new session: {exc}", Certainty.NOT_SENT, code="E-HTTP-SESSION-NEW") from exc
            self._initialize_count += 1
            self._session_lost = False
            self._log_rank = -1
            if self.on_reinitialized is not None:
                self.on_reinitialized()

    async def _run_input_rounds(
        self, call: Call, params: Json, result: Json, input_schema: object, capabilities: Json | None
    ) -> Json:
        """Answer the server's requests for input and send the call again, until the final result.

        Raises `TransportError` after too many rounds, or if a request for input has no answer.
        """
        for _ in range(MAX_INPUT_ROUNDS - 1):
            call.state.highest_certainty = Certainty.UNKNOWN
            next_params = {**params, "inputResponses": await self._answer_input_requests(call, result)}
            if isinstance(result.get("requestState"), str):
                next_params["requestState"] = result["requestState"]
            try:
                result = await self.request(
                    call.method, next_params, call.state, input_schema=input_schema, capabilities=capabilities
                )
            except TransportError as exc:
                # A later round that was never sent does not undo what the earlier rounds did.
                exc.certainty = max(exc.certainty, Certainty.UNKNOWN)
                raise
            if result.get("resultType") != "input_required":
                return result
        raise TransportError(
            f"the server requested input more than {MAX_INPUT_ROUNDS} times", Certainty.UNKNOWN, code="E-ROUNDS"
        )

    async def _answer_input_requests(self, call: Call, result: Json) -> Json:
        """Answer all input requests in an `input_required` result concurrently.

        Raises `TransportError` if one of them has no answer.
        """
        requests = self._read_input_requests(call, result)
        answers = await asyncio.gather(*(self._answer_input_request(call, *each) for each in requests.values()))
        return dict(zip(requests, answers, strict=True))

    def _read_input_requests(self, call: Call, result: Json) -> dict[str, tuple[str, Json]]:
        """Return method and params of all input requests in an `input_required` result, by key.

        Raises `TransportError` if they are too many, or if one of them must not reach a client.
        """
        requests = result.get("inputRequests")
        found = {key: _method_and_params(each) for key, each in requests.items()} if isinstance(requests, dict) else {}
        try:
            self._router.admit(call, list(found.values()))
        except RejectedServerRequest as exc:
            raise TransportError(exc.message, Certainty.UNKNOWN, code=exc.error_code, hint=exc.hint) from None
        return found

    async def _answer_input_request(self, call: Call, method: str, params: Json) -> Json:
        try:
            return await self._router.forward(call, method, params)
        except (LookupError, CallbackError, TimeoutError) as exc:
            reason = f": {exc.message}" if isinstance(exc, CallbackError) else ", but no callback can answer"
            raise TransportError(
                f"the server requests {method}{reason}",
                Certainty.UNKNOWN,
                code="E-NO-ANSWER",
                hint="pass elicitation_callback, sampling_callback or list_roots_callback to the Hub"
                if call.callbacks is None
                else "call it from a client that can answer, or pass everything the tool needs as arguments",
            ) from None

    def has_log_level(self, level: str) -> bool:
        """Return True if a legacy server does not (or no longer) need to be asked for this log level."""
        return "logging" not in self.protocol.capabilities or versions.log_verbosity(level) <= self._log_rank

    async def _request_log_level(self, level: str | None, params: Json) -> Json:
        """Request log messages of this level and above. Return the changed params.

        A modern server gets the level in the params, and a legacy server with `logging/setLevel`. Without a level, a
        legacy server keeps its own.
        """
        if self.protocol.era == "modern":
            return _with_meta(params, LOG_LEVEL_META_KEY, level or versions.DEFAULT_LOG_LEVEL)
        if level is not None and not self.has_log_level(level):
            self._log_rank = versions.log_verbosity(level)
            # The call proceeds even if the server rejects the level, or is too busy to answer.
            with suppress(TransportError, JSONRPCError, TimeoutError):
                async with asyncio.timeout(SET_LEVEL_TIMEOUT_S):
                    await self.request("logging/setLevel", {"level": level})
        return params

    # -- messages from the server -------------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Json, call_state: CallState | None = None) -> None:
        self.last_activity = now = self._clock()
        if method not in versions.LIST_CHANGES and not self._notification_limit.try_acquire(now):
            self.dropped_notifications += 1  # never a list change: it only marks the list, however many arrive
            return
        if method == "notifications/progress":
            self._on_progress(params)
        elif method == "notifications/subscriptions/acknowledged":
            if self._acknowledged is not None and not versions.has_list_changed(params.get("notifications")):
                self._acknowledged.set()
        else:
            is_log = method == "notifications/message"
            if is_log and call_state is None and self.before_message is not None:
                self.before_message(self, False)
            delivered = is_log and self._router.notify(method, params, call_state)
            self._listener(method, {**params, DELIVERED_LOG_MARKER: True} if delivered else params)

    async def on_request(self, method: str, params: Json, call_state: CallState | None = None) -> Json | None:
        if self.negotiated is not None and self.negotiated.era != "legacy":
            return None  # only legacy servers send requests
        if method == "ping":
            return {}
        if call_state is None and self.before_message is not None:
            self.before_message(self, True)
        return await self._router.handle(method, params, call_state)

    def _register_progress(self, on_progress: ProgressCallback) -> int:
        self._last_progress_token += 1
        self._progress_callbacks[self._last_progress_token] = on_progress
        return self._last_progress_token

    def _on_progress(self, params: Json) -> None:
        token = params.get("progressToken")
        callback = (
            self._progress_callbacks.get(token) if isinstance(token, int) and not isinstance(token, bool) else None
        )
        progress = params.get("progress")
        if callback is None or not isinstance(progress, int | float):
            return
        total = params.get("total")
        message = params.get("message")
        self._report_progress(
            callback,
            progress,
            total if isinstance(total, int | float) else None,
            message if isinstance(message, str) else None,
        )

    def _report_progress(
        self, callback: ProgressCallback, progress: float, total: float | None, message: str | None
    ) -> None:
        try:
            callback(progress, total, message)
        except Exception:
            _log.exception("the progress callback of a call to %s failed", self._server)


def _method_and_params(request: object) -> tuple[str, Json]:
    found = request if isinstance(request, dict) else {}
    params = found.get("params")
    return str(found.get("method")), params if isinstance(params, dict) else {}


def _with_meta(params: Json, key: str, value: object) -> Json:
    meta = params.get("_meta")
    return {**params, "_meta": {**(meta if isinstance(meta, dict) else {}), key: value}}


# -- rate limit of notifications --------------------------------------------------------------------------------------


class TokenBucket:
    """Token bucket that allows `rate` events per second and bursts of `burst` events.

    No I/O: `now` is an argument.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._updated_at = now

    def try_acquire(self, now: float) -> bool:
        """Take one token for an event. Return False, and take none, if the rate is exceeded."""
        self._level = min(self._burst, self._level + (now - self._updated_at) * self._rate)
        self._updated_at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True
