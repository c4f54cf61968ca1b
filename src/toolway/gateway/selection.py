"""Which items an endpoint shows: patterns of `server.name`, renames and descriptions of the operator's own.

A pattern is a name with `*` for any characters; one that begins with `!` takes away. The last one that fits decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property


@dataclass(frozen=True)
class Selection:
    """A named selection of what all servers have. Without patterns, nothing."""

    patterns: tuple[str, ...] = ("*",)
    renames: Mapping[str, str] = field(default_factory=dict)  # `server.tool` → the name it is shown under
    descriptions: Mapping[str, str] = field(default_factory=dict)  # `server.tool` → what is said instead

    @cached_property
    def _compiled(self) -> Sequence[tuple[bool, re.Pattern[str]]]:
        # Names hold no brackets, so only `*` and `?` mean something.
        return [
            (not pattern.startswith("!"), re.compile(translate(pattern.removeprefix("!").replace("[", "[[]"))))
            for pattern in self.patterns
        ]

    def __contains__(self, name: str) -> bool:
        chosen = False
        for adds, pattern in self._compiled:
            if adds is not chosen and pattern.fullmatch(name):
                chosen = adds
        return chosen

    @staticmethod
    def union(selections: Sequence[Selection]) -> Selection:
        """All that is in any of them."""
        return selections[0] if len(selections) == 1 else _Union(tuple(selections))

    def whole(self, server: str) -> bool:
        """Whether all of a server is shown, and with it what has no name to be chosen by: its resources."""
        return _anything(server) in self

    def touches(self, server: str) -> bool:
        """Whether anything of a server may be shown, whatever it turns out to have."""
        found = False
        for pattern, (adds, compiled) in zip(self.patterns, self._compiled, strict=True):
            if adds is not found and (_may_fit(pattern, server) if adds else compiled.fullmatch(_anything(server))):
                found = adds
        return found


@dataclass(frozen=True)
class _Union(Selection):
    patterns: tuple[str, ...] = ()
    of: tuple[Selection, ...] = ()

    def __init__(self, of: tuple[Selection, ...]) -> None:
        super().__init__(patterns=())
        object.__setattr__(self, "of", of)

    def __contains__(self, name: str) -> bool:
        return any(name in each for each in self.of)

    def touches(self, server: str) -> bool:
        return any(each.touches(server) for each in self.of)


def _anything(server: str) -> str:
    """A name that no tool has, and only a pattern for all of a server fits: it is longer than any."""
    return f"{server}." + "\N{REPLACEMENT CHARACTER}" * 200


def _may_fit(pattern: str, server: str) -> bool:
    """Whether a pattern may fit a name of this server: so it is as far as the two can be compared."""
    before = re.split(r"[*?]", pattern, maxsplit=1)[0]
    return before.startswith(f"{server}.") or (before != pattern and f"{server}.".startswith(before))


EVERYTHING = Selection()
NOTHING = Selection(())


def of_server(name: str) -> Selection:
    return Selection((f"{name}.*",))
