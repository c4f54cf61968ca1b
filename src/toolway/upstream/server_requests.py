"""Routes server requests and log messages to the running calls of one session.

Over HTTP, a server request or log message arrives on the stream of its call. Over a pipe it names no call. There,
calls of gateway clients to tools that send requests take turns, and a request belongs to the call that has the turn.
If no call has it, the request goes to a call without an open request. Tools that sent requests before are preferred,
then the tool called last; among its calls, the oldest is chosen. Two authorization contexts never share a pipe whose
server sends requests. So the worst case is that the right user gets the request in the wrong window.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from toolway.protocol.constants import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND
from toolway.protocol.sanitize import browser_url_problem, map_texts, remove_invisible
from toolway.protocol.versions import CALLBACK_CAPABILITIES, log_verbosity
from toolway.types import Call, CallbackError, CallState, ClientCallbacks, Json
from toolway.upstream.transport import JSONRPCError

MAX_REQUESTS_PER_CALL: Final = 64  # unless the limits of the server say otherwise
USER_ANSWER_TIMEOUT_S: Final = 900.0  # for a caller to answer one server request
MAX_ASKING_TOOLS: Final = 1000  # remembered names of tools that send requests
_PLAIN_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]+")  # with a port, or an IPv6 address in brackets
_log = logging.getLogger(__name__)


class RejectedServerRequest(CallbackError):
    """Raised for a server request that must not reach a client. The server gets it as an error.

    `error_code` and `hint` are for the error of the call, if the call fails because of the rejection.
    """

    def __init__(self, message: str, error_code: str, hint: str) -> None:
        super().__init__(INVALID_REQUEST, message, {"code": error_code})
        self.error_code = error_code
        self.hint = hint


def check_server_request(method: str, params: Json) -> None:
    """Raise `RejectedServerRequest` if an elicitation URL is not http(s), or is a lookalike.

    Clients may follow a `url` in any mode, so it is checked in all of them.
    """
    if method != "elicitation/create":
        return
    mode = params.get("mode") or "form"
    problem = ""
    if mode not in ("form", "url"):
        problem = "unknown elicitation mode"
    elif mode == "url" or "url" in params:
        url = str(params.get("url"))
        problem = browser_url_problem(url) or _host_problem(url)
        problem = problem and f"the URL of the elicitation {problem}"
    if problem:
        hint = "report it to the maintainer of the server; the user was not asked"
        raise RejectedServerRequest(problem, "E-ELICIT-URL", hint)


def _host_problem(url: str) -> str:
    """Return why a user or browser could mistake a URL's host for another one, or "" if they cannot.

    Letters of other scripts, such as a Cyrillic a, are fine: their ASCII form (`xn--…`) is unmistakable.
    """
    is_plain = _PLAIN_HOST.fullmatch(urlsplit(url).netloc) is not None
    return "" if is_plain else "has other characters in its host than ASCII letters, digits, hyphens and dots"


def clean_server_request(params: Json) -> Json:
    """Remove control, direction and invisible characters from a server request's params.

    A user reads all of its strings, even a form's labels and values. Such characters could hide which server is
    asking, or show something else. `_meta` is for programs and stays unchanged.
    """
    return {name: value if name == "_meta" else map_texts(value, remove_invisible) for name, value in params.items()}


class ServerRequestRouter:
    """Routes the requests that a server sends to the callbacks of the call that caused them.

    `callbacks` answers if the call has no callbacks. The server may send `max_per_call` requests during one call, and
    one more only if `try_acquire` returns True: that is the rate limit of the connection.
    """

    def __init__(
        self,
        server: str,
        callbacks: ClientCallbacks,
        max_per_call: int = MAX_REQUESTS_PER_CALL,
        try_acquire: Callable[[float], bool] = lambda now: True,
    ) -> None:
        self._server = server
        self._callbacks = callbacks
        self._max_per_call = max_per_call
        self._try_acquire = try_acquire
        self._is_throttled = False  # the last request was rejected by the rate limit
        self._calls: dict[int, Call] = {}  # by the identity of their states, the latest last
        self._asking_tools: set[str] = set()  # names of tools that have sent requests
        self._turns = TurnQueue()
        self._pending: dict[int, set[asyncio.Task[Any]]] = {}  # requests of a legacy server being answered, by call

    def __len__(self) -> int:
        return len(self._calls)

    def calls(self) -> list[Call]:
        return list(self._calls.values())

    def add(self, call: Call) -> None:
        self._calls[id(call.state)] = call

    async def wait_for_turn(self, call: Call) -> None:
        """Wait until this call's server requests can be attributed to it on a shared pipe."""
        await self._turns.wait_first_turn(call)

    def is_silent(self, name: str) -> bool:
        """Return True if the last call to a tool ended without a server request.

        Calls of such a tool need not take turns with other calls on the same pipe.
        """
        return self._turns.is_silent(name)

    def adopt(self, call: Call) -> None:
        """Register a call that was already sent, so the server's requests can be attributed to it.

        The call did not wait for its turn (`wait_for_turn`), so its tool must be one that sends no server requests
        (`is_silent`).
        """
        self.add(call)
        if call.callbacks is not None:
            self._turns.start_without_turn(call)

    def on_result(self, call: Call) -> None:
        """Record that the server has sent the result of the call, and whether its tool sends server requests."""
        if call.callbacks is not None:
            self._turns.on_result(call)

    def remove(self, call: Call) -> None:
        """Remove a call that has ended, and cancel its server requests that are still unanswered."""
        self._calls.pop(id(call.state), None)
        if call.callbacks is not None:
            self._turns.remove(call)
        if self._pending:
            for task in self._pending.pop(id(call.state), ()):
                task.cancel()

    # -- server requests ----------------------------------------------------------------------------------------------

    async def handle(self, method: str, params: Json, call_state: CallState | None) -> Json:
        """Answer a legacy server's request during a call, using the call's callbacks.

        Raises `JSONRPCError` if no call is running, or if its callbacks give no answer.
        """
        if not self._calls:
            raise JSONRPCError(INVALID_REQUEST, "no call is running")
        call, task = self._pick_call(method, call_state), asyncio.current_task()
        assert task is not None
        try:
            self.admit(call, [(method, params)])
        except RejectedServerRequest as exc:
            raise JSONRPCError(exc.code, exc.message, exc.data) from None
        tasks = self._pending.setdefault(id(call.state), set())
        tasks.add(task)
        if call_state is None:
            self._turns.on_server_request(call)
        try:
            answer = await self.forward(call, method, params)
            await self._turns.resume(call)
            return answer
        except LookupError:
            raise JSONRPCError(METHOD_NOT_FOUND, f"{method} is not supported by this client") from None
        except CallbackError as exc:
            raise JSONRPCError(exc.code, exc.message, exc.data) from None
        except TimeoutError:
            raise JSONRPCError(INTERNAL_ERROR, "the client did not answer in time") from None
        except Exception as exc:
            _log.exception("the callback for %s of %s failed", method, self._server)
            raise JSONRPCError(INTERNAL_ERROR, "the client could not answer") from exc
        finally:
            tasks.discard(task)

    def admit(self, call: Call, requests: Sequence[tuple[str, Json]]) -> None:
        """Count and check the requests a server sends during `call`. Limits are the same for both eras.

        Raises `RejectedServerRequest` if there are too many or one is not allowed. None of them may reach a client
        then.
        """
        state, now = call.state, asyncio.get_running_loop().time()
        was_over = state.server_requests > self._max_per_call
        state.server_requests += len(requests)
        if state.server_requests > self._max_per_call:
            reason, is_known = f"at most {self._max_per_call} are allowed during one call", was_over
        elif not all(self._try_acquire(now) for _ in requests):
            reason, is_known, self._is_throttled = "they arrive too fast", self._is_throttled, True
        else:
            self._is_throttled = False
            for method, params in requests:
                check_server_request(method, params)
            return
        if not is_known:
            _log.warning("%s sends too many server requests, in a call of %s: %s", self._server, call.name, reason)
        hint = 'if the server needs them, raise "limits": {"maxServerRequests": …} in its entry'
        raise RejectedServerRequest(f"too many server requests: {reason}", "E-SERVER-REQUESTS", hint)

    async def forward(self, call: Call, method: str, params: Json) -> Json:
        """Forward an admitted server request to the callbacks of `call` and return the answer.

        The time that the user takes does not count toward the call's deadline. Raises `LookupError` if no callback
        supports the method, `CallbackError` if the callback rejects it, `TimeoutError` after 15 minutes, or the
        callback's own exception.
        """
        loop = asyncio.get_running_loop()
        call.state.begin_user_wait(loop.time())
        try:
            async with asyncio.timeout(USER_ANSWER_TIMEOUT_S):
                callbacks = self._callbacks_for(call)
                return await callbacks.handle_request(self._server, method, clean_server_request(params))
        finally:
            call.state.end_user_wait(loop.time())

    def _pick_call(self, method: str, call_state: CallState | None) -> Call:
        """Return the running call that most likely caused a server request."""
        if call_state is not None and id(call_state) in self._calls:
            return self._calls[id(call_state)]
        if self._turns.current is not None:
            return self._turns.current
        capability = CALLBACK_CAPABILITIES.get(method, "")
        calls = list(self._calls.values())
        capable = [call for call in calls if capability in self._callbacks_for(call).capabilities] or calls[-1:]
        free = [call for call in capable if not call.state.is_waiting_for_user] or capable
        if len(calls) == 1 and len(self._asking_tools) < MAX_ASKING_TOOLS:
            self._asking_tools.add(calls[0].name)
        asking = [call for call in free if call.name in self._asking_tools]
        return asking[0] if asking else next(call for call in free if call.name == free[-1].name)

    def _callbacks_for(self, call: Call) -> ClientCallbacks:
        return call.callbacks if call.callbacks is not None else self._callbacks

    # -- log messages -------------------------------------------------------------------------------------------------

    def notify(self, method: str, params: Json, call_state: CallState | None) -> bool:
        """Deliver a server's log message to the running calls it may belong to.

        Return False if it was delivered to none, for example because the calls have different callers.
        """
        if call_state is not None and id(call_state) in self._calls:
            calls = [self._calls[id(call_state)]]
        else:
            calls = [call for call in self._calls.values() if call.on_log is not None]
            if len({call.caller for call in calls}) > 1:
                return False  # its caller is ambiguous
        delivered = False
        for call in calls:
            if call.on_log is not None and _is_level_wanted(params.get("level"), call.log_level):
                call.on_log(method, params)
                delivered = True
        return delivered


def _is_level_wanted(level: object, minimum: str | None) -> bool:
    return minimum is None or log_verbosity(level) <= log_verbosity(minimum)


# -- turns on a pipe --------------------------------------------------------------------------------------------------

TURN_TIMEOUT_S: Final = 5.0  # that a turn is exclusive; later requests may be attributed to the wrong call
REQUEST_BATCH_S: Final = 0.02  # within which concurrent requests of one call arrive
TRIAL_TIMEOUT_S: Final = 0.3  # that calls of an unknown tool wait until the first one shows whether it sends requests
MAX_KNOWN_TOOLS: Final = 10_000  # tools whose behavior is remembered


class TurnQueue:
    """Makes calls on one pipe take turns, so server requests can be attributed to a call.

    On a pipe, a server request names no call. Among calls whose tools send requests, only one runs at a time, so a
    server request belongs to that call. While a call waits for its client's answer, it gives up the turn and takes
    it again afterwards. A tool that once ended without a server request is treated as silent and runs in parallel
    with all calls.
    """

    def __init__(self) -> None:
        self.current: Call | None = None  # has the turn
        self._since = 0.0
        self._queue: deque[tuple[Call, asyncio.Future[None]]] = deque()
        self._members: set[int] = set()  # ids of call states
        self._sends_requests: dict[str, bool] = {}  # by tool: True if its last call caused a server request
        self._trials: dict[str, asyncio.Event] = {}  # by tool: set when its first call has shown its behavior
        # By call state: calls that started without a turn, and have no server request or result yet.
        self._without_turn: dict[int, Call] = {}

    async def wait_first_turn(self, call: Call) -> None:
        """Wait before a call is sent, if its tool sends server requests, until no other such call is running.

        Calls of the library skip this: they all have the same caller.
        """
        if call.callbacks is None:
            return
        call.state.phase = "turn"
        if call.name not in self._sends_requests:
            await self._await_trial(call.name)
        if self._sends_requests.get(call.name):
            self._members.add(id(call.state))
            await self._acquire(call)
        else:
            self.start_without_turn(call)

    def is_silent(self, name: str) -> bool:
        """Return True if a tool is known, and its last call caused no server request."""
        return self._sends_requests.get(name) is False

    def start_without_turn(self, call: Call) -> None:
        self._without_turn[id(call.state)] = call

    async def _await_trial(self, name: str) -> None:
        """Let an unknown tool's first call pass; make later calls wait until it has ended.

        The first call shows whether the tool sends server requests. If it takes more than `TRIAL_TIMEOUT_S` seconds,
        the tool counts as one that sends none.
        """
        trial = self._trials.get(name)
        if trial is None:
            self._trials[name] = asyncio.Event()
            return
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                await trial.wait()
        except TimeoutError:
            self._record_behavior(name, sends_requests=False)

    def _record_behavior(self, name: str, *, sends_requests: bool) -> None:
        if len(self._sends_requests) >= MAX_KNOWN_TOOLS:
            self._sends_requests.clear()
        self._sends_requests[name] = sends_requests
        trial = self._trials.pop(name, None)
        if trial is not None:
            trial.set()

    async def resume(self, call: Call) -> None:
        """Wait until the call has the turn again, after its client has answered a server request."""
        if id(call.state) in self._members and self.current is not call:
            await self._acquire(call)

    async def _acquire(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_busy():
            self.current, self._since = call, loop.time()
            return
        if self.current is None and not self._queue:
            self._since = loop.time()  # the calls that run without a turn get the full time
        waiter = (call, loop.create_future())
        self._queue.append(waiter)
        try:
            while not waiter[1].done() and (left := self._since + TURN_TIMEOUT_S - loop.time()) > 0:
                await asyncio.wait({waiter[1]}, timeout=left)
        except asyncio.CancelledError:
            self._release(call)  # it may have got the turn just now
            raise
        finally:
            if not waiter[1].done():
                self._queue.remove(waiter)

    def _is_busy(self) -> bool:
        """Return True if the next server request could belong to a running call, so a new call must wait."""
        return self.current is not None or any(
            self._sends_requests.get(call.name) for call in self._without_turn.values()
        )

    def on_server_request(self, call: Call) -> None:
        """Record that the call caused a server request. The next call gets the turn while it waits."""
        if call.callbacks is not None:
            self._record_behavior(call.name, sends_requests=True)
            self._members.add(id(call.state))
        self._without_turn.pop(id(call.state), None)
        asyncio.get_running_loop().call_later(REQUEST_BATCH_S, self._release_if_waiting, call)

    def _release_if_waiting(self, call: Call) -> None:
        if call.state.is_waiting_for_user:
            self._release(call)

    def _release(self, call: Call) -> None:
        if self.current is call:
            self.current = None
        if self._queue and not self._is_busy():
            self.current, future = self._queue.popleft()
            self._since = asyncio.get_running_loop().time()
            future.set_result(None)

    def on_result(self, call: Call) -> None:
        """Record the result of a call. If it caused no server request, its tool counts as silent."""
        if call.callbacks is not None and not call.state.has_waited_for_user:
            self._record_behavior(call.name, sends_requests=False)

    def remove(self, call: Call) -> None:
        self._members.discard(id(call.state))
        self._without_turn.pop(id(call.state), None)
        self._release(call)
