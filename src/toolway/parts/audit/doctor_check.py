"""`toolway doctor` checks of the audit log in a gateway's settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final

from toolway.audit.chain import read_verified
from toolway.audit.checkpoint_notes import CheckpointNotes
from toolway.audit.checkpoints import missing_end
from toolway.audit.log import create_notes, create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import AuditSink, ChainHead, SinkBroken
from toolway.audit.verify import MissingLog, TamperedLog
from toolway.config.locations import gateway_state_folder
from toolway.errors import ToolwayError
from toolway.part_api import AuditSettings, Check, GatewaySettings
from toolway.secrets.detection import mask_secrets

MAX_CHECKED_RECORDS: Final = 5000  # newest records; `toolway audit verify` checks all
MIN_FREE_BYTES: Final = 100 * 1024 * 1024
_VERIFY_COMMAND: Final = "toolway audit verify"
_RESTART: Final = "toolway audit restart"


def check_file(gateway: GatewaySettings) -> Iterator[Check]:
    """Check the audit log that a gateway with these settings would write: its location and newest records."""
    folder = gateway_state_folder(os.environ)
    if gateway.audit is None or folder is None:
        return  # no gateway could be started here at all
    settings = gateway.audit.with_folder(folder)
    if settings.file:
        problem = _check_log_location(Path(settings.file))
        if problem is not None:
            yield problem
            return
        if not Path(settings.file).exists():
            noted = create_notes(settings).read(settings.file)
            yield (
                _altered_check(settings.file, missing_end(noted[-1], ChainHead()))
                if noted
                else Check("audit", "ok", f"the audit log will be created: {settings.file}")
            )
            return
    try:
        sink = create_sink(settings, read_only=True)
        with closing(sink):
            yield _check_audit_records(sink, _load_macs(settings), create_notes(settings))
    except ToolwayError as exc:
        yield Check("audit", "fail", exc.message, exc.detail, exc.hint, code=exc.code)


def _check_log_location(file: Path) -> Check | None:
    """Return a failure if the audit log file is not writable, and a warning if its disk is nearly full.

    Return None if neither is the case.
    """
    folder = next(each for each in (file.parent, *file.parents) if each.exists())
    if not os.access(file if file.exists() else folder, os.W_OK):
        message = f"the audit log cannot be written, so the gateway will not start: {file}"
        return Check(
            "audit",
            "fail",
            message,
            hint=f"make {folder} writable, or set another toolway.audit.file",
            code="E-AUDIT-OPEN",
        )
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        message = f"the disk of the audit log is nearly full: {free // 2**20} MiB left"
        hint = "free disk space: when it is full, calls that change something are rejected"
        return Check("audit", "warn", message, detail=str(folder), hint=hint, code="E-AUDIT")
    return None


def _load_macs(settings: AuditSettings) -> RecordMacs | None:
    try:
        return RecordMacs.load(settings, create=False)
    except OSError:
        return None  # a gateway of another user or machine wrote the log


def _altered_check(location: str, exc: Exception) -> Check:
    message = f"the audit log was changed or damaged, so the gateway will not start: {location}"
    if isinstance(exc, MissingLog):
        message = f"the audit log was removed, so the gateway will not start: {location}"
        return Check("audit", "fail", message, str(exc), "put it back, or start over", _RESTART, "E-AUDIT-MISSING")
    detail, hint = mask_secrets(str(exc)), "find the damaged record"
    return Check("audit", "fail", message, detail, hint, _VERIFY_COMMAND, "E-AUDIT-ALTERED")


def _check_audit_records(sink: AuditSink, macs: RecordMacs | None, notes: CheckpointNotes) -> Check:
    try:
        sink.open()
        newest = next(sink.read_backward(), None)
        notes.compare(sink, ChainHead(newest.seq, newest.hash) if newest is not None else ChainHead(), macs)
        count = sum(1 for _ in islice(read_verified(sink.read_backward(), macs), MAX_CHECKED_RECORDS))
    except (TamperedLog, SinkBroken) as exc:
        return _altered_check(sink.location, exc)
    except Exception as exc:
        message = f"the audit log cannot be read: {sink.location}"
        return Check(
            "audit", "fail", message, mask_secrets(str(exc)), "restore its disk or database", code="E-AUDIT-OPEN"
        )
    which = "all" if count < MAX_CHECKED_RECORDS else "the last"
    return Check("audit", "ok", f"the audit log is intact ({which} {count:,} records checked): {sink.location}")
