"""Values and protocols shared by all layers: tool references, calls, call state, results.

Nothing here blocks, reads a clock or does I/O. Values that every call copies are msgspec structs, because copying a
frozen dataclass costs ten times as much.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

import jiter
import msgspec

from toolway.errors import Certainty as Certainty
from toolway.errors import ToolError

Json: TypeAlias = dict[str, Any]
JsonValue: TypeAlias = dict[str, Any] | list[Any] | str | float | bool | None
MAX_JSON_TEXT_CHARS: Final = 8 * 1024 * 1024  # of a string that `ToolResult.data` parses; the default message limit

#: Called with (progress, total or None, message or None) while a call runs.
ProgressCallback: TypeAlias = Callable[[float, float | None, str | None], None]

#: The same as a function or a coroutine function, for users of `Hub`.
AnyProgressCallback: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]

#: Called with (method, params) of a server notification that belongs to a call.
LogCallback: TypeAlias = Callable[[str, Json], None]

#: Protocol era: modern (since 2026-07-28), legacy (begins with `initialize`), bare (a server without a handshake).
Era: TypeAlias = Literal["modern", "legacy", "bare"]

#: Clock of phase marks. Not the loop's clock, which some loops update only once a millisecond.
phase_clock = time.perf_counter
MAX_PHASE_MARKS = 500  # limit for a call whose server sends endless requests to the caller

#: (phase, start time) pairs on the clock above
PhaseMarks: TypeAlias = Sequence[tuple[str, float]]

#: (attempt number, error code, certainty) of each failed attempt
FailedAttempts: TypeAlias = Sequence[tuple[int, str, Certainty]]


class ToolRef(msgspec.Struct, frozen=True):
    """A tool's identity: the configured name of its server, and the tool's MCP name.

    Example:
        ToolRef("github", "search_issues")
    """

    server: str
    tool: str

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"


class Effect(enum.StrEnum):
    """A call's effect class, which decides whether the call may run again.

    Example:
        Server(url="https://shop.example/mcp", tools={"list_*": ToolSettings(effect=Effect.READ)})
    """

    READ = "read"  # it changes nothing
    IDEMPOTENT = "idempotent"  # running it twice does what running it once does
    UNSAFE = "unsafe"  # each run counts


class CallState(msgspec.Struct, eq=False):
    """Mutable state of one running call: phase, attempts, and how certain it is that the call ran.

    Each component records a fact here as soon as it knows it. A deadline or cancellation that ends the call from
    outside can then report truthfully what happened.
    """

    certainty: Certainty = Certainty.NOT_SENT  # of the current attempt
    phase: str = "queue"  # see `middleware/deadline.py`
    attempt_number: int = 0  # attempts begun
    highest_certainty: Certainty = Certainty.NOT_SENT  # of the earlier attempts
    keep_raw: bool = False  # the caller wants the response bytes unchanged, to forward them
    caller: str = ""  # caller id, "" for the local owner; only this caller's credentials may be used
    requires_modern: bool = False  # it was meant for a modern session: on a legacy one, each caller has its own
    raw_bytes: memoryview | None = None  # the last result as received, if requested and known
    shared_with: CallState | None = None  # state of the identical call whose result this call shares
    jsonrpc_id: int | None = None  # JSON-RPC id of the last request that was sent
    on_release_slot: Callable[[], None] | None = None  # set while the call holds a concurrency slot
    on_late_result: Callable[[Json], None] | None = None  # receives a result that arrives after the call has ended
    may_send: Callable[[], bool] | None = None  # if set, asked right before the first byte of the request is sent
    forwarding_info: Any = None  # data for the node that the call is forwarded to
    request_id: str = ""  # `X-Request-ID` that the client of a gateway sent
    approved_by: str = ""  # who approved the call: "client" or "admin"; "" if it needed no approval
    server_requests: int = 0  # requests that the server has sent during this call
    _open_user_waits: int = 0  # server requests that the caller has not answered yet
    _user_wait_since: float = 0.0
    _user_wait_total: float = 0.0  # seconds the caller took to answer earlier ones

    def spawn(self) -> CallState:
        """Return a new state of the same class, for an execution that several calls share.

        That execution may outlive this call.
        """
        return CallState()

    def mark_connecting(self) -> None:
        """Record that the call is waiting for a connection to its server."""
        self.phase = "connect"

    def record_failed_attempt(self, code: str, certainty: Certainty) -> None:
        """Record the error code of a failed attempt. Only `TimedCallState` stores it; here this does nothing."""

    def mark_sent(self) -> None:
        """Record that the first byte of the request was sent. From now on, the server may execute it."""
        self.certainty = Certainty.UNKNOWN
        self.phase = "server"

    def begin_attempt(self) -> None:
        """Begin a new attempt. `highest_certainty` keeps the certainty of earlier attempts."""
        if self.certainty is not Certainty.NOT_SENT:
            self.highest_certainty = max(self.highest_certainty, self.certainty)
            self.certainty = Certainty.NOT_SENT
        self.phase = "queue"
        self.raw_bytes = None
        self.attempt_number += 1

    def overall_certainty(self) -> Certainty:
        """Return the highest certainty of all attempts.

        If this call shares the result of another call, its attempts count too.
        """
        own = max(self.highest_certainty, self.certainty)
        return own if self.shared_with is None else max(own, self.shared_with.overall_certainty())

    def begin_user_wait(self, now: float) -> None:
        """Record that the server is waiting for the caller to answer a server request.

        This releases the concurrency slot, and the waiting time does not count toward the call's deadline.
        """
        if not self._open_user_waits:
            self._user_wait_since = now
        self._open_user_waits += 1
        self.release_slot()

    def end_user_wait(self, now: float) -> None:
        """Record that the caller has answered one server request, such as an elicitation."""
        self._open_user_waits -= 1
        if not self._open_user_waits:
            self._user_wait_total += now - self._user_wait_since

    def user_wait_seconds(self, now: float) -> float:
        """Return how many seconds the server has spent waiting for the caller's answers."""
        own = self._user_wait_total + (now - self._user_wait_since if self._open_user_waits else 0.0)
        return own if self.shared_with is None else max(own, self.shared_with.user_wait_seconds(now))

    @property
    def is_waiting_for_user(self) -> bool:
        """Return True if the caller has not yet answered a server request of this call."""
        return self._open_user_waits > 0

    @property
    def has_waited_for_user(self) -> bool:
        """Return True if the server has sent any request to the caller during this call."""
        return self._open_user_waits > 0 or self._user_wait_total > 0

    def release_slot(self) -> None:
        """Release the call's concurrency slot, if it holds one."""
        release, self.on_release_slot = self.on_release_slot, None
        if release is not None:
            release()

    @property
    def attempts(self) -> int:
        """Return the number of attempts begun, by this call or by the call whose result it shares."""
        return self.attempt_number if self.shared_with is None else max(self.attempt_number, self.shared_with.attempts)

    @property
    def current_phase(self) -> str:
        """Return the current phase of the call, such as `queue` or `send`.

        If the call shares another call's result, return the other call's phase.
        """
        return self.phase if self.shared_with is None else self.shared_with.current_phase


class TimedCallState(CallState, eq=False):
    """Call state that also records when each phase started, for events and traces."""

    phase_marks: list[tuple[str, float]] = msgspec.field(default_factory=lambda: [("queue", phase_clock())])
    failed_attempts: FailedAttempts = ()
    trace: Any = None  # the tracer's data for the call
    effect: str = ""  # of the call, once known

    @property  # type: ignore[misc]  # replaces the field of the base class; reads and writes stay the same
    def phase(self) -> str:
        return self.phase_marks[-1][0]

    @phase.setter
    def phase(self, value: str) -> None:
        self.phase_marks.append((value, phase_clock()))

    def spawn(self) -> TimedCallState:
        state = TimedCallState()
        state.trace = self.trace
        return state

    def phase_history(self) -> PhaseMarks:
        """Return the (phase, start time) pairs of this call, or of the call whose result it shares."""
        leader = self.shared_with
        if not isinstance(leader, TimedCallState):
            return self.phase_marks
        start = self.phase_marks[0][1]
        return [self.phase_marks[0], *((phase, max(at, start)) for phase, at in leader.phase_marks[1:])]

    def record_failed_attempt(self, code: str, certainty: Certainty) -> None:
        self.failed_attempts = (*self.failed_attempts, (self.attempt_number, code, certainty))

    def begin_user_wait(self, now: float) -> None:
        if not self.is_waiting_for_user and len(self.phase_marks) < MAX_PHASE_MARKS:
            self.phase_marks.append(("caller", phase_clock()))
        super().begin_user_wait(now)

    def end_user_wait(self, now: float) -> None:
        super().end_user_wait(now)
        if not self.is_waiting_for_user and len(self.phase_marks) < MAX_PHASE_MARKS:
            before = next(phase for phase, _ in reversed(self.phase_marks) if phase != "caller")
            self.phase_marks.append((before, phase_clock()))


class ClientCallbacks(Protocol):
    """Answers requests that servers send to the client, such as elicitation, sampling, and roots."""

    @property
    def capabilities(self) -> Json:
        """Return the client capabilities to declare to servers: only those that can be answered."""
        ...

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        """Answer one request from a server, and return the result to send back.

        Raises `LookupError` if no callback handles `method`, and `CallbackError` if the server should get an error.
        """
        ...


class CallbackError(Exception):
    """Raised by a callback to answer a server request with an error, which is sent to the server."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True)
class AuthChallenge:
    """A server's 401 or 403 response to a request with a missing or rejected credential."""

    status: int  # 401 or 403
    www_authenticate: str  # the WWW-Authenticate header; may be empty
    sent_authorization: str = field(repr=False)  # the rejected Authorization header; empty if none was sent
    operation: str = ""  # the rejected request: its method, and its tool if there is one


class Authorizer(Protocol):
    """Supplies the Authorization header for one server, which is only ever sent to the origin of the server's URL."""

    @property
    def is_inactive(self) -> bool:
        """Return True if no credential is known and the server has not required one yet.

        Transports then send requests without using this object.
        """
        ...

    def activate(self) -> None:
        """Record that the server requires a credential: `is_inactive` becomes False."""
        ...

    def allows(self, caller: str) -> bool:
        """Return True if the credential may be used for this caller id; "" is the hub itself."""
        ...

    @property
    def is_interactive(self) -> bool:
        """Return True if getting a credential may involve a user logging in, which can take minutes."""
        ...

    async def authorization_header(self) -> str:
        """Return the Authorization header for the next request, or "" without a credential.

        Waits only if the token is due for a refresh. Raises `AuthError` if the refresh fails and the token has
        expired.
        """
        ...

    async def on_challenge(self, challenge: AuthChallenge) -> bool:
        """Get another credential after the server rejected the one that was sent.

        Return True if the request should be sent again. All requests that were rejected with the same credential share
        one new credential. Raises `AuthError` if none can be obtained.
        """
        ...

    def on_rejected(self, challenge: AuthChallenge) -> None:
        """Record that the server rejected the new credential too. The caller then fails the request."""
        ...


class AuthError(Exception):
    """Raised when a server has no credential and none could be obtained.

    Never contains a secret.
    """

    def __init__(self, reason: str, *, code: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.hint = hint


class Call(msgspec.Struct, frozen=True, eq=False):
    """One call in the middleware chain. Immutable: middleware passes on a changed copy.

    Attributes:
        server: Name of the server.
        name: Name of the tool or prompt, or URI of the resource, as the server names it.
        method: MCP method, such as `tools/call` or `resources/read`.
        effect: The tool's effect class, which decides whether the call may run again.
        timeout: Seconds for the whole call; None uses the server's setting.
        idempotency_key: The caller's idempotency key, or None.
        caller: The caller's id at a gateway; empty in a library.

    Example:
        async def add_tenant(call: Call, next: CallHandler) -> CallResult:
            return await next(call.with_arguments({**call.arguments, "tenant": "acme"}))
    """

    target: str  # what the caller requested: "server.tool", or a name or URI if `server` is given
    method: str  # the MCP method
    params: Json
    server: str = ""  # set by the `resolve` middleware, like `name`
    name: str = ""  # the tool, prompt or URI as the server names it
    timeout: float | None = None  # seconds; None = the server's setting
    deadline: float = 0.0  # on the loop's clock; set by the `deadline` middleware
    on_progress: ProgressCallback | None = None
    effect: Effect = Effect.UNSAFE  # set by the `resolve` middleware
    idempotent: bool | None = None  # the caller declares that the call may run again
    max_attempts: int | None = None  # None = the server's setting
    retry: Any = None  # `RetryPolicy` of this call; None = the tool's or the server's
    attempt_timeout: float | None = None  # seconds for one attempt; set by the `resolve` middleware
    idempotency_key: str | None = None  # the caller's idempotency key
    caller: str = ""  # caller id, the authorization context; "" for the local owner
    state: CallState = msgspec.field(default_factory=CallState)
    id: str = ""  # under which the call is reported and cancelled
    callbacks: ClientCallbacks | None = None  # answers server requests of this call; None = the hub's callbacks
    capabilities: Json | None = None  # capabilities that the caller declared; None = those of `callbacks`
    return_input_required: bool = False  # return `input_required` to the caller instead of answering it
    on_log: LogCallback | None = None  # receives the log messages of the call
    log_level: str | None = None  # lowest level to receive
    downstream: Any = None  # the client request that caused the call, for tracing; None in a library
    may_send: Callable[[], bool] | None = None  # returns False if it is too late to send the call
    forwarded: bool = False  # forwarded by another node, which reports it: each call is counted once
    policy: Any = None  # policy of the tool, used by later middleware; set by the `resolve` middleware
    approval: Any = None  # `ApprovalReply`, if the client answers a question about this call
    is_notification: bool = False  # sent without waiting for an answer
    earlier: Any = None  # `EarlierCall` with the same idempotency key; set by the `idempotency` middleware

    @property
    def tool(self) -> str:
        """Return the name of the tool as its server names it. Equal to `name`."""
        return self.name

    @property
    def arguments(self) -> Json:
        """Return the arguments for the tool or prompt. Do not change them; use `with_arguments`."""
        arguments = self.params.get("arguments")
        return arguments if isinstance(arguments, dict) else {}

    def with_arguments(self, arguments: Mapping[str, Any]) -> Self:
        """Return a copy of the call with other arguments, to pass on to the rest of the middleware chain.

        Args:
            arguments: All arguments of the new call.

        Returns:
            The changed copy.

        Example:
            result = await next(call.with_arguments({**call.arguments, "limit": 10}))
        """
        return msgspec.structs.replace(self, params={**self.params, "arguments": dict(arguments)})


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call, for any MCP method. `raw` is the server's result, unchanged.

    A `Hub` returns a subclass: `ToolResult`, `ResourceResult`, or `PromptResult`. Their properties are views of
    `raw`.

    Example:
        result = await next(call)
        print(result.server, result.name, result.text)
    """

    server: str
    name: str  # the tool, prompt or URI as the server names it
    raw: Json
    duration: float = 0.0  # seconds, with all attempts
    attempts: int = 1
    from_cache: bool = False
    replayed: bool = False  # the stored result of an earlier call with the same idempotency key
    raw_bytes: memoryview | None = None  # `raw` as received, for callers that requested it

    @property
    def meta(self) -> Json:
        """Return the `_meta` object of the result; empty if the server sent none."""
        meta = self.raw.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def is_error(self) -> bool:
        """Return True if a tool ran and reported a failure (`isError` in its result)."""
        return self.raw.get("isError") is True

    @property
    def text(self) -> str:
        """Return the text of all content blocks, resource contents or prompt messages, joined by newlines.

        Embedded resources contribute their text, and links become Markdown links. Images, sound, and other binary
        content appear as their type and size: `[image/png, 12 kB]`.
        """
        blocks = _dicts_in(self.raw.get("content")) or _dicts_in(self.raw.get("contents"))
        blocks = blocks or [each["content"] for each in _dicts_in(self.raw.get("messages")) if "content" in each]
        found = (_text_of(block) for block in blocks if isinstance(block, dict))
        return "\n".join(text for text in found if text is not None)


class ToolResult(CallResult, frozen=True):
    """Result of a tool call: the server's `CallToolResult` plus call details.

    Attributes:
        server: Name of the server.
        raw: The result as the server sent it.
        duration: Seconds that the call took, including all attempts.
        attempts: How many attempts were made.
        from_cache: True if the result came from the cache.
        replayed: True if the result comes from an earlier call with the same idempotency key.

    Example:
        result = await hub.call_tool("weather.forecast", {"city": "Oslo"})
        print(result.structured_content or result.text)
    """

    @property
    def tool(self) -> str:
        """Return the name of the tool as its server names it."""
        return self.name

    @property
    def content(self) -> list[Json]:
        """Return the content blocks of the tool result, such as text and images, as dictionaries."""
        return _dicts_in(self.raw.get("content"))

    @property
    def structured_content(self) -> JsonValue:
        """Return the structured content of the tool result, or None if it has none.

        Usually an object, but any JSON value is possible: the tool's `outputSchema` defines its type.
        """
        return self.raw.get("structuredContent")

    @property
    def data(self) -> Any:
        """Return the structured content, or else the object or list in a single text block of JSON.

        Return None if the result has neither. The text is parsed on each access, up to 8 MiB.
        """
        structured = self.raw.get("structuredContent")
        return structured if structured is not None else _parse_json_text(self.raw.get("content"))

    def raise_for_error(self) -> Self:
        """Return this result, or raise `ToolError` if the tool reported a failure.

        Raises:
            ToolError: The tool ran and reported a failure (`is_error`).
        """
        if self.is_error:
            raise ToolError(
                f"{self.server}.{self.name} failed",
                result=self,
                server=self.server,
                tool=self.name,
                attempts=self.attempts,
                certainty=Certainty.EXECUTED,
                detail=self.text[:500],
            )
        return self


class ResourceResult(CallResult, frozen=True):
    """Contents of a resource: the server's `ReadResourceResult` plus call details.

    Example:
        notes = await hub.read_resource("file:///notes.md", server="files")
        print(notes.text)
    """

    @property
    def uri(self) -> str:
        """Return the URI that was read."""
        return self.name

    @property
    def contents(self) -> list[Json]:
        """Return the contents of the resource: dictionaries with `uri` and `text` or `blob`."""
        return _dicts_in(self.raw.get("contents"))


class PromptResult(CallResult, frozen=True):
    """Messages of a prompt: the server's `GetPromptResult` plus call details.

    Example:
        prompt = await hub.get_prompt("docs.summarize", {"topic": "leases"})
        messages = prompt.messages
    """

    @property
    def prompt(self) -> str:
        """Return the name of the prompt as its server names it."""
        return self.name

    @property
    def messages(self) -> list[Json]:
        """Return the messages of the prompt: dictionaries with `role` and `content`."""
        return _dicts_in(self.raw.get("messages"))


_RESULT_TYPES: Final[dict[str, type[CallResult]]] = {
    "tools/call": ToolResult,
    "resources/read": ResourceResult,
    "prompts/get": PromptResult,
}


def result_type(method: str) -> type[CallResult]:
    """Return the result class for an MCP method, such as `ToolResult` for `tools/call`."""
    return _RESULT_TYPES.get(method, CallResult)


def _parse_json_text(content: Any) -> Any:
    """Return the object or list if the only content block is strict JSON text, else None."""
    block = content[0] if isinstance(content, list) and len(content) == 1 else None
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    if not isinstance(text, str) or len(text) > MAX_JSON_TEXT_CHARS or not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return jiter.from_json(text.encode(), allow_inf_nan=False, catch_duplicate_keys=True)
    except (ValueError, RecursionError):
        return None


def _text_of(block: Json) -> str | None:
    """Return the text of a content block, or None if it has no text."""
    if block.get("type") == "resource_link" and isinstance(uri := block.get("uri"), str):
        name = block.get("name")
        return f"[{name}]({uri})" if isinstance(name, str) and name else f"[{uri}]({uri})"
    resource = block.get("resource")
    holder = resource if isinstance(resource, dict) else block
    text = holder.get("text")
    return text if isinstance(text, str) else _binary_note(holder)


def _binary_note(block: Json) -> str | None:
    """Return the type and size of base64 data in a content block or resource, or None if it has none."""
    kind = block.get("type")
    data = block.get("data") if kind in ("image", "audio") else block.get("blob")
    if not isinstance(data, str):
        return None
    mime = block.get("mimeType")
    size = len(data) * 3 // 4 - data[-2:].count("=")
    shown = f"{size} B" if size < 1000 else f"{size / 1000:.0f} kB" if size < 999_500 else f"{size / 1e6:.1f} MB"
    return f"[{mime if isinstance(mime, str) and mime else kind or 'binary'}, {shown}]"


def _dicts_in(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class CallHandler(Protocol):
    """The rest of the middleware chain, as a function that executes a call and returns its result.

    Example:
        result = await next(call)
    """

    def __call__(self, call: Call, /) -> Awaitable[CallResult]: ...


class Middleware(Protocol):
    """One step in the middleware chain: inspects a call, passes it on or not, and inspects the result.

    To add your own, pass `Hub(middleware=[…])` a coroutine function that takes the call and the rest of the
    middleware chain. It may raise an error, return a result itself, or pass on other arguments with
    `call.with_arguments`.

    Example:
        async def log_calls(call: Call, next: CallHandler) -> CallResult:
            result = await next(call)
            print(call.server, call.tool, result.is_error)
            return result
    """

    def __call__(self, call: Call, next: CallHandler, /) -> Awaitable[CallResult]: ...
