"""Status of one server: a value, and a sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from toolway.types import Era
from toolway.upstream.state import State
from toolway.upstream.transport import Disconnect

DEPRECATED_SSE: Final = "HTTP+SSE, which is deprecated"
BARE_STATE: Final = "without a handshake (era bare)"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Status of one server at one moment.

    `why` explains the state, `hint` says what operators can do.

    Example:
        status = hub.status()["github"]
        print(status.state, status.why, status.hint)
    """

    server: str
    transport: str
    state: str  # idle, starting, ready, backing_off, failed, stopping, stopped, disabled
    era: Era | None = None
    protocol: str | None = None
    pid: int | None = None
    restarts: int = 0
    in_flight: int = 0
    last_error: str | None = None
    stderr: str = ""  # the last lines
    next_retry: float | None = None  # seconds from now
    since: float = 0.0  # seconds in this state
    why: str = ""
    hint: str = ""
    tools: int = 0
    denied_tools: int = 0  # tools that the allow and deny lists of the server hide
    stale: bool = False  # the lists are from an earlier run until the server responds
    problems: tuple[str, ...] = ()  # list items that were rejected, with reasons
    nodes: tuple[str, ...] = ()  # in a cluster: nodes that own the server


def describe_state(
    state: State,
    server: str,
    protocol: str | None,
    disconnect: Disconnect | None,
    cause: str,
    stderr: str,
    wait: float | None,
    transport: str = "",
) -> str:
    """Return a text that explains to operators why a server is in its state."""
    reason = _describe_failure(disconnect, cause, stderr)
    match state:
        case State.READY:
            old = f" over {DEPRECATED_SSE}" if transport == "sse" else ""
            spoken = f"speaking {protocol}" if protocol else BARE_STATE
            return f"ready, {spoken}{old}" + (f"; restarted after: {reason}" if reason else "")
        case State.STARTING:
            return "starting" + (f" again after: {reason}" if reason else ": waiting for its first response")
        case State.BACKING_OFF:
            return f"backing off {_format_seconds(wait)}: {reason}"
        case State.FAILED:
            return f"failed too often: {reason}; next attempt in {_format_seconds(wait)}"
        case State.IDLE:
            return "not running: starts with the first call"
        case State.STOPPING:
            return "being stopped"
        case _:
            return "stopped"


def _describe_failure(failure: Disconnect | None, cause: str, stderr: str) -> str:
    if failure is None:
        return ""
    last = stderr.strip().splitlines()[-1:] if failure.exit_code is not None else []
    parts = [failure.reason, *([f"stderr: {last[0].strip()[:200]}"] if last else [])]
    if cause:
        parts.append(f"likely cause: {cause}")
    return ", ".join(parts)


def _format_seconds(wait: float | None) -> str:
    if wait is None:
        return "a moment"
    return f"{wait:.1f} s" if wait < 10 else f"{wait:.0f} s"
