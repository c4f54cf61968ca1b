"""The status of one server: a value, and a sentence that explains it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from toolway.secrets.replacer import cut_text
from toolway.types import Era, Json
from toolway.upstream.state import State, StateWord
from toolway.upstream.transport import RESTART_CODE, Disconnect

DEPRECATED_SSE: Final = "HTTP+SSE, which is deprecated"
_SERVER_TEXTS: Final = ("last_error", "stderr", "why", "hint", "problems", "check_error", "error")
BARE_STATE: Final = "without a handshake (era bare)"


class ServerStatus(msgspec.Struct, frozen=True):
    """Status of one server at one moment.

    `why` explains the state, `hint` says what to do.

    Example:
        status = hub.status()["github"]
        print(status.state, status.why, status.hint)
    """

    server: str
    transport: str
    state: StateWord  # ready, starting, idle, down, or disabled
    era: Era | None = None
    protocol: str | None = None
    pid: int | None = None
    restarts: int = 0
    in_flight: int = 0
    messages_sent: int = 0  # to the server, over all its connections
    messages_received: int = 0  # from the server, over all its connections
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
    paused_for: float = 0.0  # seconds for which the server asked for no calls (`Retry-After`); 0 if it did not
    check_error: str = ""  # why its last health check failed; empty if it passed
    lifecycle: str = ""  # the state in detail: idle, starting, ready, backing_off, failed, stopping, or stopped

    @property
    def is_up(self) -> bool:
        """Return True if the server is ready and has not failed its last health check."""
        return self.state == "ready" and not self.check_error


def with_pause(status: ServerStatus, seconds: float, until: str) -> ServerStatus:
    """Return `status` with a note that the server asked for a pause of `seconds`, until `until`."""
    why = f"{status.why}; it asked us to pause until {until}"
    hint = status.hint or 'wait, or call it less often: "rateLimit" in its entry'
    return msgspec.structs.replace(status, paused_for=seconds, why=why, hint=hint)


def describe_time(seconds: float, wall_time: float) -> str:
    """Return the local time `seconds` after `wall_time`, such as 14:05, with the date if not today."""
    now, then = (datetime.fromtimestamp(each).astimezone() for each in (wall_time, wall_time + seconds))
    form = "%H:%M:%S" if seconds < 120 else "%H:%M"
    return then.strftime(form if then.date() == now.date() else f"%Y-%m-%d {form}")


def with_check_error(status: ServerStatus, error: str) -> ServerStatus:
    """Return a ready server's status with its last health check error, if there is one."""
    if not error:
        return status
    return msgspec.structs.replace(status, check_error=error, why=f"ready, but its last health check failed: {error}")


class ServerInfo(msgspec.Struct, frozen=True):
    """What a server says about itself, and the protocol it speaks.

    Attributes:
        server: name of the server in the hub.
        name: name that the server gives itself; may be empty.
        version: version of the server; may be empty.
        title: name for users; may be empty.
        protocol_version: version of MCP, such as `2026-07-28`; empty if the server has no handshake.
        era: `modern`, `legacy` or `bare`.
        capabilities: what the server can do, as in the protocol.
        instructions: how to use the server, for a model; may be empty.

    Example:
        info = hub.server_info("github")
        if info is not None and "prompts" in info.capabilities:
            print(info.name, info.version, info.instructions)
    """

    server: str
    name: str
    version: str
    title: str
    protocol_version: str
    era: Era
    capabilities: Json
    instructions: str

    @property
    def extensions(self) -> Json:
        """Return the extensions of MCP that the server has, with their settings, by identifier."""
        found = self.capabilities.get("extensions")
        return found if isinstance(found, dict) else {}


class HealthResult(msgspec.Struct, frozen=True):
    """Result of a health check that was just made.

    Attributes:
        server: name of the server.
        ok: True if it answered, False if it did not, None if it is not running, so it could not be checked.
        state: state of the server, as in `ServerStatus`.
        seconds: duration of the check.
        error: why the check failed; empty if it did not.
        hint: what you can do; may be empty.

    Example:
        result = (await hub.check_health())["github"]
        print(result.ok, result.seconds, result.error)
    """

    server: str
    ok: bool | None
    state: StateWord
    seconds: float = 0.0
    error: str = ""
    hint: str = ""


StatusT = TypeVar("StatusT", ServerStatus, HealthResult)


def mask_status(status: StatusT, mask: Callable[[str], str]) -> StatusT:
    """Return a status or health result with secrets masked in strings that the server may have sent."""
    texts = {name: text for name in _SERVER_TEXTS if (text := getattr(status, name, None))}
    masked = {name: mask(text) if isinstance(text, str) else tuple(map(mask, text)) for name, text in texts.items()}
    changed: dict[str, Any] = {name: text for name, text in masked.items() if text != texts[name]}
    return msgspec.structs.replace(status, **changed) if changed else status


def describe_missing(status: ServerStatus) -> str:
    """Return one line that says why a list lacks a server, or only has its items from an earlier run."""
    if status.state == "starting" and not status.last_error:
        why = ": still starting"
    else:
        _, found, cause = status.why.partition("likely cause: ")
        why = f" is down: {cause if found else status.last_error or status.why}"
    earlier = ", its tools are from an earlier run" if status.stale and status.tools else ""
    return f"{status.server}{why}{earlier}"


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
    """Return a string that explains a server's state to users."""
    is_requested = disconnect is not None and disconnect.code == RESTART_CODE
    reason = "" if is_requested else _describe_failure(disconnect, cause, stderr)
    match state:
        case State.STARTING | State.BACKING_OFF if is_requested:
            return "restarting, as requested"
        case State.READY:
            old = f" over {DEPRECATED_SSE}" if transport == "sse" else ""
            spoken = f"speaking {protocol}" if protocol else BARE_STATE
            return f"ready, {spoken}{old}" + _describe_restart(reason, is_requested=is_requested)
        case State.STARTING:
            return "starting" + (f" again after: {reason}" if reason else ": waiting for its first response")
        case State.BACKING_OFF:
            return f"{'starting again now' if _is_due(wait) else f'retrying in {_format_seconds(wait)}'}: {reason}"
        case State.FAILED:
            is_config = disconnect is not None and disconnect.code.startswith("E-CONFIG-")
            attempt = "now" if _is_due(wait) else f"in {_format_seconds(wait)}"
            return f"{'failed' if is_config else 'failed too often'}: {reason}; next attempt {attempt}"
        case State.IDLE:
            return "idle: starts on the first call"
        case State.STOPPING:
            return "being stopped"
        case _:
            return "stopped"


def _describe_restart(reason: str, *, is_requested: bool) -> str:
    return f"; restarted after: {reason}" if reason else "; restarted on request" if is_requested else ""


def _describe_failure(failure: Disconnect | None, cause: str, stderr: str) -> str:
    if failure is None:
        return ""
    last = stderr.strip().splitlines()[-1:] if failure.exit_code is not None else []
    parts = [failure.reason, *([f"stderr: {cut_text(last[0].strip(), 200)}"] if last else [])]
    if cause:
        parts.append(f"likely cause: {cause}")
    return ", ".join(parts)


def _is_due(wait: float | None) -> bool:
    """Return True if the next start is due, or would be shown as due in 0.0 s."""
    return wait is not None and wait < 0.05


def _format_seconds(wait: float | None) -> str:
    if wait is None:
        return "a moment"
    return f"{wait:.1f} s" if wait < 10 else f"{wait:.0f} s"
