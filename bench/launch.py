"""Start parameters of a gateway with its servers, and helpers shared by all peers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.wire import Endpoint


@dataclass(frozen=True)
class Server:
    """A server behind the gateway: a URL or a command."""

    name: str
    url: str = ""
    command: tuple[str, ...] = ()
    era: str = "both"


@dataclass(frozen=True)
class LaunchContext:
    """Everything a peer needs to start: the servers behind it, a port and its folders."""

    servers: tuple[Server, ...]
    port: int
    folder: Path  # empty and writable
    home: Path  # installation of the peer


@dataclass(frozen=True)
class Launch:
    command: list[str]
    endpoint: Endpoint
    tool: Callable[[str, str], str]  # (server, tool) → tool name for clients
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None  # runs when the gateway listens


def tool_name(server: str, tool: str) -> str:
    """Name a tool as its server does."""
    return tool


def prefixed_name(server: str, tool: str) -> str:
    """Name a tool `server__tool`."""
    return f"{server}__{tool}"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def servers_file(context: LaunchContext, kind: str = "") -> str:
    """Write the `mcpServers` file that most peers read."""
    typed = {"type": kind} if kind else {}
    entries = {
        one.name: {"url": one.url, **typed} if one.url else {"command": one.command[0], "args": list(one.command[1:])}
        for one in context.servers
    }
    return write(context.folder / "servers.json", json.dumps({"mcpServers": entries}))
