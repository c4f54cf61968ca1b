"""Values as YAML: on one line, and as indented blocks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.@-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})  # of any version of YAML
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def scalar(value: Any) -> str:
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    return value.isoformat() if hasattr(value, "isoformat") else json.dumps(value)


def inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(key)}: {inline(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(inline(item) for item in value)}]"
    return scalar(value)


def is_block(value: Any) -> bool:
    """Is it written over several lines?"""
    return isinstance(value, Mapping | list) and bool(value)


def member(key: str, value: Any, unit: str) -> Iterator[str]:
    """The lines of `key: value`, without the indentation that all of them have."""
    if not is_block(value):
        yield f"{scalar(key)}: {inline(value)}"
        return
    yield f"{scalar(key)}:"
    yield from (f"{unit}{line}" for line in block(value, unit))


def block(value: Any, unit: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from member(str(key), inner, unit)
    else:
        for inner in value:
            yield from item(inner, unit)


def item(value: Any, unit: str) -> Iterator[str]:
    """The lines of `- value`."""
    if not is_block(value):
        yield f"- {inline(value)}"
        return
    for number, line in enumerate(block(value, unit)):
        yield f"{'  ' if number else '- '}{line}"
