"""A file of configuration → what the record keeps of it, and what the record keeps → `Loaded`, as from a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from toolway.cluster.record.entries import Difference
from toolway.cluster.record.registry import Registry
from toolway.config import jsonc
from toolway.config.formats import OUR_BLOCK, ROOT_KEYS, Loaded, content, entries_of, normalised, parse, text_of
from toolway.model import Json


def document_of(file: str) -> tuple[Json, str]:
    """What a file says, in the one form that the record knows, and the digest of what it means: spaces and comments
    make no other file. Variables stay as they are written; each node has its own. Raises `ConfigError`."""
    found = jsonc.parse(text_of(content(file), file), file)
    _, entries = entries_of(found, file)
    block = found.value.get(OUR_BLOCK)
    document = {ROOT_KEYS[0]: entries} | ({OUR_BLOCK: block} if block else {})
    return document, hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()


def loaded_of(document: Json, where: str, variables: Mapping[str, str] | None = None) -> Loaded:
    """The servers of a document, and what is wrong with others. `where` is said to people. Raises `ConfigError`."""
    return parse(json.dumps(document), where, os.environ if variables is None else variables)


class Configuration:
    """What the record says that a tenant has configured. Read whole once, and then what changed: a node that reads
    everything whenever one server changes would do so for every change of every other."""

    def __init__(self, registry: Registry, tenant: str) -> None:
        self._registry = registry
        self._tenant = tenant
        self._revision = 0
        self._settings: Json = {}
        self._loaded: Loaded | None = None

    async def load(self, where: str) -> Loaded | None:
        """All of it; None where nothing was ever configured. Raises `ConfigError`, and what the record raises."""
        found = await self._registry.document(self._tenant)
        if found is None:
            return None
        loaded = await asyncio.to_thread(loaded_of, found[1], where)
        self._revision, self._settings, self._loaded = found[0], found[1].get(OUR_BLOCK) or {}, loaded
        return loaded

    async def reload(self, where: str) -> Loaded | None:
        """The same, as it is now."""
        before = self._loaded
        if before is None or before.file != where:
            return await self.load(where)
        revision, change = await self._registry.since(self._tenant, self._revision)
        if revision < self._revision or (change.settings or {}) != self._settings or _clashes(change):
            return await self.load(where)  # it was put back from a copy, or all entries must be looked at together
        loaded = await asyncio.to_thread(_changed, before, change, self._settings, where)
        self._revision, self._loaded = revision, loaded
        return loaded


def _clashes(change: Difference) -> bool:
    """Whether the name of an entry is taken by another, or may have been."""
    return any(normalised(entry.written) != entry.written for entry in change.entries.values()) or any(
        normalised(name) != name for name in change.removed
    )


def _changed(before: Loaded, change: Difference, settings: Json, where: str) -> Loaded:
    entries = {entry.written: entry.value for entry in change.entries.values()}
    part = loaded_of({ROOT_KEYS[0]: entries} | ({OUR_BLOCK: settings} if settings else {}), where)
    other = change.entries.keys() | change.removed
    servers = {name: server for name, server in before.servers.items() if name not in other} | part.servers
    problems = [problem for problem in before.problems if problem.server not in other]
    problems += [problem for problem in part.problems if problem.server]  # those of the block are there already
    return replace(part, servers=dict(sorted(servers.items())), problems=tuple(problems))
