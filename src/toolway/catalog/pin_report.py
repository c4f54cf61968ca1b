"""Pins as JSON for users: what deviates, what differs, and which digest to accept.

Values of definitions are ASCII JSON, so nothing in them stays invisible.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from toolway.catalog.pins import Deviation, Pin, ServerPins, describe_changes, item_name
from toolway.types import Json

MAX_VALUE_CHARS: Final = 4000  # of one value; a longer one is cut with a mark
MAX_CHANGES: Final = 200  # of one definition


def describe_pins(servers: Iterable[ServerPins]) -> Json:
    """Return, as JSON, each server's number of pins, and all definitions that deviate from their pins."""
    known = [*servers]
    return {
        "servers": [{"server": each.name, "pins": len(each.pins)} for each in known],
        "deviations": [
            describe_deviation(each, key, deviation) for each in known for key, deviation in each.deviations.items()
        ],
    }


def describe_deviation(server: ServerPins, key: str, deviation: Deviation) -> Json:
    """Return, as JSON, one definition that deviates from its pin, with the parts in which both differ."""
    kind, _, name = key.partition("/")
    return {
        "name": item_name(server.name, key),
        "server": server.name,
        "kind": kind,
        "item": name,
        "reason": deviation.reason,
        "on_hold": deviation.held,
        "since": deviation.since,
        "digest": deviation.digest,
        "findings": list(deviation.findings),
        "changes": _changes(server.pins.get(key), deviation),
        "complete": deviation.definition is not None,
    }


def _changes(pin: Pin | None, deviation: Deviation) -> list[Json]:
    old = pin.definition if pin is not None and pin.definition is not None else {}
    new = deviation.definition if deviation.definition is not None else {}
    changes = describe_changes(old, new)[:MAX_CHANGES]
    return [{"path": path, "old": _text(before), "new": _text(after)} for path, before, after in changes]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]} … ({len(text)} characters)"
