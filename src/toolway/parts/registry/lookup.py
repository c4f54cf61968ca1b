"""`toolway add io.github.owner/server[@version]`: the first registry that has the name decides.

A registry that does not answer ends the search: another one might give the name to someone else.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from toolway._os import SYSTEM_NAME
from toolway.errors import ToolwayError
from toolway.part_api.found_server import FoundServer
from toolway.parts.registry.api import Lookup, RegistryClient, describe_age, require_version
from toolway.parts.registry.cache import AnswerCache
from toolway.parts.registry.configured import ENTRY_KEY, ConfiguredRegistries, read_configuration
from toolway.parts.registry.lookalikes import find_lookalikes
from toolway.parts.registry.publisher import describe_publisher
from toolway.parts.registry.records import usable_document

if TYPE_CHECKING:
    from toolway.cli.options import CommandContext

MAX_COMPARED: Final = 300  # names in the registry that are compared with the one to add
_MAX_SHOWN_VERSIONS: Final = 5


class _Found(NamedTuple):
    lookup: Lookup
    registry: str
    similar: list[str] | None  # None: the registry could not be asked about them


def find_server(context: CommandContext, word: str) -> FoundServer:
    """Return the server `NAME` or `NAME@VERSION`. Raises `ToolwayError` if it must not be added."""
    name, _, version = word.partition("@")
    configured = read_configuration(context)
    found = asyncio.run(_find(configured, name, version or "latest"))
    _check(found, configured)
    return _describe(found, configured)


async def _find(configured: ConfiguredRegistries, name: str, version: str) -> _Found:
    cache = AnswerCache.open(os.environ)
    require_version(version)
    for url in configured.urls:
        async with RegistryClient(url, configured.network_policy, cache) as client:
            lookup = await client.fetch(name, version)
            if lookup is not None:
                return _Found(lookup, url, await _find_similar(client, configured, name))
            if versions := await client.versions(name):
                raise _no_version(name, version, url, versions)
    raise ToolwayError(
        f"no registry has {name}",
        detail=f"asked: {', '.join(configured.urls)}",
        hint=f"search for it: toolway search-servers {name.rpartition('/')[2]}",
        code="E-REGISTRY-NONE",
    )


async def _find_similar(client: RegistryClient, configured: ConfiguredRegistries, name: str) -> list[str] | None:
    known = {each.name for each in configured.entries.values()}
    try:
        listed = await client.search(name.rpartition("/")[2], MAX_COMPARED)
        known |= {*(each.name for each in listed.records), *client.cached_names()}
    except ToolwayError:
        return find_lookalikes(name, known) or None
    return find_lookalikes(name, known)


def _no_version(name: str, version: str, url: str, versions: list[str]) -> ToolwayError:
    shown = ", ".join(versions[:_MAX_SHOWN_VERSIONS])
    return ToolwayError(
        f"{name} has no version {version}",
        detail=f"{url} has: {shown}",
        hint=f"pick one: toolway add {name}@{versions[0]}",
        code="E-REGISTRY-NONE",
    )


def _check(found: _Found, configured: ConfiguredRegistries) -> None:
    """Raise `ToolwayError` if the record was deleted, or is not what was added before under this version."""
    record = found.lookup.record
    if record.status == "deleted":
        raise ToolwayError(
            f"{record.name} {record.version} was deleted from the registry",
            detail=record.message or f"{found.registry} gives no reason",
            hint=f"search for another one: toolway search-servers {record.name.rpartition('/')[2]}",
            code="E-REGISTRY-NONE",
        )
    for server, entry in configured.entries.items():
        if (entry.name, entry.version) == (record.name, record.version) and entry.digest != record.digest:
            raise ToolwayError(
                f"{record.name} {record.version} is not what you added as {server}",
                detail=f"its digest was {entry.digest[:16]}…, {found.registry} now has {record.digest[:16]}…",
                hint=f"use another version, or remove the server first if you trust the change: toolway rm {server}",
                code="E-REGISTRY-CHANGED",
            )


def _describe(found: _Found, configured: ConfiguredRegistries) -> FoundServer:
    record, age = found.lookup
    publisher = describe_publisher(record.name, found.registry)
    published = f", published {record.published}" if record.published else ""
    facts = [
        (f"{record.name} {record.version}, {record.status}{published}, from {found.registry}", "bold"),
        (f"publisher: {publisher}. Nobody has checked the code.", ""),
    ]
    if record.status != "active":
        facts.append((f"It is {record.status}: {record.message or 'no reason given'}", "yellow"))
    if age:
        facts.append((f"The registry did not answer; this answer is {describe_age(age)}.", "yellow"))
    if found.similar is None:
        facts.append(("Similar names were not checked: the registry did not answer.", "yellow"))
    facts += [(f"Similar name: {each}. Make sure you picked the right one.", "yellow") for each in found.similar or ()]
    others = {each.url for each in configured.entries.values() if each.name == record.name} - {found.registry}
    facts += [(f"You have this name from another registry: {each}", "yellow") for each in sorted(others)]
    origin = {"name": record.name, "version": record.version, "url": found.registry, "digest": record.digest}
    return FoundServer(
        usable_document(record, configured.urls),
        f"{record.name} {record.version}",
        {ENTRY_KEY: origin},
        {"sandbox": "guard"} if SYSTEM_NAME != "win32" else {},  # Windows has no such sandbox
        facts,
        {
            **origin,
            "publisher": publisher,
            "status": record.status,
            "message": record.message,
            "published": record.published,
            "ageSeconds": int(age),
            "similar": found.similar,
        },
    )
