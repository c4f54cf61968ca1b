"""Where each value comes from: scope, file and line. Values are shown as the file writes them, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolway.config import jsonc
from toolway.config.find import Scope
from toolway.config.mask import masked

LEVELS: Final = 6  # of keys whose line is known; what is deeper has the line of the last of them


@dataclass(frozen=True, slots=True)
class Origin:
    scope: Scope
    file: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Value:
    """One value that is in force. `path` begins with the server's name, or with `toolway`."""

    path: tuple[str, ...]
    shown: str  # as JSON, masked
    origin: Origin


def values(
    entry: Any, path: tuple[str, ...], at: jsonc.Path, lines: Mapping[jsonc.Path, int], file: Origin
) -> list[Value]:
    """The values below `entry`, which is called `path` and stands at `at` in its file."""
    return [
        Value((*path, *keys), _shown(leaf, (*path, *keys)), place(file, (*at, *keys), lines))
        for keys, leaf in _leaves(entry)
    ]


def place(file: Origin, at: jsonc.Path, lines: Mapping[jsonc.Path, int]) -> Origin:
    """Where the key at `at` stands, or the nearest above it whose line is known."""
    known = next((lines[at[:end]] for end in range(len(at), 0, -1) if at[:end] in lines), None)
    return Origin(file.scope, file.file, known)


def _shown(leaf: Any, path: tuple[str, ...]) -> str:
    return json.dumps(masked(leaf, *path), ensure_ascii=False)


def _leaves(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value and len(above) < LEVELS:
        for key, inner in value.items():
            yield from _leaves(inner, (*above, str(key)))
    else:
        yield above, value
