"""Filter of the tools that an endpoint shows: patterns, renames, descriptions.

Patterns match `server.name`.

A pattern is a name with `*` for any characters; a pattern that starts with `!` excludes. The last match wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property


@dataclass(frozen=True)
class ToolFilter:
    """Filter over the tools of all servers, by patterns on `server.tool`.

    The last matching pattern decides; a tool without a match is excluded.
    """

    patterns: tuple[str, ...] = ("*",)
    renames: Mapping[str, str] = field(default_factory=dict)  # `server.tool` → the name that clients see
    descriptions: Mapping[str, str] = field(default_factory=dict)  # `server.tool` → the description that clients see

    @cached_property
    def _compiled(self) -> Sequence[tuple[bool, re.Pattern[str]]]:
        # Names contain no brackets, so only `*` and `?` are special.
        return [
            (not pattern.startswith("!"), re.compile(translate(pattern.removeprefix("!").replace("[", "[[]"))))
            for pattern in self.patterns
        ]

    def __contains__(self, name: str) -> bool:
        included = False
        for includes, pattern in self._compiled:
            if includes is not included and pattern.fullmatch(name):
                included = includes
        return included

    @staticmethod
    def union(filters: Sequence[ToolFilter]) -> ToolFilter:
        """Return a filter that includes every tool that at least one of `filters` includes."""
        return filters[0] if len(filters) == 1 else _UnionFilter(tuple(filters))

    def includes_server(self, server: str) -> bool:
        """Return True if the filter includes all tools of a server.

        Only then are its resources included too, because patterns cannot name resources.
        """
        return _whole_server_name(server) in self

    def may_include(self, server: str) -> bool:
        """Return True if the filter may include some tool of a server, judged without its tool list."""
        found = False
        for pattern, (includes, compiled) in zip(self.patterns, self._compiled, strict=True):
            if includes is not found and (
                _may_match(pattern, server) if includes else compiled.fullmatch(_whole_server_name(server))
            ):
                found = includes
        return found


@dataclass(frozen=True)
class _UnionFilter(ToolFilter):
    patterns: tuple[str, ...] = ()
    filters: tuple[ToolFilter, ...] = ()

    def __init__(self, filters: tuple[ToolFilter, ...]) -> None:
        super().__init__(patterns=())
        object.__setattr__(self, "filters", filters)

    def __contains__(self, name: str) -> bool:
        return any(name in each for each in self.filters)

    def may_include(self, server: str) -> bool:
        return any(each.may_include(server) for each in self.filters)


def _whole_server_name(server: str) -> str:
    """Return an artificial tool name that only patterns for all tools of the server match.

    It is longer than any tool name.
    """
    return f"{server}." + "\N{REPLACEMENT CHARACTER}" * 200


def _may_match(pattern: str, server: str) -> bool:
    """Return False if no tool of `server` can match `pattern`, judged by the text before its first wildcard.

    True means only that a match is possible: tool names are not compared.
    """
    prefix = re.split(r"[*?]", pattern, maxsplit=1)[0]
    return prefix.startswith(f"{server}.") or (prefix != pattern and f"{server}.".startswith(prefix))


ALL_TOOLS = ToolFilter()
NO_TOOLS = ToolFilter(())


def filter_for_server(name: str) -> ToolFilter:
    return ToolFilter((f"{name}.*",))
