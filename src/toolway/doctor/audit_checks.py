"""The audit log that a file asks for: can it be kept, and is it whole? And matters that wait for a person."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final

from toolway.auditing import sink_of
from toolway.config.audit import AuditSettings, Escalating
from toolway.config.gateway import GatewaySettings
from toolway.config.state import gateway_folder
from toolway.doctor.report import Check
from toolway.errors import ToolwayError
from toolway.secrets.known import hide
from toolway.telemetry.audit.chronicle import tied
from toolway.telemetry.audit.sink import Sink, SinkBroken
from toolway.telemetry.audit.verify import Altered

LOOKED_AT: Final = 5000  # of the last records; `toolway audit verify` looks at all
LEAST_ROOM: Final = 100 * 1024 * 1024
_VERIFY: Final = "toolway audit verify"


def audit_checks(gateway: GatewaySettings, environ: Mapping[str, str]) -> Iterator[Check]:
    folder = gateway_folder(environ)
    if folder is None:
        return  # no gateway could be started here at all
    if gateway.audit is not None:
        yield from _of_log(gateway.audit.in_folder(folder))
    if gateway.escalations is not None:
        yield from _of_matters(gateway.escalations, folder)


def _of_log(settings: AuditSettings) -> Iterator[Check]:
    if settings.to != "postgresql":
        problem = _of_place(Path(settings.file))
        if problem is not None:
            yield problem
            return
        if not Path(settings.file).exists():
            yield Check("audit", "ok", f"an audit log will be kept: {settings.file}")
            return
    try:
        sink = sink_of(settings, read_only=True)
        with closing(sink):
            yield _of_records(sink)
    except ToolwayError as exc:
        yield Check("audit", "fail", exc.what, exc.evidence, exc.fix, code=exc.code)


def _of_place(file: Path) -> Check | None:
    """Where it cannot be written, or soon will not be."""
    place = next(each for each in (file.parent, *file.parents) if each.exists())
    if not os.access(file if file.exists() else place, os.W_OK):
        what = f"the audit log cannot be written, so the gateway will not start: {file}"
        return Check(
            "audit", "fail", what, fix=f"make {place} writable, or name another toolway.audit.file", code="E-AUDIT-OPEN"
        )
    free = shutil.disk_usage(place).free
    if free < LEAST_ROOM:
        what = f"the disk of the audit log is nearly full: {free // 2**20} MiB are left"
        fix = "make room: once it is full, calls that change something are refused"
        return Check("audit", "warn", what, evidence=str(place), fix=fix, code="E-AUDIT")
    return None


def _of_records(sink: Sink) -> Check:
    try:
        sink.open()
        count = sum(1 for _ in islice(tied(sink.backward()), LOOKED_AT))
    except (Altered, SinkBroken) as exc:
        what = f"the audit log was changed or damaged, so the gateway will not start: {sink.where}"
        return Check("audit", "fail", what, hide(str(exc)), "see where", _VERIFY, "E-AUDIT-ALTERED")
    except Exception as exc:
        what = f"the audit log cannot be read: {sink.where}"
        return Check("audit", "fail", what, hide(str(exc)), "bring its disk or database back", code="E-AUDIT-OPEN")
    which = "all" if count < LOOKED_AT else "the last"
    return Check("audit", "ok", f"the audit log is whole, as far as {which} {count:,} records tell: {sink.where}")


def _of_matters(settings: Escalating, folder: Path) -> Iterator[Check]:
    place = Path(settings.folder) if settings.folder else folder / "escalations"
    waiting = sorted(place.glob("*Z-*.md")) if place.exists() else []
    if waiting:
        what = f"{len(waiting)} matters wait for a person" if len(waiting) > 1 else "a matter waits for a person"
        evidence = "\n".join(file.name for file in waiting[-5:])
        yield Check("escalations", "warn", what, evidence, "see to it, and remove its file", f"ls {place}")
