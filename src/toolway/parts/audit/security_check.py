"""`toolway doctor --security` checks of the audit log: its signing key and newest checkpoint."""

from __future__ import annotations

import os
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from toolway.audit.chain import read_verified
from toolway.audit.checkpoints import Checkpoint, missing_end
from toolway.audit.log import create_notes, create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.signing import PublicKey, load_signer, load_verifier, signing_key_file
from toolway.audit.sink import LOG_CHECKPOINT, AuditSink, ChainHead, RecordFields, StoredRecord
from toolway.audit.verify import TamperedLog
from toolway.errors import ConfigError
from toolway.part_api import AuditSettings, Check, CheckedGateway, tenant_key_from_env
from toolway.parts.audit.checkpoint_checker import MAX_DISTANCE
from toolway.parts.audit.queries import list_logs
from toolway.secrets.detection import mask_secrets

MAX_UNSIGNED_S: Final = 2 * 3600.0  # seconds; a checkpoint is made every hour
_OTHERS_MAY_READ: Final = 0o077
_TRIAL: Final = b"toolway doctor trial signature\n"  # a checkpoint and an export begin with other words
_OWN_RECORDS: Final = "log."  # kinds of records about the log itself, which also follow the last checkpoint


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """What is known about the audit log and its signatures."""

    enabled: bool = False
    checkpoints: bool = True
    place: str = ""  # file or database of the log
    is_running: bool = False  # a gateway runs that should write it
    key_id: str = ""  # of the key that has just signed a message
    key_source: str = ""  # file of the private key, or the command of the signer
    key_mode: int = 0o600
    key_problem: str = ""
    key_hint: str = ""
    records: int = 0  # 0: no log yet
    signed_through: int = 0  # last record that the newest checkpoint covers; 0: no checkpoint
    signed_at: str = ""
    unsigned_s: float = 0.0  # age of the oldest record after the newest checkpoint
    altered: str = ""  # which record was changed or is missing
    unreadable: str = ""  # why the log could not be read


def check_security(gateway: CheckedGateway) -> tuple[Check, ...]:
    """Check whether the audit log is signed, and return the evidence."""
    return tuple(judge_audit(collect_audit(gateway)))


def collect_audit(gateway: CheckedGateway) -> AuditFacts:
    """Collect what is known about a gateway's audit log. May block."""
    settings = gateway.settings.audit
    if settings is None:
        return AuditFacts()
    settings = settings.with_folder(gateway.folder)
    if gateway.is_node:
        settings = _for_cluster(settings, gateway.environ)
    facts = AuditFacts(
        enabled=True,
        checkpoints=settings.checkpoints,
        is_running=gateway.is_running,
        place=settings.place,
    )
    if gateway.is_node and not settings.digest_key and not settings.signer:
        return replace(facts, key_source="the key of the cluster is not known here: TOOLWAY_CLUSTER_KEY_FILE")
    return _read_logs(_try_key(facts, settings), settings)


def _for_cluster(settings: AuditSettings, environ: Mapping[str, str]) -> AuditSettings:
    key = tenant_key_from_env(environ)
    return settings.for_cluster(key) if key is not None else settings


def _try_key(facts: AuditFacts, settings: AuditSettings) -> AuditFacts:
    """Test the audit log's signing key by signing a message and verifying it. Return `facts` with the result.

    This does not create a key.
    """
    file = signing_key_file(settings)
    uses_file = not settings.signer and not settings.digest_key
    derived = "derived from the key of the cluster"
    facts = replace(facts, key_source=settings.signer or (os.fspath(file) if uses_file else derived))
    if uses_file and file.exists():
        facts = replace(facts, key_mode=stat.S_IMODE(file.stat().st_mode))
    message = _TRIAL + os.urandom(32)
    try:
        signer = load_signer(settings)
        is_valid = signer.public.verify(signer.sign(message), message)
    except ConfigError as exc:
        return replace(facts, key_problem=f"{exc.message}: {mask_secrets(exc.detail)}", key_hint=exc.hint)
    if not is_valid:
        return replace(facts, key_problem="the signature of the key is not valid")
    return replace(facts, key_id=signer.public.id)


def _read_logs(facts: AuditFacts, settings: AuditSettings) -> AuditFacts:
    """Add what the audit log shows to `facts`: record count, newest signature, signs of tampering.

    If there are several logs, return the facts for the one with the worst finding.
    """
    if settings.file and not Path(settings.file).exists():
        noted = create_notes(settings).read(settings.file)
        return replace(facts, altered=str(missing_end(noted[-1], ChainHead()))) if noted else facts
    try:
        macs = RecordMacs.load(settings, create=False)
    except OSError:
        macs = None
    try:
        with closing(create_sink(settings, read_only=True)) as sink:
            sink.open()
            key = load_verifier(settings)
            found = [_read_log(facts, each, settings, macs, key) for each in list_logs(sink, settings)]
    except TamperedLog as exc:
        return replace(facts, altered=str(exc))
    except Exception as exc:  # of a driver of a database, or a damaged file
        return replace(facts, unreadable=mask_secrets(str(exc))[:300] or type(exc).__name__)
    return max(found, key=_badness)


def _badness(facts: AuditFacts) -> tuple[bool, bool, bool, float]:
    return (
        bool(facts.altered),
        bool(facts.unreadable),
        bool(facts.records and not facts.signed_through),
        facts.unsigned_s,
    )


def _read_log(
    facts: AuditFacts, sink: AuditSink, settings: AuditSettings, macs: RecordMacs | None, key: PublicKey | None
) -> AuditFacts:
    """Check one audit log, from its end back to the last signed record, and return `facts` with the result.

    Raises `TamperedLog` if records were changed or removed, or if the signature is wrong.
    """
    newest: Checkpoint | None = None
    head, count, last, unsigned, is_compared = ChainHead(), 0, 0, "", False
    for row, _ in read_verified(sink.read_backward(), macs):
        head = ChainHead(row.seq, row.hash) if not count else head
        count, last = count + 1, row.seq
        fields = row.fields()
        if newest is None and fields.get("kind") == LOG_CHECKPOINT:
            newest = _read_checkpoint(row, fields)
        elif newest is None and not str(fields.get("kind", "")).startswith(_OWN_RECORDS):
            unsigned = str(fields.get("time", ""))
        if newest is not None and row.seq <= newest.through:
            if row.hash != newest.hash:
                raise missing_end(newest, ChainHead(row.seq, row.hash))
            is_compared = True
            break
        if count > 2 * MAX_DISTANCE:
            break
    create_notes(settings).compare(sink, head, macs)
    facts = replace(facts, records=count, unsigned_s=_age(unsigned))
    first = next(sink.read_forward(), None)
    if not is_compared and first is not None and (newest is not None or last > first.seq):
        return replace(facts, unreadable=f"its last {count} records do not reach back to a signed one")
    if newest is None:
        return facts
    if key is None or key.id != newest.key:
        reason = f"the newest checkpoint is signed with the key {newest.key}, which is not the current one"
        return replace(facts, unreadable=f"{reason}: toolway audit verify --public-key FILE")
    if not key.verify(bytes.fromhex(newest.signature), newest.message()):
        raise TamperedLog(newest.through, "the signature of its checkpoint is wrong")
    return replace(facts, signed_through=newest.through, signed_at=newest.time)


def _read_checkpoint(row: StoredRecord, fields: RecordFields) -> Checkpoint:
    try:
        found = Checkpoint.from_record(fields)
        bytes.fromhex(found.signature)
    except ValueError as exc:
        raise TamperedLog(row.seq, f"not a valid checkpoint: {exc}") from None
    return found


def _age(timestamp: str) -> float:
    """Return the seconds since an ISO timestamp; 0 if it is empty."""
    return max(0.0, time.time() - datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0.0


# -- judgement ---------------------------------------------------------------------------------------------------------


def judge_audit(found: AuditFacts) -> Iterator[Check]:
    """Yield the evidence for whether the audit log is signed."""
    if not found.enabled:
        yield Check("audit", "fail", "no audit log", "toolway.audit").with_fix(
            "switch it on", '"toolway": {"audit": true}', "E-AUDIT-NONE"
        )
        return
    yield Check("audit", "ok", "calls are recorded", found.place)
    if not found.checkpoints:
        yield Check(
            "signatures", "fail", "the newest records of the log are not signed", "toolway.audit.checkpoints is false"
        ).with_fix("let the gateway sign it every hour", '"toolway": {"audit": {"checkpoints": true}}', "E-AUDIT-KEY")
    yield _signing_key(found)
    yield _log(found)


def _signing_key(found: AuditFacts) -> Check:
    if found.key_problem:
        hint = found.key_hint or "create it"
        return Check("key", "fail", found.key_problem, found.key_source).with_fix(
            hint, "toolway audit key", "E-AUDIT-KEY"
        )
    if found.key_mode & _OTHERS_MAY_READ:
        detail = f"{found.key_source} has the mode {found.key_mode:o}"
        return Check("key", "fail", "other users of this machine can read the key that signs", detail).with_fix(
            "make it private; if it was read, replace it", f"chmod 600 {shlex.quote(found.key_source)}"
        )
    if found.key_id:
        text = f"the key {found.key_id} signed a message, and the signature is valid"
        return Check("key", "ok", text, found.key_source)
    return Check("key", "skip", "not checked: whether the signing key works", found.key_source)


def _log(found: AuditFacts) -> Check:
    verify = "toolway audit verify"
    if found.unreadable:
        return Check("log", "skip", "the log could not be read", found.unreadable).with_fix(
            "check it", verify, "E-AUDIT-OPEN"
        )
    if found.altered:
        return Check("log", "fail", "the log was altered", found.altered).with_fix(
            "find the record, then compare it with your backup", verify
        )
    if not found.records and found.is_running:
        text = "the running gateway does not write this log: it has no record"
        return Check("log", "fail", text, found.place).with_fix("restart the gateway", "toolway serve", "E-AUDIT-NONE")
    if not found.records:
        return Check("log", "ok", "the log has no record yet, so there is nothing to sign", found.place)
    is_late = found.unsigned_s > MAX_UNSIGNED_S
    if not found.signed_through:
        text = f"the log has {found.records} records, and no checkpoint"
        return Check("log", "fail" if is_late else "skip", text, found.place).with_fix(
            "the first one is made a minute after the start, and when the gateway ends", "toolway serve"
        )
    if is_late:
        text = f"records of the last {found.unsigned_s / 3600:.0f} hours are not signed"
        detail = f"the newest checkpoint covers record {found.signed_through}, at {found.signed_at}"
        return Check("log", "fail", text, detail).with_fix("a running gateway signs them; see its log", "toolway serve")
    text = f"the newest checkpoint is valid: record {found.signed_through}, signed at {found.signed_at}"
    return Check("log", "ok", text, f"{found.place}; all {found.records} records from it on were compared")
