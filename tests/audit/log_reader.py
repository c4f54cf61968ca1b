"""Reader of an audit log for tests; verifies the log first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from toolway.audit.log import create_sink
from toolway.audit.sink import AuditSink
from toolway.config.settings import AuditSettings
from toolway.parts.audit.queries import find_unstored, read_journal
from toolway.parts.audit.verify import verify_log

CALLS = ("call.intent", "call.outcome", "call.late_result")
Records = list[dict[str, Any]]


def records(log: Path | AuditSettings, *kinds: str) -> Records:
    sink = create_sink(AuditSettings.from_location(log), read_only=True)
    sink.open()
    verify_log(sink.read_forward())
    found = [row.fields() for row in sink.read_forward()]
    sink.close()
    return [each for each in found if not kinds or each["kind"] in kinds]


def calls(log: Path | AuditSettings) -> Records:
    return records(log, *CALLS)


def read_unstored(settings: AuditSettings, sink: AuditSink) -> Records:
    """The records of the journal that are not in the log yet. `sink` is open."""
    return [msgspec.json.decode(record) for record in find_unstored(read_journal(settings), sink)]
