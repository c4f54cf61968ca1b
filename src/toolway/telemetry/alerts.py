"""Alerts: problems that a user must resolve, as events, files, and webhook messages.

    login-needed        a server requires a login by a user, or a login ended
    token-rejected      a server rejected the fixed token in its entry
    rate-limited        a server asked for a pause of several minutes or longer
    server-down         a server failed too often, and is now restarted only rarely
    outcome-unknown     a call may have run: check before you repeat it
    audit               the audit log cannot be written, so calls are rejected
    definition-on-hold  a server's definition changed or is new, and needs review
    cluster-database    the cluster database was changed without the cluster key
    workflow-asks       a workflow run is waiting for a user's answer
    workflow-stuck      a workflow run cannot continue

Parts add their own conditions (`PartCondition`).

`AlertDetector` derives alerts from events, once per cause. `AlertDelivery` writes the files and calls the webhook. A
file is moved to `settled/` when the problem clears by itself; otherwise the administrator deletes it. There are at
most a few hundred files, because more would not help an administrator who reads none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from calendar import timegm
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from toolway.config.settings import AlertSettings
from toolway.events import (
    AccessEvent,
    Alert,
    AlertKind,
    AlertResolved,
    AuditFailed,
    AuditResumed,
    CallFinished,
    CallRecovered,
    ClusterDatabaseAccepted,
    ClusterDatabaseRefused,
    Connected,
    DefinitionReviewed,
    Event,
    PartCondition,
    RunAsks,
    RunChanged,
    StateChanged,
)
from toolway.network.policy import NetworkPolicy
from toolway.outcomes import OK_CODE, TOOL_ERROR_CODE
from toolway.secrets.encrypted_file import write_private
from toolway.secrets.server_secrets import mask_target

if TYPE_CHECKING:
    from toolway.telemetry.webhook import Webhook

REPEAT_INTERVAL_S: Final = 86_400.0  # an unresolved condition is reported again after a day
LONG_WAIT_S: Final = 300.0  # a shorter Retry-After ends before a user could act
MAX_OPEN_ALERTS: Final = 1000  # conditions remembered; the oldest is forgotten
MAX_ALERTS: Final = 500  # files
MAX_RESOLVED_ALERTS: Final = 200
MAX_QUEUED_ALERTS: Final = 1000  # alerts that wait to be written
MAX_PART_CHARS: Final = 2000  # of message, detail or hint
OVERFLOW_FILE: Final = "and-more.txt"
_ENDED_BY_CONNECT: Final[tuple[AlertKind, ...]] = ("server-down", "login-needed", "token-rejected")
_ENDED_BY_CALL: Final = frozenset({"login-needed", "token-rejected", "rate-limited"})
_log = logging.getLogger("toolway.alerts")


# -- detection --------------------------------------------------------------------------------------------------------


def alert_from_event(event: Event, restart: str = "toolway restart {}") -> Alert | None:
    """Return the alert that an event causes, or None if no user needs to do anything.

    `restart` is the command that restarts a server, with `{}` for its name.
    """
    if isinstance(event, CallFinished):
        return _alert_from_call(event, restart)
    if isinstance(event, CallRecovered):
        return _unknown_outcome_alert(
            event.server, event.tool, event.id, event.caller, "the program stopped during the call"
        )
    if isinstance(event, StateChanged):
        return _alert_from_state(event, restart) if event.new in ("failed", "backing_off") else None
    if isinstance(event, AuditFailed):
        hint = "free disk space or restore the database of the log; calls then resume by themselves: toolway doctor"
        return Alert("", "audit", "the audit log cannot be written, so calls are rejected", event.reason, hint)
    if isinstance(event, ClusterDatabaseRefused):
        message = "the cluster database was changed without the cluster key"
        hint = "find out who can write to it, then follow docs/errors/E-RECORD-CHANGED.md: toolway cluster nodes"
        return Alert("", "cluster-database", message, event.reason, hint)
    if isinstance(event, DefinitionReviewed) and event.action == "on_hold":
        return _held_alert(event)
    if isinstance(event, PartCondition):
        texts = (event.message, event.detail, event.hint)
        return Alert(event.server, event.kind, *texts, event.tool, event.call, event.caller)
    if isinstance(event, RunAsks):
        message = f"the workflow run {event.run} has been waiting for an answer for {_format_wait(event.seconds)}"
        hint = "answer it on the dashboard page Runs"
        return Alert(event.server, "workflow-asks", message, event.question, hint, call=event.run)
    if isinstance(event, RunChanged) and event.state == "damaged":
        message = f"a stored value of the workflow run {event.run} cannot be read"
        hint = f"restore its row from a backup of the journal, then: toolway workflow resume {event.run}"
        return Alert(event.server, "workflow-damaged", message, event.code, hint, call=event.run)
    if isinstance(event, RunChanged) and event.state == "stuck":
        message, hint = f"the workflow run {event.run} is stuck", "see its steps on the dashboard page Runs"
        return Alert(event.server, "workflow-stuck", message, event.code, hint, call=event.run)
    return None


def _alert_from_call(event: CallFinished, restart: str) -> Alert | None:
    if event.executed == "unknown" and event.effect not in ("read", "idempotent"):
        return _unknown_outcome_alert(
            event.server, event.tool or event.name, event.id, event.caller, event.message or event.code
        )
    detail = event.detail or event.message
    if event.code == "E-AUTH-LOGIN":
        return _login_alert(event.server, detail, event.hint, event.tool, event.caller)
    if event.code == "E-AUTH-TOKEN":
        return _token_alert(event.server, detail, event.hint, restart, event.tool)
    if event.retry_after is not None and event.retry_after >= LONG_WAIT_S:
        return Alert(
            event.server,
            "rate-limited",
            f"{event.server} asked us to pause for {_format_wait(event.retry_after)}",
            detail,
            event.hint or "call it less often, or raise the limit of your account at the service",
            event.tool,
        )
    return None


def _alert_from_state(event: StateChanged, restart: str) -> Alert | None:
    server, hint = event.server, event.hint
    if event.code == "E-AUTH-LOGIN":
        return _login_alert(server, event.reason, hint)
    if event.code == "E-AUTH-TOKEN":
        return _token_alert(server, event.reason, hint, restart)
    if event.new != "failed":
        return None
    fix = f"{hint or 'remove the cause'}, then restart the server: {restart.format(server)}"
    return Alert(server, "server-down", f"{server} is down: it keeps failing", event.reason, fix)


def _login_alert(server: str, detail: str, hint: str, tool: str = "", caller: str = "") -> Alert:
    fix = hint or f"toolway login {server}"
    return Alert(server, "login-needed", f"{server} requires a login", detail, fix, tool, caller=caller)


def _token_alert(server: str, detail: str, hint: str, restart: str, tool: str = "") -> Alert:
    fix = f"{hint}, then restart the server: {restart.format(server)}"
    return Alert(server, "token-rejected", f"{server} rejected its token", detail, fix, tool)


def _unknown_outcome_alert(server: str, tool: str, call: str, caller: str, detail: str) -> Alert:
    return Alert(
        server,
        "outcome-unknown",
        f"{server}.{tool} may have run: its outcome is unknown",
        detail,
        f"check on the server whether it ran before you retry. With an audit log: toolway audit ls --call {call}",
        tool,
        call,
        caller,
    )


def _held_alert(event: DefinitionReviewed) -> Alert:
    name = f"{event.server}/{event.name}" if event.kind == event.name else f"{event.server}.{event.name}"
    hint = f"see the difference: toolway trust tools diff {event.server}; then accept it, or remove the server"
    detail = f"{name}: {event.reason}{': ' if event.finding else ''}{event.finding}"
    message = f"a definition of {event.server} is on hold"
    return Alert(event.server, "definition-on-hold", message, detail, hint, event.name)


def _format_wait(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} hours"


class AlertDetector:
    """Event sink that emits an `Alert` for each condition that a user must resolve, once per cause.

    The same condition is reported again if it returns after it ended, or after a day. The sink never blocks, and its
    memory is bounded.
    """

    wants_attempts = False

    def __init__(
        self,
        emit: Callable[[Event], None],
        mask: Callable[[str], str],
        *,
        wants_calls: bool = False,
        for_library: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create the sink. `mask` hides secrets in strings from servers.

        If `wants_calls` is False, the sink gets finished calls only if other sinks observe them anyway.
        `for_library` means that hints name methods of `Hub` instead of commands for a gateway.
        """
        self.wants_calls = wants_calls
        self._emit = emit
        self._mask = mask
        self._restart = 'hub.restart_server("{}")' if for_library else "toolway restart {}"
        self._now = now
        self._open: dict[str, float] = {}  # conditions by key, oldest first → time of the last alert
        self._by_call: dict[tuple[str, str, str], str] = {}  # (server, tool, caller) whose success ends a condition

    @property
    def wants_successes(self) -> bool:
        """Return True while an alert is open that a successful call may resolve."""
        return bool(self._by_call)

    def add_known(self, key: str, at: float) -> None:
        """Add an alert condition that an earlier run of the program reported at the time `at`.

        Until a day has passed, it is not reported again.
        """
        self._open.setdefault(key, at)

    def on_call(self, event: CallFinished) -> None:
        if event.code not in (OK_CODE, TOOL_ERROR_CODE):
            self._detect(event)
        elif self._by_call:
            key = self._by_call.pop((event.server, event.tool, event.caller), None)
            if key is not None:
                self._resolve(key, event.server)

    def on_event(self, event: Event) -> None:
        if isinstance(event, StateChanged | CallRecovered | AuditFailed | ClusterDatabaseRefused | RunAsks):
            self._detect(event)
        elif isinstance(event, DefinitionReviewed):
            self._detect(event)
            if not event.held:
                self._resolve(Alert(event.server, "definition-on-hold", "").key, event.server)
        elif isinstance(event, PartCondition):
            if event.is_open:
                self._detect(event)
            else:
                self._resolve(Alert(event.server, event.kind, "", call=event.call).key, event.server)
        elif isinstance(event, RunChanged):
            if event.state in ("stuck", "damaged"):
                self._detect(event)
            if event.state != "asks":
                self._resolve(Alert(event.server, "workflow-asks", "", call=event.run).key, event.server)
        elif not self._open:
            return
        elif isinstance(event, Connected):
            for kind in _ENDED_BY_CONNECT:
                self._resolve(Alert(event.server, kind, "").key, event.server)
        elif isinstance(event, AccessEvent) and event.action == "login":
            self._resolve(Alert(event.server, "login-needed", "").key, event.server)
        elif isinstance(event, AuditResumed):
            self._resolve("audit", "")
        elif isinstance(event, ClusterDatabaseAccepted):
            self._resolve("cluster-database", "")

    def _detect(self, event: Event) -> None:
        alert = alert_from_event(event, self._restart)
        if alert is None:
            return
        key, now = alert.key, self._now()
        if now - self._open.get(key, 0.0) < REPEAT_INTERVAL_S:
            return
        self._open.pop(key, None)
        while len(self._open) >= MAX_OPEN_ALERTS:
            del self._open[next(iter(self._open))]
        self._open[key] = now
        if alert.tool and alert.kind in _ENDED_BY_CALL and len(self._by_call) < MAX_OPEN_ALERTS:
            self._by_call[alert.server, alert.tool, alert.caller] = key
        masked = {name: self._mask(getattr(alert, name))[:MAX_PART_CHARS] for name in ("message", "detail", "hint")}
        method = event.method if isinstance(event, CallFinished) else "tools/call"
        masked["tool"] = mask_target(alert.server, method, alert.tool, self._mask)
        self._emit(msgspec.structs.replace(alert, at=now, **masked))

    def _resolve(self, key: str, server: str) -> None:
        if self._open.pop(key, None) is not None:
            self._emit(AlertResolved(server, key))


# -- delivery ---------------------------------------------------------------------------------------------------------


def format_alert(alert: Alert) -> str:
    """Return the text of an alert's file, as Markdown."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(alert.at))
    fields = [("when", stamp), ("server", alert.server), ("tool", alert.tool), ("call", alert.call)]
    lines = [
        f"# {alert.message}",
        "",
        *(f"- {name}: {value}" for name, value in [*fields, ("caller", alert.caller)] if value),
    ]
    if alert.detail:
        lines += ["", "## Detail", "", alert.detail]
    lines += ["", "## What to do", "", alert.hint, "", "Delete this file when you are done.", ""]
    return "\n".join(lines)


class AlertDelivery:
    """Event sink that writes a file for each alert and calls the webhook, if they are configured.

    Events only queue alerts. A task of the sink writes the files, in a thread. An alert whose file already exists is
    not sent again, even after the program restarts.
    """

    wants_attempts = False
    wants_calls = False
    wants_successes = False

    def __init__(self, settings: AlertSettings, network_policy: NetworkPolicy) -> None:
        self._folder = Path(settings.folder) if settings.folder else None
        self._webhook: Webhook | None = None
        if settings.webhook:
            from toolway.telemetry.webhook import Webhook  # lazy: loads an HTTP library that few programs need

            self._webhook = Webhook(settings.webhook, settings.headers, network_policy)
        self._queue: asyncio.Queue[Alert | AlertResolved] = asyncio.Queue(MAX_QUEUED_ALERTS)
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0
        self.link_of: Callable[[Alert], str] = lambda alert: ""  # URL of a page about an alert, for the webhook

    async def start(self) -> list[tuple[str, float]]:
        """Start delivering alerts. Return the key and time of each alert that already has a file."""
        known = await asyncio.to_thread(self._known_alerts)
        self._task = asyncio.create_task(self._run())
        if self._webhook is not None:
            self._webhook.start()
        return known

    async def close(self) -> None:
        """Wait at most 2 s for the queued alerts to be written and sent, then stop. The rest is dropped."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._queue.join()
                if self._webhook is not None:
                    await self._webhook.drained()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._webhook is not None:
            await self._webhook.close()

    def on_call(self, event: CallFinished) -> None:
        """Do nothing, because an alert caused by a call arrives as a separate event."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, Alert | AlertResolved):
            try:
                self._queue.put_nowait(event)
            except asyncio.QueueFull:
                self.dropped += 1

    async def _run(self) -> None:
        while True:
            item = await self._queue.get()
            try:
                await self._deliver(item)
            except OSError as exc:
                _log.error("alert %s could not be written: %s", item.key, exc)
            finally:
                self._queue.task_done()

    async def _deliver(self, item: Alert | AlertResolved) -> None:
        folder = self._folder
        if isinstance(item, AlertResolved):
            if folder is not None:
                await asyncio.to_thread(self._settle, folder, item.key)
        elif (folder is None or await asyncio.to_thread(self._write_file, folder, item)) and self._webhook is not None:
            self._webhook.enqueue(item, self.link_of(item))

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _write_file(self, folder: Path, alert: Alert) -> bool:
        """Write the file of an alert and return True.

        A file for the same condition that is older than a day is replaced. Return False if a newer one exists, or if
        there are already `MAX_ALERTS` files.
        """
        files = _list_files(folder)
        same = [file for file in files if file.stem.endswith(f"Z-{alert.key}")]
        if any(alert.at - _time_of(file) < REPEAT_INTERVAL_S for file in same):
            return False
        for file in same:
            file.unlink(missing_ok=True)
        if len(files) - len(same) >= MAX_ALERTS:
            self.dropped += 1
            text = f"{self.dropped} more alerts since {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}.\n"
            write_private(folder / OVERFLOW_FILE, text.encode())
            return False
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(alert.at))
        write_private(folder / f"{stamp}-{alert.key}.md", format_alert(alert).encode())
        return True

    def _settle(self, folder: Path, key: str) -> None:
        settled_folder = folder / "settled"
        for file in _list_files(folder):
            if file.stem.endswith(f"Z-{key}"):
                settled_folder.mkdir(mode=0o700, exist_ok=True)
                file.replace(settled_folder / file.name)
        if settled_folder.exists():
            for file in sorted(settled_folder.glob("*.md"))[:-MAX_RESOLVED_ALERTS]:
                file.unlink(missing_ok=True)

    def _known_alerts(self) -> list[tuple[str, float]]:
        if self._folder is None:
            return []
        return [(file.stem.partition("Z-")[2], _time_of(file)) for file in _list_files(self._folder)]


def _list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*Z-*.md")) if folder.exists() else []


def _time_of(file: Path) -> float:
    """Return the time in an alert file's name, in seconds since 1970, or 0 if it has none."""
    try:
        return float(timegm(time.strptime(file.name.partition("Z-")[0], "%Y%m%dT%H%M%S")))
    except ValueError:
        return 0.0
