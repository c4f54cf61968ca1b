"""Audit log of a hub: created from its settings, opened with the hub and closed after it.

`AUDIT_SINKS` names the storage of each kind of log in files. To add a sink: write a module with a class that implements
`AuditSink` and a function that creates it, and name that in `Part.audit_sinks` of a part, or in another distribution by
the entry point group `toolway.audit_sinks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolway._closest import did_you_mean
from toolway.audit.checkpoint_notes import CheckpointNotes
from toolway.audit.journal import Journal
from toolway.audit.mac import RecordMacs, load_audit_key
from toolway.audit.middleware import AuditMiddleware
from toolway.audit.recorder import AuditRecorder
from toolway.audit.sink import AuditSink, SinkBroken, SinkInUse
from toolway.audit.verify import MissingLog, TamperedLog
from toolway.audit.writer import AuditWriter
from toolway.config.field_reader import CONFIG_KEY_CODE
from toolway.config.masking import create_mask
from toolway.config.schema import Server
from toolway.config.settings import AuditSettings
from toolway.errors import ConfigError
from toolway.events import AuditFailed, AuditResumed, CallRecovered, Event
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.part_api import registry
from toolway.secrets.detection import mask_secrets
from toolway.telemetry.redaction import Redactor
from toolway.types import Call

if TYPE_CHECKING:
    from toolway.audit.checkpoint_task import CheckpointTask

SinkFactory = Callable[[AuditSettings, bool], AuditSink]  # arguments: settings, read_only

#: Kind of log → `module:function` that creates its sink. Parts and other distributions add more.
AUDIT_SINKS: Final[dict[str, str]] = {
    "sqlite": "toolway.audit.file_sinks:create_sqlite_sink",
    "jsonl": "toolway.audit.file_sinks:create_jsonl_sink",
}


def create_sink(settings: AuditSettings, *, read_only: bool = False) -> AuditSink:
    """Create the storage of the audit log (SQLite, JSON lines, PostgreSQL or a foreign one) from the settings.

    Raises `ConfigError` if it needs a package that is not installed, or cannot be loaded.
    """
    path = AUDIT_SINKS.get(settings.to) or registry.find_audit_sink(settings.to)
    module, _, function = path.partition(":")
    try:
        factory: SinkFactory = getattr(import_module(module), function)
    except Exception as exc:
        raise _not_loaded_error(settings.to, path, exc) from exc
    return factory(settings, read_only)


def _not_loaded_error(kind: str, path: str, exc: Exception) -> ConfigError:
    if not path:
        kinds = (*AUDIT_SINKS, *registry.audit_kinds())
        hint = did_you_mean(kind, kinds) or f"use one of {', '.join(kinds)}, or install the package that brings it"
        return ConfigError(f"unknown kind of audit log: {kind!r}", hint=hint, code=CONFIG_KEY_CODE)
    return ConfigError(
        f"the audit log of kind {kind!r} cannot be loaded",
        detail=f"{path}: {type(exc).__name__}: {exc}",
        hint="reinstall its package",
        code="E-AUDIT-OPEN",
    )


def create_journal(settings: AuditSettings) -> Journal | None:
    """Create the journal for an audit log in files. It stores each record until the record is in the log.

    Return None for a log in PostgreSQL, whose records must not depend on this machine. Raises `OSError` if the log's
    key is missing.
    """
    if not settings.file:
        return None
    return Journal(settings.file, load_audit_key(settings, create=False))


def create_notes(settings: AuditSettings) -> CheckpointNotes:
    """Create the notes of checkpoints, in files next to the private key that the settings name.

    A log in a database is not rejected because of them, because another node may have continued or replaced it.
    """
    if not settings.signing_key_file and not settings.file:
        return CheckpointNotes(None)  # a program with a log in a database has no folder
    file = Path(settings.signing_key_file or f"{settings.file}.signing.pem")
    return CheckpointNotes(file, in_files=bool(settings.file))


class AuditLog:
    """Opens and closes a hub's audit log, and emits events when writing fails or resumes."""

    def __init__(
        self,
        settings: AuditSettings,
        emit: Callable[[Event], None],
        servers: Mapping[str, Server] | None = None,
        network_policy: NetworkPolicy = PUBLIC_ONLY,
    ) -> None:
        """Create the audit log; `open` opens it. `emit` gets events about failures.

        `servers` is a live view of the server entries: secrets in them are hidden in records. `network_policy` applies
        to the webhook of checkpoints.
        """
        self._settings = settings
        self._network_policy = network_policy
        self._checkpoints: CheckpointTask | None = None
        self._emit = emit
        live = servers if servers is not None else {}
        self._mask = create_mask(lambda: live)
        self.writer: AuditWriter | None = None
        self.recorder: AuditRecorder | None = None

    async def open(self, definition_for: Callable[[Call], str]) -> AuditMiddleware:
        """Open the log and return the middleware that records calls in it.

        Raises `ConfigError` if the log is damaged, in use, or not writable.
        """
        settings = self._settings
        try:
            macs = await asyncio.to_thread(RecordMacs.load, settings)
            redactor = await asyncio.to_thread(load_redactor, settings)
            writer = AuditWriter(
                create_sink(settings),
                macs,
                journal=await asyncio.to_thread(create_journal, settings),
                notes=create_notes(settings) if settings.checkpoints else None,
                keep_s=settings.retention,
                on_state_change=self._emit_state,
            )
            opened = await writer.open()
        except Exception as exc:
            raise open_error(settings, exc) from exc
        now = asyncio.get_running_loop().time
        self.writer = writer
        if settings.checkpoints:
            self._checkpoints = self._start_checkpoints(writer)
        self.recorder = AuditRecorder(
            writer,
            redactor,
            definition_for,
            now,
            record_arguments=settings.arguments,
            mask=lambda server, text: self._mask(text),
        )
        for fields in opened.recovered:
            texts = {name: str(fields.get(name, "")) for name in ("call", "tool", "caller")}
            self._emit(CallRecovered(str(fields.get("server", "")), texts["call"], texts["tool"], texts["caller"]))
        return AuditMiddleware(self.recorder)

    def _start_checkpoints(self, writer: AuditWriter) -> CheckpointTask:
        # lazy: few programs have an audit log
        from toolway.audit.checkpoint_task import CheckpointTask
        from toolway.audit.signing import load_signer

        settings, webhook = self._settings, None
        if settings.checkpoint_webhook:
            from toolway.telemetry.webhook import Webhook

            webhook = Webhook(settings.checkpoint_webhook, {}, self._network_policy)
        task = CheckpointTask(
            writer, lambda: load_signer(settings, create=True), create_notes(settings), webhook=webhook
        )
        task.start()
        return task

    async def close(self) -> None:
        if self.recorder is not None:
            self.recorder.flush_rejected()
        if self._checkpoints is not None:
            await self._checkpoints.close()
        if self.writer is not None:
            await self.writer.close()

    def _emit_state(self, reason: str, lost: int) -> None:
        self._emit(AuditFailed("", mask_secrets(reason)) if reason else AuditResumed("", lost))


def open_error(settings: AuditSettings, exc: Exception) -> ConfigError:
    """Return the error for an audit log that could not be opened because of `exc`."""
    location = settings.place
    if isinstance(exc, ConfigError):
        return exc
    if isinstance(exc, MissingLog):
        return missing_log_error(location, exc)
    if isinstance(exc, TamperedLog | SinkBroken):
        return ConfigError(
            f"audit log was changed or damaged: {location}",
            detail=mask_secrets(str(exc)),
            hint="find the record: toolway audit verify. To continue with a new log: toolway audit restart",
            code="E-AUDIT-ALTERED",
        )
    if isinstance(exc, SinkInUse):
        return ConfigError(
            f"audit log is in use: {location}",
            detail="another process writes to it, and only one can",
            hint="stop the other gateway, or use another log: set toolway.audit.file, or name in PostgreSQL",
            code="E-AUDIT-IN-USE",
        )
    return ConfigError(
        f"audit log cannot be opened: {location}",
        detail=mask_secrets(str(exc)) or type(exc).__name__,
        hint="check that its folder is writable, that the disk has space, and that its database is reachable",
        code="E-AUDIT-OPEN",
    )


def missing_log_error(location: str, exc: MissingLog) -> ConfigError:
    """Return the error for an audit log that was removed or emptied although records were signed."""
    return ConfigError(
        f"audit log was removed: {location}",
        detail=str(exc),
        hint="restore the log; if it is lost, start a new one: toolway audit restart",
        code="E-AUDIT-MISSING",
    )


def load_redactor(settings: AuditSettings, *, create: bool = True) -> Redactor:
    """Create the audit log's redactor with its hash key, from the settings or the key file.

    A missing key file is created with a random key. Raises `OSError` if it is missing and `create` is False.
    """
    return Redactor(load_audit_key(settings, create=create), settings.redact, settings.max_text_chars)
