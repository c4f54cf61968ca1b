"""Names for tools and arguments: short, stable, and of the characters that every model provider accepts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

MAX_TOOL: Final = 48  # with a server's name before it, most stay within the 64 of `protocol/names.py`
MAX_ARGUMENT: Final = 64
_NOT_FOR_TOOLS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NOT_FOR_ARGUMENTS: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def of_operation(operation_id: str, method: str, path: str) -> str:
    """A name without regard to other operations: the operationId, else method and path."""
    name = _NOT_FOR_TOOLS.sub("_", operation_id).strip("_")
    if not name:
        words = _NOT_FOR_TOOLS.sub("_", path).strip("_")
        name = f"{method.lower()}_{words}" if words else method.lower()
    return name


def settle(names: Iterable[tuple[str, str, str]]) -> list[str]:
    """Names, each with method and path, that are told apart. The mark of an operation depends on nothing but itself,
    so a name stays when others come and go, unless they want the same."""
    wanted = list(names)
    often = Counter(name for name, _, _ in wanted)
    taken: set[str] = set()
    settled = []
    for name, method, path in wanted:
        whole = name if often[name] == 1 and len(name) <= MAX_TOOL else _marked(name, f"{method} {path}")
        while whole in taken:  # a name that looks like a marked one
            whole = _marked(name, f"{whole} {method} {path}")
        taken.add(whole)
        settled.append(whole)
    return settled


def _marked(name: str, what: str) -> str:
    mark = hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{name[: MAX_TOOL - 7].rstrip('_-')}_{mark}"


class Arguments:
    """The argument names of one operation. Who comes first has the plain name."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str, place: str) -> str:
        plain = _NOT_FOR_ARGUMENTS.sub("_", name).strip("_")[:MAX_ARGUMENT] or place
        tries = [plain, f"{plain[: MAX_ARGUMENT - len(place) - 1]}_{place}"]
        while tries[-1] in self._taken:
            tries.append(f"{tries[1][: MAX_ARGUMENT - 4]}_{len(tries)}")
        chosen = next(each for each in tries if each not in self._taken)
        self._taken.add(chosen)
        return chosen
