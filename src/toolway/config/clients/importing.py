"""The files of clients → entries in our own form."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from toolway.config.clients.catalog import CLIENTS, client_named
from toolway.config.clients.paths import Paths
from toolway.config.clients.reading import read_value, transport_of
from toolway.config.clients.values import Client, Entry, Imported, KeyPath, Place, Platform
from toolway.config.editing.documents import Document
from toolway.config.problems import Problem
from toolway.errors import ConfigError

# Where other clients keep their servers: a file of one is often copied to another.
_ROOTS: Final[tuple[KeyPath, ...]] = (
    *((name,) for name in ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")),
    ("mcp", "servers"),
    ("mcp",),
    ("extensions",),
)
_MARKS: Final = frozenset({"command", "cmd", "url", "httpUrl", "serverUrl", "uri", "image", "remote"})


def find(
    environment: Mapping[str, str] | None = None, directory: Path | None = None, platform: Platform | None = None
) -> list[Place]:
    """Every file in which a client would look, whether it is there or not."""
    system = platform or cast(Platform, sys.platform if sys.platform in ("darwin", "win32") else "linux")
    paths = Paths(os.environ if environment is None else environment, directory or Path.cwd(), system)
    found: dict[tuple[str, Path, KeyPath], Place] = {}
    for client in CLIENTS.values():
        for place in client.places(paths):
            found.setdefault(
                (place.client, place.path, place.root), place
            )  # at home, a project's file is the user's own
    return list(found.values())


def read(place: Place) -> Imported:
    """What a file says. A file that is not there says nothing; one that cannot be read is a problem, not an error."""
    client = client_named(place.client)
    try:
        chosen = client.chosen(place) if client.chosen else None
        if not place.path.exists() or chosen == frozenset():
            return Imported(place)
        return _read(client, place, Document(place.path, place.format), chosen)
    except ConfigError as exc:
        return Imported(place, problems=(Problem.of(exc),))


def _read(client: Client, place: Place, document: Document, chosen: frozenset[str] | None) -> Imported:
    root, problems = _root(client, place, document)
    lines = document.lines(root)
    entries = []
    for key, name, written in servers_at(client, document.at(root)):
        line = lines.get(key)
        if chosen is not None and name not in chosen:
            continue
        if not isinstance(written, Mapping):
            problems.append(_no_server(name, "it is no object"))
            continue
        value, found = read_value(client.name, client.dialect, name, written)
        if transport_of(value) is None:
            found = [_no_server(name, f"it has neither a command nor an address for others than {client.title}")]
        else:
            entries.append(Entry(name, value, written, place, line))
        problems += [_at(each, place, line) for each in found]
    return Imported(place, tuple(entries), tuple(problems))


def servers_at(client: Client, container: Any) -> Iterator[tuple[str | int, str, Any]]:
    """Key, name and value of each entry, in a map or in a list."""
    if isinstance(container, Mapping):
        for key, written in container.items():
            yield key, str(key), written
    elif isinstance(container, list) and client.dialect.named:
        for at, written in enumerate(container):
            named = written.get(client.dialect.named) if isinstance(written, Mapping) else None
            yield at, str(named or f"server-{at + 1}"), written


def root_of(client: Client, place: Place, document: Document) -> KeyPath:
    """Where the client's own servers are in this file: newer versions of a client may have another place."""
    newer = (*place.root, "servers")
    found = document.at(newer)
    # A server may be called `servers`; then it has the marks of one.
    moved = place.root == ("mcp",) and isinstance(found, Mapping) and not _MARKS & found.keys()
    return newer if moved else place.root


def _root(client: Client, place: Place, document: Document) -> tuple[KeyPath, list[Problem]]:
    """Where servers are; they are found under another client's key too, and that is told."""
    root = root_of(client, place, document)
    if document.at(root) is not None or place.scope == "local":
        return root, []
    for other in _ROOTS:
        if other != root and _holds_servers(document.at(other)):
            return other, [_wrong_root(client, place, root, other)]
    return root, []


def _holds_servers(value: Any) -> bool:
    items = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return any(isinstance(item, Mapping) and _MARKS & item.keys() for item in items)


def _wrong_root(client: Client, place: Place, root: KeyPath, found: KeyPath) -> Problem:
    right, wrong = ".".join(root), ".".join(found)
    return Problem(
        "",
        f"{client.title} does not read {wrong!r}",
        evidence=f"its servers are under {right!r}",
        fix=f"rename {wrong!r} to {right!r}",
        code="E-CLIENT-ROOT",
        severity="warning",
        file=str(place.path),
    )


def _no_server(name: str, evidence: str) -> Problem:
    return Problem(name, f"{name} is no server that can be imported", evidence, code="E-CLIENT-ENTRY", severity="note")


def _at(problem: Problem, place: Place, line: int | None) -> Problem:
    return replace(problem, file=str(place.path), line=line)
