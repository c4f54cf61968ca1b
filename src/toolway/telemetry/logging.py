"""A gateway's log lines: text for a terminal, JSON for programs.

Every line is masked: secrets from this process, from server entries, and from the environment never appear.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

from toolway.events import (
    CallFinished,
    Connected,
    Disconnected,
    Event,
    HealthChanged,
    LoopResumed,
    LoopStalled,
    ServerPaused,
    StateChanged,
)
from toolway.outcomes import deserves_warning, error_code, outcome_of
from toolway.telemetry.refusals import RefusalCounter, RejectedCalls, is_rejected

LogFormat = Literal["text", "json"]
MAX_VALUE_CHARS: Final = 2000
_FAILING_STATES: Final = frozenset({"failed", "backing_off"})
_calls_log = logging.getLogger("toolway.calls")
_servers_log = logging.getLogger("toolway.servers")


def configure_logging(
    log_format: LogFormat,
    *,
    verbose: bool,
    quiet: bool = False,
    stream: TextIO | None = None,
    mask: Callable[[str], str],
) -> None:
    """Configure the root logger to write text or JSON lines to `stream` (default: stderr).

    `mask` hides secrets in each line. The level is INFO if `verbose`, else WARNING. Actions of the gateway itself, such
    as a reload, are logged unless `quiet`.
    """
    stream = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonFormatter(mask) if log_format == "json" else _TextFormatter(mask, color=stream.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("toolway.gateway").setLevel(logging.WARNING if quiet else logging.INFO)
    for noisy in ("opentelemetry", "urllib3", "requests", "httpx2", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _MaskingFormatter(logging.Formatter):
    """Base of both formats. Returns a record's fields without secrets, control characters, and long values."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._mask = mask

    def read_fields(self, record: logging.LogRecord) -> tuple[str, dict[str, Any], str]:
        """Return message, `extra` fields and traceback ("" if there is none) of a log record, with secrets masked."""
        extra = {name: self._limit(value) for name, value in record.__dict__.items() if name not in _RECORD_NAMES}
        if record.stack_info:
            extra["stack_info"] = self._limit(record.stack_info)
        trace = self._hide(self.formatException(record.exc_info)) if record.exc_info else ""
        return self._sanitize(record.getMessage()), extra, trace

    def _limit(self, value: Any) -> Any:
        return value if isinstance(value, bool | int | float | None) else self._sanitize(str(value))

    def _sanitize(self, value: str) -> str:
        return self._hide("".join(each if each.isprintable() else " " for each in self._mask(value)), masked=True)

    def _hide(self, value: str, *, masked: bool = False) -> str:
        text = value if masked else self._mask(value)  # a traceback keeps its lines: it is our own text
        return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


class _JsonFormatter(_MaskingFormatter):
    """Log formatter that writes each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        message, extra, trace = self.read_fields(record)
        whole, fraction = divmod(record.created, 1)
        fields = {
            "event": message,
            "level": record.levelname.lower(),
            "logger": self._sanitize(record.name),
            "timestamp": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int(fraction * 1_000_000):06}Z",
            **extra,
        }
        return json.dumps({**fields, "exception": trace} if trace else fields)


class _TextFormatter(_MaskingFormatter):
    """Log formatter for users: time, level, message, logger, and the other fields as NAME=VALUE."""

    def __init__(self, mask: Callable[[str], str], *, color: bool) -> None:
        super().__init__(mask)
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        message, extra, trace = self.read_fields(record)
        level = record.levelname.lower()
        parts = [
            self._paint("2", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))),
            f"[{self._paint(_LEVEL_COLORS.get(level, '31;1'), f'{level:9}')}]",
            self._paint("1", message),
            f"[{self._paint('34;1', self._sanitize(record.name))}]",
        ]
        parts += (f"{self._paint('36', name)}={self._paint('35', _quote(extra[name]))}" for name in sorted(extra))
        return " ".join(parts) + (f"\n{trace}" if trace else "")

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text


_LEVEL_COLORS: Final = {"debug": "32;1", "info": "32;1", "warning": "33;1"}
#: Attributes that every record has. Each other one was given as `extra`.
_RECORD_NAMES: Final = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"})


def _quote(value: Any) -> str:
    """Return a value as text, in quotes if it contains a space, a quote or an equals sign."""
    text = str(value)
    return repr(text) if set(text) & set(" =\"'") else text


class LogSink:
    """Event sink that writes server events and finished calls to the Python log.

    Failed calls and lost connections are warnings; successful calls have level INFO.
    """

    wants_attempts = False

    def __init__(self, *, calls: bool = True) -> None:
        self.wants_calls = calls
        self.wants_successes = calls and _calls_log.isEnabledFor(logging.INFO)  # the level is read once
        self._failing: set[str] = set()  # servers whose failure was already logged as a warning
        self._refusals = RefusalCounter(_log_rejected)

    def on_call(self, event: CallFinished) -> None:
        if not self.wants_calls:
            return
        if is_rejected(event) and not self._refusals.admits(event.caller, event.code, f"{event.server}.{event.tool}"):
            return
        level = logging.WARNING if deserves_warning(event.code, event.executed) else logging.INFO
        if _calls_log.isEnabledFor(level):
            _calls_log.log(level, outcome_of(event.code, event.executed).log_line, extra=_call_fields(event))

    def close(self) -> None:
        """Log the rejected calls that were counted but not logged yet."""
        self._refusals.flush()

    def on_event(self, event: Event) -> None:
        level, message = logging.INFO, ""
        fields: dict[str, Any] = {}
        if isinstance(event, StateChanged):
            level = self._level_for(event)
            message, fields = f"{event.server} is {event.state}", {"why": event.reason}
        elif isinstance(event, Connected):
            message, fields = f"{event.server} is connected", {"protocol": event.protocol, "pid": event.pid}
        elif isinstance(event, Disconnected):
            level = logging.INFO if event.requested else logging.WARNING
            message, fields = f"{event.server} disconnected", {"why": event.reason}
        elif isinstance(event, ServerPaused):
            level, message = logging.WARNING, f"{event.server} asked us to pause"
            fields = {"seconds": round(event.seconds)}
        elif isinstance(event, HealthChanged):
            level = logging.INFO if event.ok else logging.WARNING
            message = f"{event.server} {'passed' if event.ok else 'failed'} its health check"
            fields = {} if event.ok else {"why": event.reason}
        elif isinstance(event, LoopStalled):
            return  # the watchdog logs it from its own thread, because the loop is blocked
        elif isinstance(event, LoopResumed):
            message, fields = "event loop resumed", {"seconds": round(event.seconds, 1)}
        if message and _servers_log.isEnabledFor(level):
            _servers_log.log(level, message, extra={"server": event.server, **fields})

    def _level_for(self, event: StateChanged) -> int:
        """Return the log level for a state change of a server.

        Repeated failures of a server warn once, and again when it is marked as failed.
        """
        if event.new in ("ready", "stopped"):
            self._failing.discard(event.server)
        if (
            event.state != "down"
            or event.new not in _FAILING_STATES
            or (event.server in self._failing and event.new != "failed")
        ):
            return logging.INFO
        self._failing.add(event.server)
        return logging.WARNING


def _log_rejected(found: RejectedCalls) -> None:
    names = ", ".join(f"{name}: {count}" for name, count in found.names.items())
    fields = {"caller": found.caller, "count": found.count, "rejected": names, "seconds": found.seconds}
    _calls_log.warning("more calls were rejected", extra=fields)


def _call_fields(event: CallFinished) -> dict[str, Any]:
    """Return the structured fields of a finished call's log line.

    Trace and span id are named as in OpenTelemetry logs.
    """
    fields: dict[str, Any] = {
        "call": event.id,
        "server": event.server,
        "tool": event.tool,
        "outcome": event.outcome,
        "ms": round(event.seconds * 1000, 1),
        "attempts": event.attempts,
    }
    if error_code(event.code):
        fields["code"] = event.code
    if event.method != "tools/call":
        fields["method"] = event.method
    if event.request_id:
        fields["request"] = event.request_id
    if event.caller:
        fields["caller"] = event.caller
    if event.message:
        fields |= {
            "executed": event.executed,
            "why": f"{event.message}: {event.detail}" if event.detail else event.message,
        }
    if event.trace_id:
        fields["trace_id"] = event.trace_id
    if event.span_id:
        fields["span_id"] = event.span_id
    return fields
