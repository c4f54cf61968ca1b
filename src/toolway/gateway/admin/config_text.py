"""Finds which values were changed in the text of a config file, and which of them may be. No I/O.

The text that a user edits shows `***` in place of each secret, so Toolway stores the changed values, not the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from toolway.config.editing.patch import REMOVED
from toolway.config.loader import TOOLWAY_BLOCK
from toolway.errors import ConfigError
from toolway.secrets.replacer import MASK

TOOLSETS: Final = (TOOLWAY_BLOCK, "toolsets")
_OPENED: Final = ((TOOLWAY_BLOCK,), TOOLSETS)  # objects that may be new as a whole: their values are compared


class ValueChange(NamedTuple):
    """A new value at a key path of a config file; `REMOVED` if the key was removed."""

    path: tuple[str, ...]
    value: Any


def find_changes(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[ValueChange]:
    """Yield each value that differs between two parsed config files, with its key path.

    Lists are compared as a whole.
    """
    if path in _OPENED:
        old, new = ({} if each is REMOVED else each for each in (old, new))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old is REMOVED or new is REMOVED or old != new:
            yield ValueChange(path, new)
        return
    for key in dict.fromkeys((*old, *new)):
        if old.get(key, REMOVED) is not REMOVED or new.get(key, REMOVED) is not REMOVED:
            yield from find_changes(old.get(key, REMOVED), new.get(key, REMOVED), (*path, key))


class SortedChanges(NamedTuple):
    """Changes to a config file, sorted by kind: added and removed servers, server settings, and toolsets."""

    added: dict[str, Any]  # new entries of servers, by name
    removed: list[str]  # names of servers
    settings: dict[str, dict[str, Any]]  # settings by server; None removes one
    toolsets: list[ValueChange]


def sort_changes(changes: Iterator[ValueChange], root: tuple[str, ...], old_names: Mapping[str, Any]) -> SortedChanges:
    """Sort the changes to a config file by kind. `root` is the key path of its server entries.

    Raises `ConfigError` if a new value contains a masked secret (`***`), or if anything other than a whole entry, a
    setting in an entry, or a toolset was changed.
    """
    found = SortedChanges({}, [], {}, [])
    for change in changes:
        path, value = change
        inner = path[len(root) :] if path[: len(root)] == root and path[:1] != (TOOLWAY_BLOCK,) else ()
        if MASK in str(value):
            raise _rejected(path, "*** is a masked secret, which cannot be copied here")
        if path[:2] == TOOLSETS and len(path) > 2:
            found.toolsets.append(change)
        elif len(inner) == 1 and value is REMOVED:
            found.removed.append(inner[0])
        elif len(inner) == 1 and inner[0] not in old_names and isinstance(value, dict):
            found.added[inner[0]] = value
        elif len(inner) == 2:
            found.settings.setdefault(inner[0], {})[inner[1]] = None if value is REMOVED else value
        else:
            raise _rejected(path, "only entries of servers, some of their settings, and toolsets can be changed here")
    return found


def _rejected(path: tuple[str, ...], reason: str) -> ConfigError:
    shown = ".".join(path)[:80] or "the file"
    return ConfigError(f"{shown} cannot be changed here", detail=reason, hint="toolway edit", code="E-CONFIG-KEY")
