"""Names that users can confuse with another name: `rn` and `m`, `0` and `o`, separators, case. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from toolway.catalog.definition_rules import skeleton

_SEPARATORS: Final = str.maketrans("", "", "-_.")


def find_lookalikes(name: str, others: Iterable[str]) -> list[str]:
    """Return the names in `others` that look like `name` and are not equal to it.

    >>> find_lookalikes("io.github.acme/weather", ["io.github.acrne/weather", "io.github.acme/weather", "a.b/c"])
    ['io.github.acrne/weather']
    """
    wanted = _form(name)
    return sorted({other for other in others if other != name and _form(other) == wanted})


def _form(name: str) -> str:
    return skeleton(name).translate(_SEPARATORS)
