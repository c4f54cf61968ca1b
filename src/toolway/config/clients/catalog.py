"""Every client that we know, by name, and our own file among its equals."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from toolway.config.clients import claude, desktops, editors, indented, tables, terminals
from toolway.config.clients.dialect import Dialect
from toolway.config.clients.paths import Paths, place
from toolway.config.clients.values import Client, Place
from toolway.config.syntaxes import OURS
from toolway.errors import ConfigError

_FAMILIES: Final = (claude, editors, terminals, tables, indented, desktops)
CLIENTS: Final[dict[str, Client]] = {client.name: client for family in _FAMILIES for client in family.CLIENTS}


def _nowhere(_paths: Paths) -> list[Place]:
    return []


TOOLWAY: Final = Client("toolway", "Toolway", _nowhere, Dialect(ours=True, syntax=OURS))


def own_place(path: Path, root: tuple[str, ...] = ("mcpServers",)) -> Place:
    """Our own file, to be read and changed as that of a client."""
    return place(TOOLWAY.name, "user", path, root=root)


def client_named(name: str) -> Client:
    """Raises `ConfigError` with the nearest name."""
    if name == TOOLWAY.name:
        return TOOLWAY
    if name not in CLIENTS:
        close = difflib.get_close_matches(name, CLIENTS, n=1, cutoff=0.5)
        raise ConfigError(
            f"{name!r} is no client that is known",
            evidence=f"known are {', '.join(CLIENTS)}",
            fix=f"did you mean {close[0]!r}?" if close else "",
            code="E-CLIENT-UNKNOWN",
        )
    return CLIENTS[name]
