"""Modern clients' calls that are waiting for user input which a legacy server requested.

A legacy server asks for input in the middle of a call, with a request to the client. A modern client cannot receive
requests, so it gets the result `input_required` and calls again with the input. Between these two calls, the server's
call is suspended here. The number of suspended calls is limited, and so is their time. Only the sealed handle given
to the client resumes a call. If the client never returns, the call is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from toolway.errors import CallError, Certainty, ProtocolError
from toolway.gateway.mcp import errors
from toolway.gateway.mcp.context import RequestContext, name_server, needed_capability
from toolway.gateway.mcp.errors import RpcFailure
from toolway.protocol.constants import MISSING_REQUIRED_CLIENT_CAPABILITY
from toolway.protocol.jsonrpc import encode_json
from toolway.secrets.replacer import cut_text
from toolway.types import Call, CallResult, Json

PENDING_TIMEOUT_S: Final = 900.0  # seconds a call stays suspended
MAX_PENDING_CALLS: Final = 4000  # suspended calls; at most half per principal
MAX_PENDING_BYTES: Final = 256 * 1024 * 1024  # params of all suspended calls, as JSON; at most half per principal
BATCH_DELAY_S: Final = 0.02  # seconds in which several server requests are combined into one result
MAX_INPUT_REQUESTS: Final = 32  # open server requests of one call
INPUT_KEY_META_KEY: Final = "toolway/inputKey"  # in `_meta` of a server request: the server's own key for it
MAX_INPUT_KEY_CHARS: Final = 64  # characters


class _InputRequest(msgspec.Struct):
    method: str
    params: Json
    response: asyncio.Future[Json]
    sent: bool = False  # sent to the client


class NotificationForwarder:
    """Forwards a call's progress and log notifications to the client request that is waiting for it.

    While no client request is waiting, notifications are dropped.
    """

    def __init__(self, context: RequestContext, meta: Json) -> None:
        self.attach(context, meta)

    def attach(self, context: RequestContext, meta: Json) -> None:
        """Forward the call's notifications to this client request from now on, with its progress token."""
        token = meta.get("progressToken")
        self._token = token if isinstance(token, str | int) and not isinstance(token, bool) else None
        self._context: RequestContext | None = context

    def detach(self) -> None:
        """Drop notifications until the next `attach`, because no client request is waiting for them."""
        self._context = None

    def forward_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._context is None or self._token is None:
            return
        params: Json = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        self._context.notify("notifications/progress", params)

    def forward_log(self, method: str, params: Json) -> None:
        if self._context is not None and self._context.wants_log_level(params.get("level")):
            self._context.notify(method, params)


class NoCallbacks:
    """`ClientCallbacks` for a client without capabilities, which rejects all server requests."""

    def __init__(self) -> None:
        self.capabilities: Json = {}
        self.missing_capabilities: set[str] = set()  # capabilities that the server needed

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        self.missing_capabilities.add(needed_capability(method, params))
        raise LookupError(method)


class PendingCall:
    """Call of a modern client to a legacy server that may suspend to get client input.

    It serves as the call's `ClientCallbacks`. A server request waits here until the client responds to it in a later
    request. There may be any number of such rounds.
    """

    def __init__(
        self,
        forwarder: NotificationForwarder,
        capabilities: Json,
        supports_request: Callable[[Json, str, Json], bool],
        early_responses: object = None,
    ) -> None:
        self.id = ""  # set while suspended
        self.size = 0  # bytes of the call's params, as JSON; set when first suspended
        self.capabilities = capabilities
        self.forwarder = forwarder
        self.binding: tuple[str, ...] = ()  # principal, endpoint and request that may resume it; set when suspended
        self._supports_request = supports_request
        self._early_responses: Json = (
            dict(early_responses) if isinstance(early_responses, dict) else {}
        )  # responses sent with the call itself
        self._input_requests: dict[str, _InputRequest] = {}
        self._numbers = itertools.count(1)
        self._missing_capabilities: set[str] = set()  # capabilities that the server needed and the client lacks
        self._changed = asyncio.Event()
        self._task: asyncio.Task[CallResult] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def start(self, call: Call, request: Coroutine[Any, Any, CallResult]) -> None:
        self.call = call
        self._task = asyncio.get_running_loop().create_task(request)
        self._task.add_done_callback(lambda _: self._changed.set())

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        """Wait for the client's response to a request that the server sends during the call, and return it.

        Raises `LookupError` if the client lacks the capability or too many requests are waiting.
        """
        if len(self._input_requests) >= MAX_INPUT_REQUESTS:
            raise LookupError(method)
        if not self._supports_request(self.capabilities, method, params):
            self._missing_capabilities.add(needed_capability(method, params))
            raise LookupError(method)
        key = self._input_key(params)
        if isinstance(self._early_responses.get(key), dict):
            answer: Json = self._early_responses.pop(key)
            return answer
        input_request = self._input_requests[key] = _InputRequest(
            method, name_server(server, method, params), asyncio.get_running_loop().create_future()
        )
        self._changed.set()
        try:
            return await input_request.response
        finally:
            del self._input_requests[key]

    def _input_key(self, params: Json) -> str:
        """Return a unique key under which the client answers a server request.

        It is the key that the server chose, if that key can be used, or else a new one.
        """
        meta = params.get("_meta")
        name = meta.get(INPUT_KEY_META_KEY) if isinstance(meta, dict) else None
        if isinstance(name, str) and 0 < len(name) <= MAX_INPUT_KEY_CHARS and name not in self._input_requests:
            return name
        return f"ask-{next(self._numbers)}"

    async def wait_next(self) -> CallResult | Json:
        """Wait for the call's result, or for server requests that the client must answer, and return them.

        Raises `CallError` if the call failed, or `RpcFailure` if it failed because the client lacks a capability.
        Cancelling this coroutine cancels the call.
        """
        assert self._task is not None
        try:
            while True:
                await self._changed.wait()
                if self._task.done():
                    return self._result(self._task)
                self._changed.clear()
                if any(not each.sent for each in self._input_requests.values()):
                    await asyncio.sleep(BATCH_DELAY_S)
                    if self._task.done():
                        return self._result(self._task)
                    return self._collect_input_requests()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _result(self, task: asyncio.Task[CallResult]) -> CallResult:
        """Return the finished call's result. Raises its error if it failed.

        That error is `RpcFailure` if the client lacks a capability that the server needed.
        """
        try:
            reply = task.result()
        except ProtocolError as exc:
            if self._missing_capabilities:
                raise missing_capability_failure(self._missing_capabilities, exc.detail) from None
            raise
        if self._missing_capabilities and reply.is_error:
            raise missing_capability_failure(self._missing_capabilities, reply.text)
        return reply

    def _collect_input_requests(self) -> Json:
        for each in self._input_requests.values():
            each.sent = True
        return {
            key: {"method": each.method, "params": each.params}
            for key, each in self._input_requests.items()
            if not each.response.done()
        }

    def add_responses(self, responses: object) -> None:
        """Pass the client's responses to the server requests that are waiting for them.

        A server request to which the client did not respond is sent to the client again.
        """
        given = responses if isinstance(responses, dict) else {}
        for key, input_request in self._input_requests.items():
            response = given.get(key)
            if isinstance(response, dict) and not input_request.response.done():
                input_request.response.set_result(response)
            else:
                input_request.sent = False
                self._changed.set()

    def cancel(self) -> None:
        self.cancel_expiry()
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_ignore_outcome)

    # -- while it is suspended ----------------------------------------------------------------------------------------

    def start_expiry(self, on_expired: Callable[[PendingCall], None], seconds: float) -> None:
        self._expiry = asyncio.get_running_loop().call_later(seconds, on_expired, self)

    def cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @property
    def done(self) -> bool:
        return self._task is None or self._task.done()


class PendingCalls:
    """A gateway's suspended calls, which are waiting for client input. Their number and time are limited."""

    def __init__(
        self,
        max_calls: int = MAX_PENDING_CALLS,
        timeout: float = PENDING_TIMEOUT_S,
        max_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self._calls: dict[str, PendingCall] = {}
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._timeout = timeout

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, id: str) -> bool:
        return id in self._calls

    def suspend(self, pending: PendingCall, binding: tuple[str, ...]) -> str:
        """Store a call until its client calls again with the input, and return the suspended call's id.

        If there are too many stored calls, or their params take too many bytes, the call is cancelled and
        `RpcFailure` is raised.
        """
        pending.size = pending.size or len(encode_json(pending.call.params))
        if not self._has_room(pending.size, binding[0]):
            pending.cancel()
            raise errors.too_many_pending_failure(pending.call)
        pending.forwarder.detach()
        pending.binding = binding
        pending.id = secrets.token_urlsafe(12)  # a new id in every round: an old handle cannot be reused
        self._calls[pending.id] = pending
        pending.start_expiry(self._expire, self._timeout)
        return pending.id

    def _has_room(self, size: int, principal_id: str) -> bool:
        calls = self._calls.values()
        own = [pending.size for pending in calls if pending.binding[0] == principal_id]
        return (
            len(calls) < self._max_calls
            and len(own) < max(1, self._max_calls // 2)
            and sum(pending.size for pending in calls) + size <= self._max_bytes
            and sum(own) + size <= self._max_bytes // 2
        )

    def resume(self, id: str, binding: tuple[str, ...]) -> PendingCall | None:
        """Remove and return the suspended call with this id if `binding` matches, otherwise None.

        It matches if the principal, endpoint, and request are the same as when the call was suspended.
        """
        pending = self._calls.get(id)
        if pending is None or pending.binding != binding:
            return None
        del self._calls[id]
        pending.cancel_expiry()
        return pending

    def close(self) -> None:
        for pending in list(self._calls.values()):
            self._expire(pending)

    def _expire(self, pending: PendingCall) -> None:
        self._calls.pop(pending.id, None)
        pending.cancel()


def missing_capability_failure(capabilities: set[str], server_message: str) -> RpcFailure:
    """Return the error for a client that lacks capabilities which the server needed during a call.

    The server has already executed the call; `server_message` is what the server said.
    """
    needed: Json = {}
    for name in sorted(capabilities):
        capability, _, part = name.partition(".")
        needed[capability] = {part: {}} if part else {}
    facts = {
        "requiredCapabilities": needed,
        "executed": "yes",
        "certainty": Certainty.EXECUTED.code,
        "said": cut_text(server_message, 500),
    }
    return RpcFailure(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"server requires client support for {', '.join(sorted(capabilities))}",
        facts,
    )


def _ignore_outcome(task: asyncio.Task[CallResult]) -> None:
    """Retrieve an abandoned call's error, so asyncio does not log it as never retrieved."""
    if not task.cancelled():
        error = task.exception()
        assert error is None or isinstance(error, CallError | Exception)
