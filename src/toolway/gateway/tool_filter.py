"""Filters which items an endpoint shows, with patterns, and renames or redescribes them.

Patterns match the `server.name` of a tool or prompt. For resources, they match the server's name.

In a pattern, `*` stands for any characters, and a `!` at the start excludes what matches. The last matching pattern
wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from typing import Final, TypeAlias

_EVERYTHING: Final = ("*",)


@dataclass(frozen=True)
class ToolFilter:
    """Filter over the items of all servers, by patterns on `server.tool` and `server.prompt`.

    The last matching pattern decides, and a tool that no pattern matches is excluded. `resources` selects servers by
    name. Without it, a server's resources are included if none of its tools can be excluded.
    """

    patterns: tuple[str, ...] = ("*",)
    renames: Mapping[str, str] = field(default_factory=dict)  # `server.tool` → the name that clients see
    descriptions: Mapping[str, str] = field(default_factory=dict)  # `server.tool` → the description that clients see

    resources: tuple[str, ...] | None = None  # patterns of servers whose resources are included
    search: bool = False  # list the meta-tools of tool search instead of the tools
    show: tuple[str, ...] = ()  # patterns of `server.tool` that are listed next to the meta-tools

    @cached_property
    def _compiled(self) -> _Compiled:
        return _compile(self.patterns)

    @cached_property
    def _compiled_resources(self) -> _Compiled:
        return _compile(self.resources or ())

    @cached_property
    def _compiled_shown(self) -> _Compiled:
        return _compile(self.show)

    def __contains__(self, name: str) -> bool:
        return _decide(self._compiled, name)

    def lists(self, name: str) -> bool:
        """Return True if `tools/list` shows a tool that the filter includes. With tool search, it shows few of them."""
        return not self.search or _decide(self._compiled_shown, name)

    def may_list(self, server: str) -> bool:
        """Return True if `tools/list` may show any tool of a server, judged by the patterns alone."""
        return not self.search or any(_may_match(each.removeprefix("!"), server) for each in self.show)

    @staticmethod
    def union(filters: Sequence[ToolFilter]) -> ToolFilter:
        """Return a filter that includes every tool that at least one of `filters` includes."""
        return filters[0] if len(filters) == 1 else _UnionFilter(tuple(filters))

    def includes_server(self, server: str) -> bool:
        """Return True if the filter includes the resources and resource templates of a server.

        Tool patterns cannot name resources. So they include a server's resources only if they include all of its
        tools, and no later `!` pattern can match one of its tools, whichever tools it has.
        """
        if self.resources is not None:
            return _decide(self._compiled_resources, server)
        included = False
        for pattern, (includes, compiled) in zip(self.patterns, self._compiled, strict=True):
            if includes:
                included = included or compiled.fullmatch(_whole_server_name(server)) is not None
            elif _may_match(pattern.removeprefix("!"), server):
                included = False
        return included

    def may_include(self, server: str) -> bool:
        """Return True if the filter may include any item of a server, judged by the patterns alone."""
        if self.patterns == _EVERYTHING or (self.resources is not None and self.includes_server(server)):
            return True
        found = False
        for pattern, (includes, compiled) in zip(self.patterns, self._compiled, strict=True):
            if includes is not found and (
                _may_match(pattern, server) if includes else compiled.fullmatch(_whole_server_name(server))
            ):
                found = includes
        return found


@dataclass(frozen=True)
class _CombinedFilter(ToolFilter):
    """A filter made up of several filters. Subclasses decide how to combine them."""

    patterns: tuple[str, ...] = ()
    filters: tuple[ToolFilter, ...] = ()

    def __init__(self, filters: tuple[ToolFilter, ...]) -> None:
        super().__init__(patterns=())
        object.__setattr__(self, "filters", filters)


class _UnionFilter(_CombinedFilter):
    """Filter that includes what at least one of several filters includes."""

    def __contains__(self, name: str) -> bool:
        return any(name in each for each in self.filters)

    def includes_server(self, server: str) -> bool:
        return any(each.includes_server(server) for each in self.filters)

    def may_include(self, server: str) -> bool:
        return any(each.may_include(server) for each in self.filters)


class _AccessFilter(_CombinedFilter):
    """Includes a tool if any of several filters includes it and none excludes it with a `!` pattern."""

    def __contains__(self, name: str) -> bool:
        verdicts = [_last_match(each._compiled, name) for each in self.filters]
        return True in verdicts and False not in verdicts

    def includes_server(self, server: str) -> bool:
        excludes = any(
            pattern.startswith("!") and _may_match(pattern.removeprefix("!"), server)
            for each in self.filters
            for pattern in each.patterns
        )
        return not excludes and any(each.includes_server(server) for each in self.filters)

    def may_include(self, server: str) -> bool:
        excluded = any(_last_match(each._compiled, _whole_server_name(server)) is False for each in self.filters)
        return not excluded and any(each.may_include(server) for each in self.filters)


def filter_for_access(groups: Iterable[Sequence[str]]) -> ToolFilter:
    """Return the filter for a user who is in several groups, given each group's patterns.

    A tool is included if one group includes it and no group excludes it: a `!` pattern in any group wins.
    """
    return _AccessFilter(tuple(ToolFilter(tuple(patterns)) for patterns in groups))


_Compiled: TypeAlias = Sequence[tuple[bool, re.Pattern[str]]]


def _compile(patterns: Sequence[str]) -> _Compiled:
    # Names contain no brackets, so only `*` and `?` are special.
    return [
        (not pattern.startswith("!"), re.compile(translate(pattern.removeprefix("!").replace("[", "[[]"))))
        for pattern in patterns
    ]


def _decide(compiled: _Compiled, name: str) -> bool:
    """Return True if the last pattern that matches `name` includes it, False if it excludes it or none matches."""
    included = False
    for includes, pattern in compiled:
        if includes is not included and pattern.fullmatch(name):
            included = includes
    return included


def _last_match(compiled: _Compiled, name: str) -> bool | None:
    """Return True if the last pattern that matches `name` includes it, False if it excludes it.

    Return None if no pattern matches.
    """
    return next((includes for includes, pattern in reversed(compiled) if pattern.fullmatch(name)), None)


def _whole_server_name(server: str) -> str:
    """Return a made-up tool name that only patterns for all of a server's tools match.

    It is longer than any real tool name.
    """
    return f"{server}." + "\N{REPLACEMENT CHARACTER}" * 200


def _may_match(pattern: str, server: str) -> bool:
    """Return False if no tool of `server` can match `pattern`, judged by the text before its first wildcard.

    True means only that a match is possible: tool names are not compared.
    """
    prefix = re.split(r"[*?]", pattern, maxsplit=1)[0]
    return prefix.startswith(f"{server}.") or (prefix != pattern and f"{server}.".startswith(prefix))


ALL_TOOLS = ToolFilter()
SEARCH_ALL_TOOLS = ToolFilter(search=True)
NO_TOOLS = ToolFilter(())


def filter_for_server(name: str) -> ToolFilter:
    return ToolFilter((f"{name}.*",))
