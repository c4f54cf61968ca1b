"""Which calls somebody wants to see, by the fields of a query. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from toolway.events import CallFinished

FIELDS: Final = ("server", "tool", "who", "status", "slow", "retried", "source", "q")
SETS: Final = frozenset({"ok", "failed", "unknown"})  # values of `status` that are no outcome

Fits = Callable[[CallFinished], bool]


def wanted(fields: Mapping[str, str], names: Mapping[str, str]) -> Fits:
    """`status` is ok, failed, unknown or an outcome; `slow` seconds; `retried` 1; `source` cache, replay or shared;
    `q` a part of any name. Raises `ValueError`."""
    tests: list[Fits] = []
    if "server" in fields:
        tests.append(lambda fact: fact.server == fields["server"])
    if "tool" in fields:
        tests.append(lambda fact: (fact.tool or fact.name) == fields["tool"])
    if "who" in fields:
        tests.append(lambda fact: (names.get(fact.caller, fact.caller) or "owner") == fields["who"])
    if "status" in fields:
        tests.append(_status(fields["status"]))
    if "slow" in fields:
        least = float(fields["slow"])
        tests.append(lambda fact: fact.seconds >= least)
    if fields.get("retried"):
        tests.append(lambda fact: fact.attempts > 1)
    if "source" in fields:
        tests.append(lambda fact: fact.source == fields["source"])
    if fields.get("q"):
        part = fields["q"].lower()
        tests.append(lambda fact: part in f"{fact.server}.{fact.tool} {fact.id} {fact.outcome} {fact.what}".lower())
    return lambda fact: all(test(fact) for test in tests)


def _status(wish: str) -> Fits:
    if wish == "ok":
        return lambda fact: fact.outcome == "ok"
    if wish == "failed":
        return lambda fact: fact.outcome != "ok"
    if wish == "unknown":
        return lambda fact: fact.executed == "unknown"
    return lambda fact: fact.outcome == wish
