"""How a gateway is started before some servers, and what all ways of starting share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.wire import Door


@dataclass(frozen=True)
class Server:
    """A server behind the gateway: an address or a command."""

    name: str
    url: str = ""
    command: tuple[str, ...] = ()
    era: str = "both"


@dataclass(frozen=True)
class Place:
    """Where a peer stands: the servers behind it, and what is its own."""

    servers: tuple[Server, ...]
    port: int
    folder: Path  # to write in, empty
    home: Path  # where the peer is installed


@dataclass(frozen=True)
class Launch:
    command: list[str]
    door: Door
    tool: Callable[[str, str], str]  # server, tool → its name for clients
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None  # once it listens


def own_name(server: str, tool: str) -> str:
    return tool


def double(server: str, tool: str) -> str:
    return f"{server}__{tool}"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def servers_file(place: Place, kind: str = "") -> str:
    """The file of servers that most of them read."""
    typed = {"type": kind} if kind else {}
    entries = {
        one.name: {"url": one.url, **typed} if one.url else {"command": one.command[0], "args": list(one.command[1:])}
        for one in place.servers
    }
    return write(place.folder / "servers.json", json.dumps({"mcpServers": entries}))
