"""Allow and deny lists for the tools of one server, compiled once.

The catalog hides the tools that the lists deny (catalog.py), so all parts of Toolway enforce them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import translate
from typing import Final

from toolway.config.schema import Server
from toolway.errors import AccessDenied
from toolway.types import ToolRef

TOOL_DENIED_CODE: Final = "E-TOOL-DENIED"
TOOL_ON_HOLD_CODE: Final = "E-TOOL-ON-HOLD"
MAX_TOOL_NAME_CHARS: Final = 128  # no server has a tool with a longer name
_RUN_TIME_LIST: Final = "set_denied_tools()"
PINS_SETTING: Final = "pins"
#: In place of a setting: the tool can be used as soon as its pin is in the file, or in the database of the cluster.
PIN_NOT_STORED: Final = "pin not stored"
_HINTS: Final = {
    "tools.deny": "to allow it, remove it from the server's `tools.deny`",
    "tools.allow": "to allow it, add it to the server's `tools.allow`",
    _RUN_TIME_LIST: "this program denies it: see `hub.set_denied_tools()`",
}


class ToolAccess:
    """Decides by name which of a server's tools may be used.

    The deny list wins over the allow list. Patterns may contain `*` and `?`. A name may begin with the server, as in
    `server.tool` or `server__tool`.
    """

    __slots__ = ("_allowed", "_denied", "_denied_by")

    def __init__(
        self, server: str, allowed: Iterable[str] | None, denied: Iterable[str], *, denied_by: str = "tools.deny"
    ) -> None:
        self._allowed = _NameMatcher(server, allowed) if allowed is not None else None
        self._denied = _NameMatcher(server, denied)
        self._denied_by = denied_by

    @classmethod
    def from_server(cls, name: str, server: Server, run_time_denied: Iterable[str] | None = None) -> ToolAccess | None:
        """Return the compiled allow and deny lists of a server, or None if it has none.

        `run_time_denied` replaces the configured deny list.
        """
        if run_time_denied is not None:
            return cls(name, server.allowed_tools, run_time_denied, denied_by=_RUN_TIME_LIST)
        if server.allowed_tools is None and not server.denied_tools:
            return None
        return cls(name, server.allowed_tools, server.denied_tools)

    def denied_by(self, tool: str) -> str | None:
        """Return the setting that denies a tool, such as `tools.deny`, or None if the tool is allowed."""
        if tool in self._denied:
            return self._denied_by
        return "tools.allow" if self._allowed is not None and tool not in self._allowed else None


def denied_error(ref: ToolRef, setting: str) -> AccessDenied:
    """Return the error for a call to a tool that a list denies, or whose definition is not approved.

    Nothing was sent.
    """
    if setting == PIN_NOT_STORED:
        return AccessDenied(
            f"{ref} is on hold",
            server=ref.server,
            tool=ref.tool,
            detail="we are still saving its first pin",
            hint="call it again in a moment; if it stays on hold, the log says why the pins cannot be stored",
            code=TOOL_ON_HOLD_CODE,
        )
    if setting == PINS_SETTING:
        return AccessDenied(
            f"{ref} is on hold",
            server=ref.server,
            tool=ref.tool,
            detail="its definition changed since you last reviewed it",
            hint=f"see the difference: toolway trust tools diff {ref}; then: toolway trust tools accept {ref}",
            code=TOOL_ON_HOLD_CODE,
        )
    detail = f"it is not in {setting}" if setting == "tools.allow" else f"{setting} contains it"
    return AccessDenied(
        f"{ref} is denied",
        server=ref.server,
        tool=ref.tool,
        detail=detail,
        hint=_HINTS[setting],
        code=TOOL_DENIED_CODE,
    )


def unmatched_entries(server: str, entries: Iterable[str], tools: Collection[str]) -> list[str]:
    """Return the names and patterns of an allow or deny list that match none of the server's tools."""
    matchers = {entry: _NameMatcher(server, (entry,)) for entry in entries}
    return [entry for entry, matcher in matchers.items() if not any(tool in matcher for tool in tools)]


class _NameMatcher:
    """A set of tool names and patterns. `name in matcher` is True if `name` is one of them or matches a pattern."""

    __slots__ = ("_names", "_pattern")

    def __init__(self, server: str, entries: Iterable[str]) -> None:
        all_entries = {each for entry in entries for each in (entry, *_without_server(server, entry))}
        patterns = sorted(entry for entry in all_entries if "*" in entry or "?" in entry)
        self._names = frozenset(all_entries.difference(patterns))
        # Names of tools contain no brackets, so only `*` and `?` are special.
        regex = "|".join(translate(pattern.replace("[", "[[]")) for pattern in patterns)
        self._pattern = re.compile(regex) if patterns else None

    def __contains__(self, tool: str) -> bool:
        if tool in self._names:
            return True
        if self._pattern is None or len(tool) > MAX_TOOL_NAME_CHARS:
            return False
        return self._pattern.match(tool) is not None


def _without_server(server: str, entry: str) -> list[str]:
    prefixes = (f"{server}.", f"{server}__")
    return [entry.removeprefix(prefix) for prefix in prefixes if entry.startswith(prefix) and entry != prefix]
