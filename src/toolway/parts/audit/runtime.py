"""Metrics of a gateway's audit log, for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from toolway.part_api.part import Gauge, Part, PartContext, PartRuntime


class AuditRuntime(PartRuntime):
    """The metrics of a hub's audit log."""

    def __init__(self, part: Part, context: PartContext) -> None:
        self._hub = context.hub

    def gauges(self) -> Iterable[Gauge]:
        writer = self._hub.audit_writer
        if writer is not None:
            yield Gauge("toolway_audit_failing", writer.failure is not None)
            yield Gauge("toolway_audit_waiting", writer.pending)
            yield Gauge("toolway_audit_lost", writer.lost_total)
