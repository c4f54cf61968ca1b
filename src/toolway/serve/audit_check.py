"""Facts about the signatures of an audit log, for `toolway doctor --security`: the key, and the newest checkpoint."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from toolway.audit.chain import read_verified
from toolway.audit.checkpoints import MAX_DISTANCE, Checkpoint, missing_end
from toolway.audit.log import create_notes, create_sink, list_logs
from toolway.audit.mac import RecordMacs
from toolway.audit.signing import PublicKey, load_signer, load_verifier, signing_key_file
from toolway.audit.sink import LOG_CHECKPOINT, AuditSink, ChainHead, RecordFields, StoredRecord
from toolway.audit.verify import TamperedLog
from toolway.config.settings import AuditSettings
from toolway.doctor.security_facts import AuditFacts
from toolway.errors import ConfigError
from toolway.secrets.detection import mask_secrets

_TRIAL: Final = b"toolway doctor trial signature\n"  # a checkpoint and an export begin with other words
_OWN_RECORDS: Final = "log."  # kinds of records about the log itself, which also follow the last checkpoint


def collect_audit(
    settings: AuditSettings | None,
    folder: Path,
    environ: Mapping[str, str],
    *,
    signer_held: bool,
    cluster: bool,
    is_running: bool,
) -> AuditFacts:
    """Return the facts about the audit log of a gateway with this state folder. It may block.

    `signer_held`: the command that signs is not approved, so it is not run. `cluster`: the key of the cluster is
    needed, which only a node has. `is_running`: a gateway runs that should write the log.
    """
    if settings is None:
        return AuditFacts()
    settings = replace(settings.with_folder(folder), signer_held=signer_held)
    if cluster:
        settings = _for_cluster(settings, environ)
    facts = AuditFacts(
        enabled=True,
        checkpoints=settings.checkpoints,
        is_running=is_running,
        place=settings.file or f"the log {settings.name!r} in PostgreSQL",
    )
    if cluster and not settings.digest_key and not settings.signer:
        return replace(facts, key_source="the key of the cluster is not known here: TOOLWAY_CLUSTER_KEY_FILE")
    return _read_logs(_try_key(facts, settings), settings)


def _for_cluster(settings: AuditSettings, environ: Mapping[str, str]) -> AuditSettings:
    from toolway.cluster.options import tenant_key_from_env  # few machines are nodes

    key = tenant_key_from_env(environ)
    return settings.for_cluster(key) if key is not None else settings


def _try_key(facts: AuditFacts, settings: AuditSettings) -> AuditFacts:
    """Test the signing key of the audit log: sign a message and verify it. Return the facts with the result.

    No key is created.
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
    """Add to `facts` what the audit log shows: number of records, newest signature, and signs of changes.

    If there are several logs, return the facts about the one with the worst finding.
    """
    if settings.to != "postgresql" and not Path(settings.file).exists():
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
    """Check one audit log, from its end back to the last record that a checkpoint (signature) covers; return the facts.

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
    """Return the number of seconds since `timestamp`, a time in ISO format; 0 if it is empty."""
    return max(0.0, time.time() - datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0.0
