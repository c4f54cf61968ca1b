"""What is configured, as the record has it: entries by the names that servers get, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolway.cluster.record.wishes import Wish
from toolway.config.cluster import read as read_cluster
from toolway.config.fields import Fields
from toolway.config.formats import OUR_BLOCK, ROOT_KEYS, normalised
from toolway.errors import ConfigError
from toolway.model import Json


@dataclass(frozen=True, slots=True)
class Entry:
    written: str  # its name, as it was written
    value: Any


@dataclass(frozen=True, slots=True)
class Configured:
    entries: Mapping[str, Entry]  # by the name that the server gets
    settings: Json  # the `toolway` block

    def document(self) -> Json:
        """As a file has it."""
        servers = {entry.written: entry.value for entry in self.entries.values()}
        return {ROOT_KEYS[0]: servers} | ({OUR_BLOCK: self.settings} if self.settings else {})


@dataclass(frozen=True, slots=True)
class Difference:
    entries: Mapping[str, Entry]  # those that are new or other
    removed: frozenset[str]
    settings: Json | None  # None = as before

    def __len__(self) -> int:
        """How much it is."""
        return len(self.entries) + len(self.removed) + (self.settings is not None)


def configured(document: Json) -> Configured:
    """A name that is right as it stands goes before one that has to be changed. An entry whose name is taken keeps its
    own: nobody can call it, but whoever reads the configuration is told."""
    servers: Json = document.get(ROOT_KEYS[0]) or {}
    names = {written: written for written in servers if normalised(written) == written}
    taken = set(names)
    for written in servers:
        if written not in names:
            name = normalised(written)
            names[written] = written if name in taken else name
            taken.add(names[written])
    entries = {names[written]: Entry(written, value) for written, value in servers.items()}
    return Configured(entries, document.get(OUR_BLOCK) or {})


def difference(before: Configured, after: Configured) -> Difference:
    entries = {name: entry for name, entry in after.entries.items() if before.entries.get(name) != entry}
    removed = frozenset(before.entries.keys() - after.entries.keys())
    return Difference(entries, removed, after.settings if after.settings != before.settings else None)


def wish_of(name: str, entry: Any, variables: Mapping[str, str]) -> Wish:
    """How many owners the server of an entry wants. One that cannot be used wants none."""
    if normalised(name) != name:
        return Wish(instances=0)
    if isinstance(entry, str):
        return Wish(cost=0 if "://" in entry.split(maxsplit=1)[0] else 1)
    if not isinstance(entry, Mapping):
        return Wish(instances=0)
    fields = Fields(entry, variables)
    try:
        wanted = read_cluster(fields)
        enabled = fields.flag("enabled", True) and not fields.flag("disabled", False)
    except ConfigError:
        return Wish(instances=0)
    return Wish(wanted["instances"] if enabled else 0, wanted["node_labels"], 1 if entry.get("command") else 0)
