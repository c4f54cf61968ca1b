"""Log output by structlog: text for a terminal, JSON for programs. Imported by a gateway.

Every line is masked: secrets of this process, of server entries and of the environment never appear.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

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

LogFormat = Literal["text", "json"]
MAX_VALUE_CHARS: Final = 2000
_FAILING_STATES: Final = frozenset({"failed", "backing_off"})
_calls_log = logging.getLogger("toolway.calls")
_servers_log = logging.getLogger("toolway.servers")


def configure_logging(
    log_format: LogFormat, *, verbose: bool, stream: TextIO | None = None, mask: Callable[[str], str]
) -> None:
    """Configure the root logger to write text or JSON lines to `stream` (default: stderr).

    `mask` hides secrets in each line. The level is INFO if `verbose`, else WARNING.
    """
    stream = stream if stream is not None else sys.stderr
    processors: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(
            "iso" if log_format == "json" else "%Y-%m-%d %H:%M:%S", utc=log_format == "json"
        ),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.format_exc_info,
        _MaskProcessor(mask),
    ]
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "text":
        renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    for noisy in ("opentelemetry", "urllib3", "requests", "httpx2", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _MaskProcessor:
    """structlog processor: masks secrets, shortens long values, replaces control characters."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in list(event.items()):
            if not key.startswith("_") and not isinstance(value, bool | int | float | type(None)):
                event[key] = self._sanitize(key, value if isinstance(value, str) else str(value))
        return event

    def _sanitize(self, key: str, value: str) -> str:
        text = self._mask(value)
        if key != "exception":  # a traceback has many lines, and is our own text
            text = "".join(each if each.isprintable() else " " for each in text)
        return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


class LogSink:
    """Event sink that writes server events and finished calls to the Python log.

    Failed calls and lost connections are warnings; successful calls have level INFO.
    """

    wants_attempts = False

    def __init__(self, *, calls: bool = True) -> None:
        self.wants_calls = calls
        self.wants_successes = calls and _calls_log.isEnabledFor(logging.INFO)  # the level is read once
        self._failing: set[str] = set()  # servers whose failure was already logged as a warning

    def on_call(self, event: CallFinished) -> None:
        if not self.wants_calls:
            return
        failed = event.outcome not in ("ok", "tool_error", "cancelled")
        level = logging.WARNING if failed and event.outcome != "E-NOT-FOUND" else logging.INFO
        if _calls_log.isEnabledFor(level):
            _calls_log.log(level, "call failed" if failed else "call", extra=_call_fields(event))

    def on_event(self, event: Event) -> None:
        level, message = logging.INFO, ""
        fields: dict[str, Any] = {}
        if isinstance(event, StateChanged):
            level = self._level_for(event)
            message, fields = f"{event.server} is {event.new.replace('_', ' ')}", {"why": event.reason}
        elif isinstance(event, Connected):
            message, fields = f"{event.server} is connected", {"protocol": event.protocol, "pid": event.pid}
        elif isinstance(event, Disconnected):
            level, message, fields = logging.WARNING, f"{event.server} disconnected", {"why": event.reason}
        elif isinstance(event, ServerPaused):
            level, message = logging.WARNING, f"{event.server} asked for no calls"
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
        if event.new not in _FAILING_STATES or (event.server in self._failing and event.new != "failed"):
            return logging.INFO
        self._failing.add(event.server)
        return logging.WARNING


def _call_fields(event: CallFinished) -> dict[str, Any]:
    """Return the structured fields of the log line about a finished call.

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
