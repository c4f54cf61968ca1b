"""Parser for the objects `retry`, `restart` and `health` of a server entry.

Each field of the dataclass is a key in camelCase: `max_attempts` is `maxAttempts`. So a new field of a policy can be
set in files at once. A `float` is a duration, except the fields in `_PLAIN_NUMBERS`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_type_hints

from toolway.config.class_fields import field_names, replace_fields
from toolway.config.field_reader import CONFIG_KEY_CODE, FieldReader, field_error, shorten_key
from toolway.config.schema import MAX_ATTEMPTS
from toolway.errors import ConfigError

MAX_POLICY_SECONDS: Final = 7 * 86_400.0  # longest duration in a policy: a timer takes no more than that
P = TypeVar("P")

_PLAIN_NUMBERS: Final = {"backoff_multiplier": (1, 100)}  # name → smallest and largest value
_AT_LEAST_ONE: Final = frozenset({"max_attempts", "failure_threshold"})
_LARGEST: Final = {"max_attempts": MAX_ATTEMPTS}
_MAY_BE_ZERO: Final = frozenset({"initial_backoff", "rate_limited_backoff", "max_backoff", "interval"})


def camel_case(name: str) -> str:
    """Return the key in config files for a field of a dataclass: `max_attempts` → `maxAttempts`."""
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def parse_policy(fields: FieldReader, key: str, flat: P, flat_keys: Mapping[str, str] | None = None) -> P:
    """Return the policy, such as a `RetryPolicy`, in the object under `key` of a server entry.

    A field that the object does not set has its value in `flat`, the policy read from keys of the entry itself.
    `flat_keys` maps these keys to their fields. Raises `ConfigError` if a value is invalid, or if a field is set in
    both places. An unknown key causes a warning and stays in `fields.remaining`.
    """
    given = fields.remaining.pop(key, None)
    if given is None:
        return flat
    if not isinstance(given, Mapping):
        raise field_error(key, "an object", given)
    inner = FieldReader({f"{key}.{name}": value for name, value in given.items()}, fields.variables)
    found: dict[str, Any] = {}
    for name, kind in _field_types(type(flat)).items():
        path = f"{key}.{camel_case(name)}"
        if inner.remaining.get(path) is not None:
            found[name] = _parse_field(inner, path, name, kind)
    for flat_key, name in (flat_keys or {}).items():
        if name in found:
            raise ConfigError(
                f"{key}.{camel_case(name)} is set twice",
                detail=f"{flat_key} sets it too",
                hint="keep one",
                code=CONFIG_KEY_CODE,
            )
    fields.issues += inner.issues
    _warn_unknown_keys(fields, inner, key, type(flat))
    return replace_fields(flat, found)


def _field_types(policy: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(policy)
    return {name: hints[name] for name in field_names(policy)}


def _parse_field(inner: FieldReader, path: str, name: str, kind: Any) -> Any:
    if name in _PLAIN_NUMBERS:
        return parse_number(path, inner.remaining.pop(path), *_PLAIN_NUMBERS[name])
    if kind is bool:
        return inner.get_bool(path, False)
    if kind is int:
        return inner.get_int(path, 0, minimum=int(name in _AT_LEAST_ONE), maximum=_LARGEST.get(name))
    if kind in (float, float | None):
        seconds = inner.get_duration(path, 0.0, allow_zero=name in _MAY_BE_ZERO)
        if seconds > MAX_POLICY_SECONDS:
            raise ConfigError(f"{path} must be at most 7 days", detail=f"found {seconds:.0f} s", code=CONFIG_KEY_CODE)
        return seconds
    if kind in (str, str | None):
        return inner.get_text(path)
    raise TypeError(f"{path} has the type {kind}, which has no form in files")


def parse_number(key: str, value: Any, minimum: float, maximum: float) -> float:
    """Return a number of a config file as a float. Raises `ConfigError` if it is out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise field_error(key, f"a number from {minimum} to {maximum}", value)
    return float(value)


def _warn_unknown_keys(fields: FieldReader, inner: FieldReader, key: str, policy: type[Any]) -> None:
    known = [camel_case(name) for name in _field_types(policy)]
    left = {path.removeprefix(f"{key}."): value for path, value in inner.remaining.items()}
    for name in left:
        close = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.7)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        fields.warn(f"unknown key {key}.{shorten_key(name)}", detail="it is kept and has no effect", hint=hint)
    if left:
        fields.remaining[key] = left
