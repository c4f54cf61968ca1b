"""A tenant's shared configuration: importing a file, and loading it from the database."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from toolway.cluster.db.config_store import ConfigDiff, ConfigStore
from toolway.config.approval.held_entries import MODEL_URLS_NAME, HeldEntry, held_agents
from toolway.config.editing import jsonc
from toolway.config.loader import (
    SERVER_MAP_KEYS,
    TOOLWAY_BLOCK,
    LoadedConfig,
    decode_config,
    find_server_map,
    find_toolway_block,
    normalize_name,
    parse_config,
    read_config_bytes,
)
from toolway.types import Json


def read_document(
    file: str, held: Collection[HeldEntry] = (), contents: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Json, str]:
    """Read a configuration file. Return its normalized document and a digest of the content.

    The entries `held`, which need review, are left out. White space and comments do not change the digest.
    Variables stay unexpanded, since each node has its own. `contents` has the contents of files that keys of the
    `toolway` block name: they replace the names, because other nodes do not have the files.
    Raises `ConfigError` if the file is not readable or invalid.
    """
    found = jsonc.parse_jsonc(decode_config(read_config_bytes(file), file), file)
    _, entries = find_server_map(found, file)
    block = find_toolway_block(found)
    if isinstance(block, dict):
        block = {**block, **{key: value for key, value in contents.items() if key in block}}
        block = _without_held_settings(block, held)
    waiting = {each.name for each in held if each.kind == "server"}
    entries = {name: entry for name, entry in entries.items() if name not in waiting}
    document = {SERVER_MAP_KEYS[0]: entries} | ({TOOLWAY_BLOCK: block} if block else {})
    return document, hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()


def _without_held_settings(block: Json, held: Iterable[HeldEntry]) -> Json:
    """Return a `toolway` block without agents and model addresses that need review.

    Agents that call one of these agents are left out too.
    """
    names = {each.name for each in held}
    found = {key: value for key, value in block.items() if key != "modelUrls" or MODEL_URLS_NAME not in names}
    waiting = set(held_agents(held))
    agents = found.get("agents")
    while waiting and isinstance(agents, dict):
        found["agents"] = agents = {name: each for name, each in agents.items() if name not in waiting}
        waiting = {name for name, each in agents.items() if _called_agents(each) - agents.keys()}
    return found


def _called_agents(agent: Any) -> set[str]:
    called = agent.get("agents") if isinstance(agent, dict) else None
    return {str(each) for each in called} if isinstance(called, list) else set()


def parse_document(document: Json, source: str, variables: Mapping[str, str] | None = None) -> LoadedConfig:
    """Parse a configuration document from the database into servers, settings and problems.

    `source` is its name in error messages. Raises `ConfigError` if the document is invalid.
    """
    return parse_config(json.dumps(document), source, os.environ if variables is None else variables)


class ConfigSource:
    """Loads a tenant's configuration from the database.

    It is loaded completely once; after that only changed entries are read, or each changed server would make every
    node read all of them.
    """

    def __init__(self, store: ConfigStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._revision = 0
        self._marks: Mapping[str, int] = {}
        self._settings: Json = {}
        self._loaded: LoadedConfig | None = None

    async def load(self, source: str) -> LoadedConfig | None:
        """Load the complete configuration of the tenant from the database.

        None if it was never configured. Raises `ConfigError` if the configuration is invalid, and database errors.
        """
        found = await self._store.load(self._tenant)
        if found is None:
            return None
        revision, stored = found
        loaded = await asyncio.to_thread(parse_document, stored.to_document(), source)
        self._revision, self._marks, self._settings, self._loaded = revision, stored.marks, stored.settings, loaded
        return loaded

    async def reload(self, source: str) -> LoadedConfig | None:
        """Return the current configuration of the tenant; reads only changed entries if possible."""
        previous = self._loaded
        if previous is None or previous.file != source:
            return await self.load(source)
        changes = await self._store.load_changes(self._tenant, self._revision, self._marks)
        if changes is None or (changes.diff.settings or {}) != self._settings or _may_clash(changes.diff):
            return await self.load(source)  # or entries must be checked against each other
        loaded = await asyncio.to_thread(_apply_difference, previous, changes.diff, self._settings, source)
        self._revision, self._marks, self._loaded = changes.revision, changes.marks, loaded
        return loaded


def _may_clash(change: ConfigDiff) -> bool:
    """Return True if a changed entry may have the same normalized name as another entry."""
    return any(normalize_name(entry.written_name) != entry.written_name for entry in change.entries.values()) or any(
        normalize_name(name) != name for name in change.removed
    )


def _apply_difference(previous: LoadedConfig, change: ConfigDiff, settings: Json, source: str) -> LoadedConfig:
    entries = {entry.written_name: entry.value for entry in change.entries.values()}
    changed = parse_document({SERVER_MAP_KEYS[0]: entries} | ({TOOLWAY_BLOCK: settings} if settings else {}), source)
    replaced = change.entries.keys() | change.removed
    servers = {name: server for name, server in previous.servers.items() if name not in replaced} | changed.servers
    problems = [problem for problem in previous.issues if problem.server not in replaced]
    problems += [problem for problem in changed.issues if problem.server]  # those of our block are in `changed` already
    return replace(changed, servers=dict(sorted(servers.items())), issues=tuple(problems))
