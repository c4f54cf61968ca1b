"""What a person is told about one server: a value, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from toolway.model import Era
from toolway.upstream.link import Loss
from toolway.upstream.state import State

DEPRECATED: Final = "HTTP+SSE, which is deprecated"


@dataclass(frozen=True, slots=True)
class Status:
    """One server at one moment. `why` is a sentence for people, `fix` what they can do about it."""

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
    fix: str = ""
    tools: int = 0
    stale: bool = False  # the lists are from an earlier run until the server answers
    problems: tuple[str, ...] = ()  # what was set aside, and why
    nodes: tuple[str, ...] = ()  # of a cluster: which own it


def sentence(
    state: State,
    server: str,
    protocol: str | None,
    failure: Loss | None,
    cause: str,
    stderr: str,
    wait: float | None,
    transport: str = "",
) -> str:
    """Why a server is in its state."""
    reason = _reason(failure, cause, stderr)
    match state:
        case State.READY:
            old = f" over {DEPRECATED}" if transport == "sse" else ""
            return f"ready, speaking {protocol}{old}" + (f"; restarted after: {reason}" if reason else "")
        case State.STARTING:
            return "starting" + (f" again after: {reason}" if reason else ": waiting for its first answer")
        case State.BACKING_OFF:
            return f"backing off {_seconds(wait)}: {reason}"
        case State.FAILED:
            return f"failed too often: {reason}; tried again in {_seconds(wait)}"
        case State.IDLE:
            return "not running: starts with the first call"
        case State.STOPPING:
            return "being stopped"
        case _:
            return "stopped"


def _reason(failure: Loss | None, cause: str, stderr: str) -> str:
    if failure is None:
        return ""
    last = stderr.strip().splitlines()[-1:] if failure.exit_code is not None else []
    parts = [failure.reason, *([f"stderr: {last[0].strip()[:200]}"] if last else [])]
    if cause:
        parts.append(f"likely cause: {cause}")
    return ", ".join(parts)


def _seconds(wait: float | None) -> str:
    if wait is None:
        return "a moment"
    return f"{wait:.1f} s" if wait < 10 else f"{wait:.0f} s"
