"""Every exception that Toolway raises on purpose.

    ToolwayError                    what failed, the evidence, the fix, a code
    ├── ConfigError                 a file or a setting is wrong (.file .line)
    └── CallError                   a call did not bring an answer (.server .tool .executed …)
        ├── NotFound                no such server, tool, prompt or resource
        ├── Denied                  refused before it was tried
        ├── Unavailable             the server could not be reached; nothing was executed
        ├── Overloaded              too much is under way; nothing was executed
        ├── TimedOut                the deadline passed (.phase says where)
        ├── OutcomeUnknown          the link was lost after the request left: it may have happened
        ├── ProtocolError           the server answered with an error (.rpc_code) or with nonsense
        └── ToolFailed              raised by `Reply.raise_for_error()` for a tool's own failure (.reply)

A tool's own failure (`isError`) is an answer, so it is a `Reply`, not an exception. What a caller may do next depends
on `executed`: `"no"` may be tried again by anyone, `"unknown"` only after checking, `"yes"` not at all.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

Executed = Literal["no", "unknown", "yes"]


class Certainty(enum.IntEnum):
    """How sure we are that a request was executed. When in doubt, the higher number."""

    C0 = 0  # not sent: the server cannot hold a complete request
    C1 = 1  # refused: the server proved that it did not process it
    C2 = 2  # possible: it may have been processed
    C3 = 3  # executed: a valid answer to this very request arrived

    @property
    def executed(self) -> Executed:
        return _EXECUTED[self]


_EXECUTED: tuple[Executed, ...] = ("no", "no", "unknown", "yes")


class ToolwayError(Exception):
    """The root of the family. `str()` of one is its four parts in one paragraph."""

    code = "E-TOOLWAY"

    def __init__(self, what: str, *, evidence: str = "", fix: str = "", code: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.evidence = evidence
        self.fix = fix
        if code:
            self.code = code

    def __str__(self) -> str:
        text = f"{self.what}: {self.evidence}" if self.evidence else self.what
        if self.fix:
            text += f" → {self.fix}"
        return f"{text} [{self.code}]"


class ConfigError(ToolwayError):
    """A configuration that cannot be used; nothing was started."""

    code = "E-CONFIG"

    def __init__(
        self, what: str, *, file: str = "", line: int | None = None, evidence: str = "", fix: str = "", code: str = ""
    ) -> None:
        super().__init__(what, evidence=evidence, fix=fix, code=code)
        self.file = file
        self.line = line


class CallError(ToolwayError):
    """A call that ended without an answer. `executed` says whether the work may have happened."""

    code = "E-CALL"

    def __init__(
        self,
        what: str,
        *,
        server: str = "",
        tool: str = "",
        certainty: Certainty | None = None,
        attempts: int = 0,
        retry_after: float | None = None,
        evidence: str = "",
        fix: str = "",
        code: str = "",
    ) -> None:
        super().__init__(what, evidence=evidence, fix=fix, code=code)
        self.server = server
        self.tool = tool
        self.certainty = certainty
        self.attempts = attempts
        self.retry_after = retry_after
        self.retryable = True  # False where the server says that trying again is useless

    @property
    def executed(self) -> Executed:
        """Whether the work happened, as far as can be known. Without a certainty nothing was sent."""
        return self.certainty.executed if self.certainty is not None else "no"


class NotFound(CallError):
    """There is no server, tool, prompt or resource of that name."""

    code = "E-NOT-FOUND"


class Denied(CallError):
    """The call was refused before it was tried."""

    code = "E-DENIED"


class Unavailable(CallError):
    """The server could not be reached or started."""

    code = "E-UNAVAILABLE"


class Overloaded(CallError):
    """Too many calls are under way or waiting."""

    code = "E-OVERLOADED"


class TimedOut(CallError):
    """The deadline passed. `phase` is what the call waited for: queue, pause, turn, start,
    connect, auth, send, server, stream or retry."""

    code = "E-TIMEOUT"

    def __init__(self, what: str, *, phase: str = "", **facts: Any) -> None:
        super().__init__(what, **facts)
        self.phase = phase


class OutcomeUnknown(CallError):
    """The link was lost after the request left. The work may have happened: check before repeating."""

    code = "E-OUTCOME-UNKNOWN"


class ProtocolError(CallError):
    """The server answered with a JSON-RPC error (`rpc_code` is set) or with something that is no answer."""

    code = "E-PROTOCOL"

    def __init__(self, what: str, *, rpc_code: int | None = None, data: Any = None, **facts: Any) -> None:
        super().__init__(what, **facts)
        self.rpc_code = rpc_code
        self.data = data


class ToolFailed(CallError):
    """A tool said that it failed; only `Reply.raise_for_error()` raises this."""

    code = "E-TOOL-FAILED"

    def __init__(self, what: str, *, reply: Any, **facts: Any) -> None:
        super().__init__(what, **facts)
        self.reply = reply  # the `Reply`
