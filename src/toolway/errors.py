"""Exceptions that Toolway raises on purpose.

    ToolwayError                    message, detail, hint and error code
    ├── ConfigError                 a file or a setting is wrong (.file .line)
    └── CallError                   a call ended without a result (.server .tool .executed …)
        ├── NotFound                unknown server, tool, prompt or resource
        ├── InvalidArguments        the arguments do not match the tool's schema (.violations); nothing was sent
        ├── AccessDenied            rejected before it was sent
        ├── ServerUnavailable       the server could not be reached; nothing ran
        ├── Overloaded              too many calls are running or queued; nothing ran
        ├── CallTimeout             the deadline passed (.phase names the phase)
        ├── OutcomeUnknown          the connection was lost after the request was sent: it may have run
        ├── ProtocolError           the server replied with an error (.rpc_code) or with an invalid message
        └── ToolError               the tool ran and reported a failure (.result)

What you may do next depends on `executed`: retry freely after `"no"`, only after checking for `"unknown"`, and never
after `"yes"`.
"""

from __future__ import annotations

import enum
from typing import Any, Final, Literal, NamedTuple

Executed = Literal["no", "unknown", "yes"]


class Certainty(enum.IntEnum):
    """How certain it is that the server executed a request. In doubt, the higher value is used.

    Example:
        raise TransportError("the socket was closed", Certainty.UNKNOWN)
    """

    NOT_SENT = 0  # the server cannot have received a complete request
    REJECTED = 1  # the server proved that it did not process the request
    UNKNOWN = 2  # the request may have been processed
    EXECUTED = 3  # a valid response to this request arrived

    @property
    def executed(self) -> Executed:
        """Return the certainty as callers see it: "no", "unknown" or "yes"."""
        return _EXECUTED_BY_CERTAINTY[self]

    @property
    def code(self) -> str:
        """Return the code for the wire and the audit log: "C0" (not sent) to "C3" (executed)."""
        return f"C{self.value}"

    @classmethod
    def from_code(cls, code: object) -> Certainty | None:
        """Return the certainty for a code "C0" to "C3", or None for any other value."""
        return next((each for each in cls if each.code == code), None)


_EXECUTED_BY_CERTAINTY: tuple[Executed, ...] = ("no", "no", "unknown", "yes")


class ToolwayError(Exception):
    """Base class of all Toolway errors.

    `str()` joins the message, detail, hint, and code in one paragraph.

    Example:
        try:
            result = await hub.call_tool("github.search_issues")
        except ToolwayError as error:
            print(error.message, error.hint)
    """

    code = "E-TOOLWAY"

    def __init__(self, message: str, *, detail: str = "", hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        if code:
            self.code = code

    def __str__(self) -> str:
        text = f"{self.message}: {self.detail}" if self.detail else self.message
        if self.hint:
            text += f" → {self.hint}"
        return f"{text} [{self.code}]"


def closed_error(problem: str = "the hub is not open") -> ToolwayError:
    """Return the error for using a hub that is closed or not open yet."""
    return ToolwayError(problem, hint="use it inside `async with Hub(…) as hub`", code="E-CLOSED")


class ConfigError(ToolwayError):
    """Raised when a configuration cannot be used. No server has been started.

    Example:
        try:
            hub = Hub("mcp.json")
        except ConfigError as error:
            print(error.file, error.line, error.hint)
    """

    code = "E-CONFIG"

    def __init__(
        self, message: str, *, file: str = "", line: int | None = None, detail: str = "", hint: str = "", code: str = ""
    ) -> None:
        super().__init__(message, detail=detail, hint=hint, code=code)
        self.file = file
        self.line = line


PLATFORM_CODE: Final = "E-PLATFORM"  # this operating system lacks what was asked for


def platform_error(message: str, detail: str, hint: str) -> ConfigError:
    """Return the error for a command or setting that this operating system does not support."""
    return ConfigError(message, detail=detail, hint=hint, code=PLATFORM_CODE)


class CallError(ToolwayError):
    """Raised when a call ends without a result. `executed` is "no", "unknown", or "yes".

    Example:
        try:
            await hub.call_tool("shop.order", {"item": 7})
        except CallError as error:
            if error.executed == "no":
                ...  # safe to repeat
    """

    code = "E-CALL"

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        tool: str = "",
        certainty: Certainty | None = None,
        attempts: int = 0,
        retry_after: float | None = None,
        detail: str = "",
        hint: str = "",
        code: str = "",
    ) -> None:
        super().__init__(message, detail=detail, hint=hint, code=code)
        self.server = server
        self.tool = tool
        self.certainty = certainty
        self.attempts = attempts
        self.retry_after = retry_after
        self.retryable = True  # False if the server says that a retry is useless

    @property
    def executed(self) -> Executed:
        """Return "yes" if the server executed the request, "no" if it did not, or "unknown" if it may have.

        An error raised before the request was sent has no certainty, so its value is "no".
        """
        return self.certainty.executed if self.certainty is not None else "no"


class NotFound(CallError):
    """Raised when no server, tool, prompt or resource has the given name.

    Example:
        try:
            await hub.call_tool("github.serch_issues")
        except NotFound as error:
            print(error.hint)  # suggests close names
    """

    code = "E-NOT-FOUND"


class ArgumentViolation(NamedTuple):
    """One place where a call's arguments do not match the tool's schema.

    It contains names and types, but never the values of arguments.

    Attributes:
        path: JSONPath of the position, such as `$.items[0].title`.
        problem: what is wrong, such as "is missing" or "is a string".
        expected: what the schema expects, such as "an integer". May be empty.
        nearest: a similar name: a known one if a property is unknown, a given one if a property is missing.

    Example:
        for violation in error.violations:
            print(violation.path, violation.expected)
    """

    path: str
    problem: str
    expected: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        expected = f", expected {self.expected}" if self.expected else ""
        missing = self.problem == "is missing"
        nearest = f" (given: {self.nearest!r})" if missing else f" (did you mean {self.nearest!r}?)"
        return f"{self.path} {self.problem}{expected}{nearest if self.nearest else ''}"


class InvalidArguments(CallError):
    """Raised when a call's arguments do not match the tool's `inputSchema`. Nothing was sent.

    `violations` lists at most 20 positions; `omitted` is the number of positions left out.

    Example:
        try:
            await hub.call_tool("github.create_issue", {"titel": "Bug"})
        except InvalidArguments as error:
            for violation in error.violations:
                print(violation)  # $.title is missing, expected a string (given: 'titel')
    """

    code = "E-ARGUMENTS"

    def __init__(
        self, message: str, *, violations: tuple[ArgumentViolation, ...] = (), omitted: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(message, **kwargs)
        self.violations = violations
        self.omitted = omitted
        self.retryable = False  # the same arguments would be rejected again


def invalid_arguments(
    server: str, tool: str, violations: tuple[ArgumentViolation, ...], omitted: int = 0, hint: str = ""
) -> InvalidArguments:
    """Return the error for a call that was not sent because of these violations."""
    more = f"; and {omitted} more" if omitted else ""
    return InvalidArguments(
        f"invalid arguments for {server}.{tool}",
        violations=violations,
        omitted=omitted,
        server=server,
        tool=tool,
        certainty=Certainty.NOT_SENT,
        detail="; ".join(map(str, violations))[:2000] + more,
        hint=hint or f'fix them; if the tool has a wrong inputSchema, set "validateArguments": false for {server}',
    )


class AccessDenied(CallError):
    """Raised when a call is not allowed, for example without a login. It did not run.

    Example:
        try:
            await hub.call_tool("notion.search")
        except AccessDenied:
            await hub.login("notion", open_browser)
    """

    code = "E-DENIED"


class CallRefused(AccessDenied):
    """Raised when a gateway rule rejects a call. Logging in would not help, so clients are not asked to."""


class ServerUnavailable(CallError):
    """Raised when a server could not be reached or started.

    Example:
        try:
            await hub.wait_ready("github")
        except ServerUnavailable as error:
            print(error.message, error.detail)
    """

    code = "E-UNAVAILABLE"


class StoreUnavailable(ServerUnavailable):
    """Raised when the gateway cannot reach a store that it needs to decide on a call."""


class Overloaded(CallError):
    """Raised when too many calls to a server are running or queued. The call did not run.

    Example:
        try:
            await hub.call_tool("search.query", {"q": "x"})
        except Overloaded as error:
            await asyncio.sleep(error.retry_after or 1)
    """

    code = "E-OVERLOADED"


class CallTimeout(CallError, TimeoutError):
    """Raised when a call's deadline passes. Also a `TimeoutError`.

    `phase` is the phase in which the call was waiting: queue (for a concurrency slot), pause (requested by the
    server), turn (the server serves one caller at a time), start, connect, auth, send, server (no response yet),
    stream (incomplete response), or retry.

    Example:
        try:
            await hub.call_tool("reports.build", timeout=5)
        except CallTimeout as error:
            print(error.phase, error.executed)
    """

    code = "E-TIMEOUT"

    def __init__(self, message: str, *, phase: str = "", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.phase = phase


class OutcomeUnknown(CallError):
    """Raised when the connection was lost after the request was sent.

    The server may have executed the request, so check before you repeat the call.

    Example:
        try:
            await hub.call_tool("shop.order", {"item": 7})
        except OutcomeUnknown:
            ...  # check the shop before you repeat the call
    """

    code = "E-OUTCOME-UNKNOWN"


class ProtocolError(CallError):
    """Raised when the server replied with a JSON-RPC error (`.rpc_code`) or an invalid message.

    Example:
        try:
            await hub.call_tool("legacy.convert")
        except ProtocolError as error:
            print(error.detail)
    """

    code = "E-PROTOCOL"

    def __init__(self, message: str, *, rpc_code: int | None = None, data: Any = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.rpc_code = rpc_code
        self.data = data


class ToolError(CallError):
    """Raised when the tool ran and reported a failure (`isError`). `result` is its result.

    `call_tool(…, raise_on_error=False)` returns the result instead.

    Example:
        try:
            await hub.call_tool("sql.query", {"q": "select"})
        except ToolError as error:
            print(error.result.text)
    """

    code = "E-TOOL-FAILED"

    def __init__(self, message: str, *, result: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.result = result  # the result of the call
