"""Restarts an audit log after its files were lost or altered, with an administrator's consent.

A gateway does not start if a signed record is missing from its log. `restart_log` moves the remaining files to a
folder and starts a new log:

    1   log.restart      the last signed record of the earlier log, the administrator, the reason, and the folder
    2   log.checkpoint   the signature of record 1

The second record is also noted elsewhere, so removing the new log would not go unnoticed. Notes about the earlier log
are kept. A crash leaves either no log, which is still rejected, or the whole new one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from toolway.audit.checkpoints import sign_checkpoint
from toolway.audit.log import create_notes, create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.signing import load_signer
from toolway.audit.sink import (
    LOG_CHECKPOINT,
    LOG_RESTARTED,
    AuditSink,
    ChainHead,
    RecordFields,
    SinkBroken,
    encode_record,
    format_time,
    link_records,
    lock_file,
)
from toolway.audit.verify import TamperedLog
from toolway.errors import ConfigError
from toolway.part_api import AuditSettings
from toolway.parts.audit.checkpoint_checker import CheckpointChecker
from toolway.parts.audit.verify import refuse_replacement, verify_log


class RestartedLog(NamedTuple):
    """Result of `restart_log`: where the earlier log ended, why it was rejected, and where its files are."""

    after: ChainHead
    found: str
    moved_to: str


def restart_log(
    settings: AuditSettings, who: str, why: str, wall_clock: Callable[[], float] = time.time
) -> RestartedLog:
    """Start a new audit log in files, and record `who` and `why` in it.

    Raises `ConfigError` if the log is intact, never existed, is not in files, or cannot be signed, and `SinkInUse` if a
    gateway is writing to it.
    """
    if not settings.file:
        raise ConfigError(
            "an audit log in PostgreSQL cannot be restarted",
            detail="other gateways may write to its table",
            hint='start a log with another name: "toolway": {"audit": {"name": "…"}}',
            code="E-AUDIT-OPEN",
        )
    now, file, notes = wall_clock(), Path(settings.file), create_notes(settings)
    if not file.exists() and not notes.read(settings.file):
        raise ConfigError(
            f"no audit log to replace: {settings.file}",
            detail="no log was ever signed here",
            hint="start one: toolway serve",
            code="E-AUDIT-NONE",
        )
    macs, signer = RecordMacs.load(settings), load_signer(settings, create=True)
    sink = create_sink(settings)
    lock = lock_file(file)
    try:
        found = find_damage(settings, macs)
        left = list(_list_files(file))
        folder = _unused_folder(file, now)
        noted = notes.read(sink.location)
        after = ChainHead(noted[-1].through, noted[-1].hash) if noted else ChainHead()
        moved_to = os.fspath(folder) if left else ""
        fields: RecordFields = {"after": {"seq": after.seq, "hash": after.hash}, "who": who, "why": why}
        fields |= {"found": found, "moved_to": moved_to}
        [first] = link_records(ChainHead(), [encode_record(LOG_RESTARTED, now, time.monotonic(), fields)], macs.add)
        head = ChainHead(first.seq, first.hash)
        signed = sign_checkpoint(sink.location, head, format_time(now), signer.public.id, signer.sign)
        entry = encode_record(LOG_CHECKPOINT, now, time.monotonic(), signed.to_record())
        _move(left, folder)
    finally:
        os.close(lock)
    with closing(sink):
        sink.open()
        if sink.head() != ChainHead():
            raise SinkBroken(f"{sink.location} was written in the meantime")
        sink.append([first, *link_records(head, [entry], macs.add)])
        notes.begin_again(sink.location, signed)
    return RestartedLog(after, found, moved_to)


def find_damage(settings: AuditSettings, macs: RecordMacs) -> str:
    """Verify a whole log as `toolway audit verify` does, and return why a gateway would reject it.

    Raises `ConfigError` if the log is intact.
    """
    sink, notes = create_sink(settings, read_only=True), create_notes(settings)
    if not Path(settings.file).exists():
        return "the log is missing"
    try:
        with closing(sink):
            sink.open()
            _verify(sink, macs, CheckpointChecker([], notes.read_for(sink, macs)))
    except (TamperedLog, SinkBroken) as exc:
        return str(exc)
    raise ConfigError(
        f"the audit log is intact: {settings.file}",
        detail="only a lost or altered log can be restarted",
        hint="to archive an intact log, stop the gateway, move the log to another folder, and run the command again",
        code="E-AUDIT-INTACT",
    )


def _verify(sink: AuditSink, macs: RecordMacs, checker: CheckpointChecker) -> None:
    refuse_replacement(verify_log(checker.rows(sink.read_forward()), macs=macs))


def _unused_folder(file: Path, now: float) -> Path:
    """Return the path of an unused folder for the earlier log's files. The folder's name contains the time."""
    name = f"{file.name}.replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    return next(each for each in map(file.with_name, names) if not each.exists())


def _list_files(file: Path) -> Iterator[Path]:
    """Yield the files of a log: the log itself, SQLite's own files, rotated files, and the journal."""
    stem, suffix, name = re.escape(file.stem), re.escape(file.suffix), re.escape(file.name)
    pattern = re.compile(rf"{name}|{name}-wal|{name}-shm|{stem}-[0-9]{{12}}{suffix}|{name}\.journal-[0-9]{{8}}")
    yield from (each for each in sorted(file.parent.iterdir()) if pattern.fullmatch(each.name))


def _move(files: list[Path], folder: Path) -> None:
    if files:
        folder.mkdir(mode=0o700)
    for each in files:
        each.rename(folder / each.name)
