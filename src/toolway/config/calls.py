"""The keys of an entry that are about calls: how often they are tried, and what is known about each tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from toolway.config.fields import KEY, Fields, shown, wrong
from toolway.config.spec import Retry, ToolRule
from toolway.errors import ConfigError
from toolway.model import Effect

KEYS: Final = (
    *("maxRetries", "retryDelayMs", "backoffMultiplier", "repeatable", "trusted", "tools"),
    *("idempotencyMetaKey", "unprocessed"),
)
MOST_ATTEMPTS: Final = 5
_EFFECTS: Final = tuple(effect.value for effect in Effect)


def read(fields: Fields) -> dict[str, Any]:
    """The values of a `Server` that these keys set."""
    return {
        "retry": _retry(fields),
        "repeatable": fields.flag("repeatable", False),
        "trusted": fields.flag("trusted", False),
        "tools": _tools(fields),
        "key_meta": fields.text("idempotencyMetaKey"),
        "unprocessed": _codes(fields),
    }


def _retry(fields: Fields) -> Retry:
    default = Retry()
    attempts = fields.whole("maxRetries", default.attempts - 1) + 1
    if attempts > MOST_ATTEMPTS:
        fields.warn(f"maxRetries is {attempts - 1}", evidence=f"a call is tried at most {MOST_ATTEMPTS} times")
        attempts = MOST_ATTEMPTS
    multiplier = fields.rest.pop("backoffMultiplier", default.multiplier)
    if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 1 <= multiplier <= 100:
        raise wrong("backoffMultiplier", "a number from 1 to 100", multiplier)
    delay = fields.seconds("retryDelayMs", default.delay, zero=True)
    return replace(default, attempts=attempts, delay=delay, multiplier=float(multiplier))


def _tools(fields: Fields) -> dict[str, ToolRule]:
    """`tools: {"NAME": {"effect": …}}`. What is no rule (a list of names, `allow`, `deny`) is left for others."""
    given = fields.rest.get("tools")
    if not isinstance(given, Mapping):
        return {}
    rules = {str(name): value for name, value in given.items() if isinstance(value, Mapping)}
    left = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    fields.rest.pop("tools")
    if left:
        fields.rest["tools"] = left
    return {name: _rule(name, value, fields) for name, value in rules.items()}


def _rule(name: str, value: Mapping[str, Any], outer: Fields) -> ToolRule:
    inner = Fields(value, outer.variables)
    effect = inner.choice("effect", _EFFECTS, "")
    repeatable = inner.flag("repeatable", False) if "repeatable" in inner.rest else None
    timeout = inner.seconds("timeout", 0.0)
    rule = ToolRule(
        effect=Effect(effect) if effect else None,
        repeatable=repeatable,
        cache=inner.seconds("cache", 0.0, zero=True),
        timeout=timeout or None,
    )
    if rule.cache and rule.effect is not Effect.READ:
        raise ConfigError(
            f"tools.{name}.cache needs an effect of read",
            evidence="only the answer of a tool that changes nothing may be given again",
            fix=f'add "effect": "read" to tools.{name}',
            code=KEY,
        )
    outer.problems.extend(inner.problems)
    for key in inner.rest:
        outer.warn(f"tools.{shown(name)}.{key} is not known", evidence="it has no effect")
    return rule


def _codes(fields: Fields) -> tuple[int, ...]:
    given = fields.rest.pop("unprocessed", [])
    if not isinstance(given, list) or not all(isinstance(c, int) and not isinstance(c, bool) for c in given):
        raise wrong("unprocessed", "a list of HTTP statuses or JSON-RPC codes", given)
    return tuple(given)
