"""Budgets of calls and of bytes of results: `5000/day`, `500MB/month`, and the settings `budgets` and `budgetsFail`.

"budgets": {
  "eng": {"*": "20000/day", "openai.*": ["500/day", "200MB/day"]},
  "*": {"prod-db.*": "100/hour"}
}

A key such as `eng` is a group of the identity provider, or a toolset that API keys are limited to; `*` is every caller.
The members of a group share its budgets. Periods begin at full minutes, hours, days and months of UTC. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import translate
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from toolway.config.field_reader import CONFIG_KEY_CODE, FieldReader, field_error, shorten_key
from toolway.errors import ConfigError

Period: TypeAlias = Literal["minute", "hour", "day", "month"]
Unit: TypeAlias = Literal["calls", "bytes"]
EVERY_CALLER: Final = "*"  # as a group: all callers together
MAX_RULES: Final = 1000
MAX_BUDGETS: Final = 8  # of one pattern, or of one API key
MAX_AMOUNT: Final = 10**15
EXAMPLES: Final = "5000/day, 100/hour, or 500MB/day for bytes of results"
_PERIODS: Final = {"min": "minute", "minute": "minute", "h": "hour", "hour": "hour", "day": "day", "month": "month"}
_SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86_400}
_BYTES: Final = {"GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}
_BUDGET: Final = re.compile(r"([1-9][0-9]{0,14})(B|KB|MB|GB)?/(minute|min|hour|h|day|month)")


class CallBudget(msgspec.Struct, frozen=True):
    """A number of calls, or of bytes of their results, per minute, hour, day or month.

    >>> str(CallBudget.parse("500MB/day"))
    '500MB/day'
    """

    amount: int
    period: Period
    unit: Unit = "calls"

    @staticmethod
    def parse(text: str) -> CallBudget:
        """Parse a budget such as `5000/day`. Raises `ValueError` if the text does not have this form."""
        found = _BUDGET.fullmatch(text)
        amount = int(found[1]) * _BYTES[found[2] or "B"] if found is not None else 0
        if found is None or amount > MAX_AMOUNT:
            raise ValueError(f"invalid budget {text[:40]!r}: use {EXAMPLES}")
        return CallBudget(amount, cast(Period, _PERIODS[found[3]]), "bytes" if found[2] else "calls")

    def __str__(self) -> str:
        if self.unit == "calls":
            return f"{self.amount}/{self.period}"
        name = next(name for name, size in _BYTES.items() if self.amount % size == 0)
        return f"{self.amount // _BYTES[name]}{name}/{self.period}"

    def period_at(self, now: float) -> tuple[int, int]:
        """Return start and end of the period that contains `now`, in seconds since 1970."""
        if self.period != "month":
            seconds = _SECONDS[self.period]
            start = int(now // seconds) * seconds
            return start, start + seconds
        first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        return int(first.timestamp()), int(following.timestamp())


GroupBudgets: TypeAlias = Mapping[str, Mapping[str, tuple[CallBudget, ...]]]  # group → pattern → budgets


class BudgetSettings(msgspec.Struct, frozen=True):
    """Group budgets, and what happens while their usage is unknown."""

    budgets: GroupBudgets = msgspec.field(default_factory=dict)  # group, or * → pattern of server.tool → budgets
    budgets_fail: str = "closed"  # if their store is lost: closed rejects calls, open lets them pass for an hour


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> BudgetSettings:
    """Return the settings `budgets` and `budgetsFail` of a `toolway` block. Raises `ConfigError`."""
    fails = FieldReader({"budgetsFail": block.get("budgetsFail")}, variables)
    return BudgetSettings(
        parse_budgets(block.get("budgets")), fails.get_choice("budgetsFail", ("closed", "open"), "closed")
    )


def parse_budgets(block: Any) -> GroupBudgets:
    """Return the budgets in `toolway.budgets`, by group and tool pattern. Raises `ConfigError` if one is invalid."""
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise field_error("toolway.budgets", "an object, such as {'eng': {'*': '20000/day'}}", block)
    found = {str(group): _parse_group(str(group), value) for group, value in block.items()}
    if sum(map(len, found.values())) > MAX_RULES:
        raise ConfigError("toolway.budgets has too many budgets", detail=f"at most {MAX_RULES}", code=CONFIG_KEY_CODE)
    return found


def _parse_group(group: str, block: Any) -> Mapping[str, tuple[CallBudget, ...]]:
    path = f"toolway.budgets.{shorten_key(group)}"
    if not isinstance(block, Mapping):
        raise field_error(path, "an object, such as {'*': '20000/day', 'openai.*': '500/day'}", block)
    for pattern in block:
        if "." not in str(pattern) and "*" not in str(pattern):
            raise field_error(f"a key of {path}", "a pattern of server.tool, such as openai.*", pattern)
    return {str(key): _parse_amounts(f"{path}.{shorten_key(str(key))}", value) for key, value in block.items()}


def _parse_amounts(path: str, value: Any) -> tuple[CallBudget, ...]:
    texts = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    try:
        return check_budgets([CallBudget.parse(text if isinstance(text, str) else "") for text in texts])
    except ValueError as exc:
        raise ConfigError(f"{path}: {exc}", hint=f"use {EXAMPLES}", code=CONFIG_KEY_CODE) from None


def check_budgets(budgets: Sequence[CallBudget]) -> tuple[CallBudget, ...]:
    """Check the budgets of one group or API key, and return them as a tuple.

    Raises `ValueError` if two are for the same unit and period, or if there are too many.
    """
    if len({(each.unit, each.period) for each in budgets}) < len(budgets) or len(budgets) > MAX_BUDGETS:
        raise ValueError("two budgets for the same unit and period: keep one of them")
    return tuple(budgets)


class BudgetRules:
    """The compiled budgets from `toolway.budgets`, and how to find the ones that apply to a call. No I/O."""

    def __init__(self, budgets: GroupBudgets) -> None:
        self.settings = budgets
        self._patterns = {
            group: [
                (pattern, re.compile(translate(pattern.replace("[", "[[]"))), found) for pattern, found in each.items()
            ]
            for group, each in budgets.items()
        }

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def find(self, groups: Sequence[str], target: str) -> list[tuple[str, str, CallBudget]]:
        """Return (group, pattern, budget) for each budget that applies when a member of `groups` calls `target`."""
        return [
            (group, pattern, budget)
            for group in (*groups, EVERY_CALLER)
            for pattern, compiled, budgets in self._patterns.get(group, ())
            if compiled.match(target)
            for budget in budgets
        ]
