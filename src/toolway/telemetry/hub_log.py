"""The log of a hub in a program: calls under `toolway.calls`, servers under `toolway.servers`.

    DEBUG    start and end of each call; a server that is starting or ready
    INFO     a failed attempt that is followed by another one; a server that starts again or is ready after a failure
    WARNING  a server that fails or disconnects; a call that may have changed something; an alert

Lines contain no arguments and no results, and secrets are masked. A level that is off does not slow down calls,
because the level for calls is read once, when the hub opens. A gateway has its own log (telemetry/logging.py); only
the lines about attempts are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from toolway.errors import CallError
from toolway.events import Alert, CallFinished, CallStarted, Disconnected, Event, StateChanged
from toolway.outcomes import error_code
from toolway.secrets.server_secrets import mask_target
from toolway.types import Call

_calls_log = logging.getLogger("toolway.calls")
_servers_log = logging.getLogger("toolway.servers")
for _logger in (_calls_log, _servers_log):  # a program that configures no log gets no lines on stderr
    _logger.addHandler(logging.NullHandler())


class HubLog:
    """Event sink that writes calls and server events to the Python log."""

    def __init__(self, mask: Callable[[str], str], max_attempts_for: Callable[[Call], int]) -> None:
        """Create the sink. `mask` hides secrets in strings from servers.

        `max_attempts_for` returns the number of attempts that a call may have.
        """
        self.mask = mask
        self._max_attempts_for = max_attempts_for
        self._failing: dict[str, str] = {}  # servers whose failure was logged as a warning → the state they were in
        self.wants_calls = self.wants_attempts = self.wants_successes = False

    def read_level(self) -> None:
        """Read the log level of calls from the logging configuration. Called when the hub opens."""
        self.wants_calls = self.wants_attempts = self.wants_successes = _calls_log.isEnabledFor(logging.DEBUG)

    # -- calls --------------------------------------------------------------------------------------------------------

    def on_call(self, event: CallFinished) -> None:
        if not self.wants_calls:
            return
        _calls_log.debug(
            "call %s of %s ended: %s, %.1f ms, %d attempts, executed: %s",
            event.id,
            mask_target(event.server, event.method, event.name, self.mask),
            f"{event.outcome} [{event.code}]" if error_code(event.code) else event.outcome,
            event.seconds * 1000,
            event.attempts,
            event.executed,
        )

    def on_attempt_failed(self, call: Call, exc: CallError, retry_delay: float | None) -> None:
        """Log a failed attempt, unless it was the call's only one."""
        number = call.state.attempts
        if (retry_delay is None and number < 2) or not _calls_log.isEnabledFor(logging.INFO):
            return
        _calls_log.info(
            "%s.%s: attempt %d of %d failed: %s; %s",
            call.server,
            mask_target(call.server, call.method, call.name, self.mask),
            number,
            self._max_attempts_for(call),
            self._describe(exc),
            f"next in {retry_delay:.1f} s" if retry_delay is not None else "giving up",
        )

    def on_error(self, exc: CallError, *, may_repeat: bool) -> None:
        """Log a failed call that may have run and must be checked. Other errors are only raised to the caller.

        `may_repeat` means that making the call again is harmless, for example because it only reads.
        """
        if exc.executed == "unknown" and not may_repeat and _calls_log.isEnabledFor(logging.WARNING):
            _calls_log.warning(
                "%s.%s may have run; check before you retry: %s",
                exc.server,
                self.mask(exc.tool),
                self._describe(exc),
            )

    def _describe(self, exc: CallError) -> str:
        text = f"{exc.message}: {exc.detail}" if exc.detail else exc.message
        return f"{self.mask(text)[:500]} [{exc.code}]"

    # -- servers ------------------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        if isinstance(event, CallStarted):
            if self.wants_calls:
                _calls_log.debug("call %s of %s started", event.id, self.mask(event.name))
        elif isinstance(event, StateChanged):
            self._log_state(event)
        elif isinstance(event, Disconnected):
            level = logging.INFO if event.requested else logging.WARNING
            self._log_server(level, event.server, f"disconnected, restarting: {event.reason}")
        elif isinstance(event, Alert) and event.kind in ("login-needed", "token-rejected", "rate-limited"):
            self._log_server(logging.WARNING, event.server, f"{event.message} → {event.hint}")

    def _log_state(self, event: StateChanged) -> None:
        """Log a server's state change.

        Repeated failures are logged as a warning once, and again when the server counts as down.
        """
        server, new = event.server, event.new
        if new in ("backing_off", "failed") and event.state == "down":
            known = self._failing.get(server)
            warn = known is None or (new == "failed" and known != "failed")
            self._failing[server] = new if known != "failed" else known
            self._log_server(logging.WARNING if warn else logging.INFO, server, event.reason)
        elif new in ("starting", "ready"):
            self._log_server(logging.INFO if server in self._failing else logging.DEBUG, server, event.reason)
            if new == "ready":
                self._failing.pop(server, None)
        else:
            self._failing.pop(server, None)
            self._log_server(logging.DEBUG, server, event.reason)

    def _log_server(self, level: int, server: str, text: str) -> None:
        if _servers_log.isEnabledFor(level):
            _servers_log.log(level, "%s: %s", server, self.mask(text)[:500])
