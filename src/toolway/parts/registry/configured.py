"""What the configuration says about registries: which ones to ask, and which entries came from one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from toolway.config.loader import load_file
from toolway.config.scopes import ApprovalGate, load_scopes
from toolway.network import PUBLIC_ONLY, NetworkPolicy
from toolway.parts.registry.publisher import is_name, is_version
from toolway.parts.registry.settings import registries_of

if TYPE_CHECKING:
    from toolway.cli.options import CommandContext
    from toolway.config.schema import Server

ENTRY_KEY = "registry"


class EntryOrigin(NamedTuple):
    """The key `registry` of an entry: the record that it was added from."""

    name: str
    version: str
    url: str  # of the registry
    digest: str  # SHA-256 of its server.json


class ConfiguredRegistries(NamedTuple):
    """Registries to ask, in order, and the entries that came from one, by server."""

    urls: tuple[str, ...]
    network_policy: NetworkPolicy
    entries: Mapping[str, EntryOrigin]


def read_configuration(context: CommandContext) -> ConfiguredRegistries:
    """Return what the config files of a command say. Raises `ConfigError` if one cannot be read.

    An unreadable file may forbid registries, so it is not ignored. A file that does not exist yet says nothing.
    """
    file = context.config_file()
    if file is None:
        merged = load_scopes(os.environ, Path.cwd(), ApprovalGate.open(os.environ))
        if merged.file_errors:
            raise merged.file_errors[0]
        return ConfiguredRegistries(registries_of(merged.gateway), merged.network_policy, _origins(merged.servers))
    if not file.exists():
        return ConfiguredRegistries(registries_of(None), PUBLIC_ONLY, {})
    found = load_file(file)
    return ConfiguredRegistries(registries_of(found.gateway), found.network_policy, _origins(found.servers))


def _origins(servers: Mapping[str, Server]) -> dict[str, EntryOrigin]:
    return {name: origin for name, each in servers.items() if (origin := _read(each.extras.get(ENTRY_KEY)))}


def _read(value: object) -> EntryOrigin | None:
    """Return the key of an entry; None if it has another form."""
    if not isinstance(value, Mapping):
        return None
    fields = [value.get(key) for key in EntryOrigin._fields]
    texts = [each for each in fields if isinstance(each, str)]
    if len(texts) != len(fields) or not is_name(texts[0]) or not is_version(texts[1]):
        return None
    return EntryOrigin(*texts)
