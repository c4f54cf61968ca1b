"""One API key's limits: its budgets, and how many of its calls may run at once. No I/O.

They are attributes of the key, stored as JSON. A principal has them as strings, so it can be compared and hashed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from toolway.gateway.principals import Principal
from toolway.parts.budgets.settings import CallBudget, check_budgets

MAX_CONCURRENT: Final = 100_000  # calls of one key in flight
_BUDGETS: Final = msgspec.json.Decoder(tuple[CallBudget, ...])


class KeyLimits(NamedTuple):
    """Limits of one API key."""

    budgets: tuple[CallBudget, ...] = ()
    concurrent: int | None = None


NO_LIMITS: Final = KeyLimits()


def limits_of(principal: Principal) -> KeyLimits:
    """Return the limits on a principal's API key. Raises `ValueError` if the stored limits are invalid."""
    if not principal.attributes:
        return NO_LIMITS
    found = dict(principal.attributes)
    budgets, concurrent = found.get("budgets"), found.get("concurrent")
    return KeyLimits(
        _BUDGETS.decode(budgets) if budgets is not None else (), int(concurrent) if concurrent is not None else None
    )


def read_budgets(value: Any) -> Any:
    """Return budgets (strings such as `5000/day`, or values) in the stored form, or None if there are none."""
    if not isinstance(value, list | tuple):
        raise ValueError("budgets must be a list of strings such as 5000/day")
    return msgspec.to_builtins(check_budgets([_read_budget(each) for each in value])) or None


def _read_budget(value: Any) -> CallBudget:
    if isinstance(value, CallBudget | dict):
        return msgspec.convert(msgspec.to_builtins(value), CallBudget)
    return CallBudget.parse(str(value))


def show_budgets(stored: Any) -> list[str]:
    """Return stored budgets as strings."""
    return [str(each) for each in msgspec.convert(stored, tuple[CallBudget, ...])]


def read_concurrent(value: Any) -> int:
    """Return how many of a key's calls may run at once. Raises `ValueError` if the number is invalid."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("concurrent must be a number of calls")
    if not 0 < value <= MAX_CONCURRENT:
        raise ValueError(f"concurrent must be a number of calls from 1 to {MAX_CONCURRENT}")
    return value
