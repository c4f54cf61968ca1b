"""Which records of a log somebody wants to see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from toolway.telemetry.audit.records import Fields, Row
from toolway.telemetry.audit.sink import Sink


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that is set must fit."""

    fields: Mapping[str, str] = field(default_factory=dict)  # the exact values of these
    kind: str = ""  # or its beginning: `call`, `log`
    since: str = ""  # an ISO time in UTC

    def fits(self, found: Fields) -> bool:
        if self.kind and not str(found.get("kind", "")).startswith(self.kind):
            return False
        return all(found.get(name) == value for name, value in self.fields.items())

    def is_before(self, found: Fields) -> bool:
        return bool(self.since) and str(found.get("time", "")) < self.since


def newest(sink: Sink, wanted: Wanted, most: int) -> list[Fields]:
    """The newest that fit, oldest first. Raises `SinkBroken`."""
    return list(islice(_backward(sink, wanted), most))[::-1]


def _backward(sink: Sink, wanted: Wanted) -> Iterator[Fields]:
    for row in sink.backward():
        found = shown(row)
        if wanted.is_before(found):
            return
        if wanted.fits(found):
            yield found


def all_of(sink: Sink, wanted: Wanted) -> Iterator[Fields]:
    """All that fit, oldest first. Raises `SinkBroken`."""
    for row in sink.forward():
        found = shown(row)
        if not wanted.is_before(found) and wanted.fits(found):
            yield found


def shown(row: Row) -> Fields:
    """A record with its hash; one that cannot be read says so instead of hiding those after it."""
    try:
        return {**row.fields(), "hash": row.hash}
    except ValueError:
        return {"seq": row.seq, "kind": "damaged", "hash": row.hash}
