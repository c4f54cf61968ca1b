"""Values as TOML: inline, and as tables of their own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolway.config.editing.change import KeyPath
from toolway.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def inline(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key(name)} = {inline(item)}' for name, item in value.items())} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(inline(item) for item in value)}]"
    if value is None:
        raise ConfigError("TOML has no null", fix="leave the key out", code="E-EDIT-SHAPE")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(name: Any) -> str:
    return str(name) if _BARE.fullmatch(str(name)) else quoted(str(name))


def dotted(path: KeyPath) -> str:
    """The name of a table. Which of an array's tables is meant, its place says."""
    return ".".join(key(part) for part in path if isinstance(part, str))


def tables(path: KeyPath, value: Any) -> Iterator[str]:
    """The lines of a table and of those below it; a list of tables as `[[…]]`."""
    if isinstance(value, list):
        for item in value:
            yield from _table(path, item, f"[[{dotted(path)}]]", inline_below=True)
    else:
        yield from _table(path, value, f"[{dotted(path)}]", inline_below=False)


def _table(path: KeyPath, value: Mapping[str, Any], header: str, *, inline_below: bool) -> Iterator[str]:
    below = {} if inline_below else {name: item for name, item in value.items() if isinstance(item, Mapping)}
    if len(below) < len(value) or not value:
        yield ""
        yield header
    yield from (f"{key(name)} = {inline(item)}" for name, item in value.items() if name not in below)
    for name, item in below.items():
        yield from tables((*path, name), item)
