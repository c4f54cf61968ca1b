"""Alerts: conditions that an operator must resolve, each as a file and a webhook message.

    login-needed      a server requires a login by a user
    given-up          a server failed too often, and is now restarted only rarely
    outcome-unknown   a call may have been executed: check before it is repeated
    audit             the audit log cannot be written, so calls are rejected

A file is moved to `settled/` when the condition ends by itself. Otherwise the operator deletes it. The number of files
is limited to a few hundred: more of them do not help an operator who reads none.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from toolway.events import AuditFailed, AuditResumed, CallFinished, CallRecovered, Connected, Event, StateChanged
from toolway.secrets.encrypted_file import write_private

AlertKind = Literal["login-needed", "given-up", "outcome-unknown", "audit"]
MAX_ALERTS: Final = 500  # files
MAX_RESOLVED_ALERTS: Final = 200
MAX_QUEUED_ALERTS: Final = 1000  # alerts that wait to be written
MAX_PART_CHARS: Final = 2000  # of message, detail or hint
OVERFLOW_FILE: Final = "and-more.txt"
_log = logging.getLogger("toolway.alerts")


class Alert(msgspec.Struct, frozen=True):
    """One condition that an operator must resolve: message, detail and hint."""

    kind: AlertKind
    message: str
    detail: str = ""
    hint: str = ""
    server: str = ""
    tool: str = ""
    call: str = ""
    caller: str = ""
    at: float = 0.0

    @property
    def key(self) -> str:
        """Return the alert's file name without time stamp: kind, server and call id.

        Equal for repeated alerts about one condition, so that only one file is written.
        """
        parts = [self.kind, self.server, self.call]
        return "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", word)[:80] for word in parts if word)

    def to_markdown(self) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at))
        fields = [("when", stamp), ("server", self.server), ("tool", self.tool), ("call", self.call)]
        lines = [
            f"# {self.message}",
            "",
            *(f"- {name}: {value}" for name, value in [*fields, ("caller", self.caller)] if value),
        ]
        if self.detail:
            lines += ["", "## Detail", "", self.detail]
        lines += ["", "## What to do", "", self.hint, "", "Delete this file when it is done.", ""]
        return "\n".join(lines)


def alert_from_event(event: Event, hint_for: Callable[[str], str]) -> Alert | None:
    """Return the alert that an event causes; None if it needs no action by an operator.

    `hint_for` returns the current hint for a server, by its name.
    """
    if isinstance(event, CallFinished):
        return _alert_from_call(event)
    if isinstance(event, CallRecovered):
        return _unknown_outcome_alert(
            event.server, event.tool, event.id, event.caller, "the gateway stopped during the call"
        )
    if isinstance(event, StateChanged):
        return _alert_from_state(event, hint_for(event.server)) if event.new in ("failed", "backing_off") else None
    if isinstance(event, AuditFailed):
        hint = "free disk space or restore the database of the log; calls then resume by themselves: toolway doctor"
        return Alert("audit", "the audit log cannot be written, so calls are rejected", event.reason, hint)
    return None


def _alert_from_call(event: CallFinished) -> Alert | None:
    if event.executed == "unknown" and event.effect not in ("read", "idempotent"):
        return _unknown_outcome_alert(
            event.server, event.tool or event.name, event.id, event.caller, event.message or event.outcome
        )
    if event.outcome == "E-AUTH-LOGIN":
        return _login_alert(event.server, event.detail or event.message, event.hint, event.caller)
    return None


def _alert_from_state(event: StateChanged, hint: str) -> Alert | None:
    if "toolway login" in hint:
        return _login_alert(event.server, event.reason, hint)
    if event.new != "failed":
        return None
    return Alert(
        "given-up",
        f"{event.server} has failed too often",
        event.reason,
        f"{hint or 'check the cause'}: toolway status {event.server}; then restart it: toolway restart {event.server}",
        event.server,
    )


def _login_alert(server: str, detail: str, hint: str, caller: str = "") -> Alert:
    return Alert(
        "login-needed", f"{server} requires a login", detail, hint or f"toolway login {server}", server, caller=caller
    )


def _unknown_outcome_alert(server: str, tool: str, call: str, caller: str, detail: str) -> Alert:
    return Alert(
        "outcome-unknown",
        f"{server}.{tool} may have been executed: its outcome is unknown",
        detail,
        f"check at the server if it was executed before you repeat it: toolway audit ls --call {call}",
        server,
        tool,
        call,
        caller,
    )


class AlertFileSink:
    """Event sink that writes one Markdown file per alert into a folder.

    Events only queue alerts. A task of the sink writes the files, in a thread.
    """

    wants_attempts = False

    def __init__(
        self,
        folder: Path,
        *,
        mask: Callable[[str], str],
        hint_for: Callable[[str], str],
        notify: Callable[[Alert], None] = lambda alert: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create the sink. `mask` hides secrets in texts of servers.

        `hint_for` returns the current hint for a server. `notify` gets each alert whose file was written.
        """
        self._folder = folder
        self._mask = mask
        self._hint_for = hint_for
        self._notify = notify
        self._now = now
        self._queue: asyncio.Queue[Alert | str] = asyncio.Queue(MAX_QUEUED_ALERTS)
        self._task: asyncio.Task[None] | None = None
        self._servers_with_alert: set[str] = set()  # servers with an alert that a new connection resolves
        self.dropped = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Wait at most 2 s until the queued alerts are written, then stop. The rest is dropped."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._queue.join()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def on_call(self, event: CallFinished) -> None:
        self._handle(event)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Connected) and event.server in self._servers_with_alert:
            self._servers_with_alert.discard(event.server)
            self._enqueue(f"given-up-{event.server}")
            self._enqueue(f"login-needed-{event.server}")
        elif isinstance(event, AuditResumed):
            self._enqueue("audit")
        else:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        alert = alert_from_event(event, self._hint_for)
        if alert is None:
            return
        masked = {name: self._mask(getattr(alert, name))[:MAX_PART_CHARS] for name in ("message", "detail", "hint")}
        if alert.kind in ("given-up", "login-needed"):
            self._servers_with_alert.add(alert.server)
        self._enqueue(msgspec.structs.replace(alert, at=self._now(), **masked))

    def _enqueue(self, item: Alert | str) -> None:
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            self.dropped += 1

    async def _run(self) -> None:
        while True:
            item = await self._queue.get()
            try:
                if isinstance(item, str):
                    await asyncio.to_thread(self._resolve, item)
                elif await asyncio.to_thread(self._write_file, item):
                    self._notify(item)
            except OSError as exc:
                _log.error("alert could not be written: %s: %s", self._mask(str(item)), exc)
            finally:
                self._queue.task_done()

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _write_file(self, alert: Alert) -> bool:
        """Write the file of an alert and return True.

        Return False if a file for this condition exists, or if there are already `MAX_ALERTS` files.
        """
        files = self._list_files()
        if any(file.stem.endswith(f"Z-{alert.key}") for file in files):
            return False
        if len(files) >= MAX_ALERTS:
            self.dropped += 1
            text = f"{self.dropped} more alerts since {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}.\n"
            write_private(self._folder / OVERFLOW_FILE, text.encode())
            return False
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(alert.at))
        write_private(self._folder / f"{stamp}-{alert.key}.md", alert.to_markdown().encode())
        return True

    def _resolve(self, key: str) -> None:
        resolved_folder = self._folder / "settled"
        for file in self._list_files():
            if file.stem.endswith(f"Z-{key}"):
                resolved_folder.mkdir(mode=0o700, exist_ok=True)
                file.replace(resolved_folder / file.name)
        if resolved_folder.exists():
            for file in sorted(resolved_folder.glob("*.md"))[:-MAX_RESOLVED_ALERTS]:
                file.unlink(missing_ok=True)

    def _list_files(self) -> list[Path]:
        return sorted(self._folder.glob("*Z-*.md")) if self._folder.exists() else []
