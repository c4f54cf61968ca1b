"""Rules that exempt parts of definitions from pins, for definitions that change for good reasons.

A rule names a part by its path: `description`, `inputSchema.properties.*.enum`. A path that ends with `date` or
`number` below a string exempts only the dates and times, or the numbers, in that string: `description.date`. The
content rules still read exempt parts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from toolway.types import Json

_MONTHS: Final = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_MASKED: Final = {
    "date": re.compile(
        r"(?i)\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?\b"
        rf"|\b\d{{1,2}}\.? (?:{_MONTHS})[a-z]*\.?,? \d{{4}}\b"
        rf"|\b(?:{_MONTHS})[a-z]*\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}\b"
        r"|\b\d{1,2}[./]\d{1,2}[./]\d{4}\b|\b\d{1,2}:\d{2}(?::\d{2})?\b"
    ),
    "number": re.compile(r"\d+(?:\.\d+)?"),
}


def ignored_paths(rules: Mapping[str, Sequence[str]], server: str, name: str) -> tuple[str, ...]:
    """Return the paths of an item's parts that are exempt from pins.

    Keys of `rules` are patterns of `server.name`.
    """
    return tuple(path for pattern, paths in rules.items() if fnmatchcase(f"{server}.{name}", pattern) for path in paths)


def mask_ignored(definition: Json, paths: Sequence[str]) -> Json:
    """Return a definition without the parts at these paths, which are exempt from the comparison with its pin."""
    masked = copy.deepcopy(definition)
    for path in paths:
        _mask(masked, path.split("."))
    return masked


def _mask(value: Any, steps: list[str]) -> None:
    step, *below = steps
    keys = _matching_keys(value, step)
    for key in keys:
        if not below:
            value[key] = None
        elif isinstance(value[key], str) and len(below) == 1 and below[0] in _MASKED:
            value[key] = _MASKED[below[0]].sub("…", value[key])
        else:
            _mask(value[key], below)


def _matching_keys(value: Any, step: str) -> list[Any]:
    if isinstance(value, dict):
        return [key for key in value if fnmatchcase(key, step)]
    if isinstance(value, list):
        return [number for number in range(len(value)) if fnmatchcase(str(number), step)]
    return []
