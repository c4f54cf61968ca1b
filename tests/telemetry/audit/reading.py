"""Reading a log in tests: always checked first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolway.auditing import sink_of
from toolway.config.audit import AuditSettings
from toolway.telemetry.audit.verify import verify

CALLS = ("call.intent", "call.outcome", "call.late_result")
Records = list[dict[str, Any]]


def records(log: Path | AuditSettings, *kinds: str) -> Records:
    sink = sink_of(AuditSettings.of(log), read_only=True)
    sink.open()
    verify(sink.forward())
    found = [row.fields() for row in sink.forward()]
    sink.close()
    return [each for each in found if not kinds or each["kind"] in kinds]


def calls(log: Path | AuditSettings) -> Records:
    return records(log, *CALLS)
