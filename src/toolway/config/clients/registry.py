"""All supported clients by name, including our own file as a client."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from toolway.config.clients.json_clients import CLAUDE_CLIENTS, DESKTOP_CLIENTS, EDITOR_CLIENTS, TERMINAL_CLIENTS
from toolway.config.clients.models import Client, ClientConfigFile, ClientPaths, Dialect, make_config_file
from toolway.config.clients.toml_clients import TOML_CLIENTS
from toolway.config.clients.yaml_clients import YAML_CLIENTS
from toolway.config.variables import TOOLWAY_SYNTAX
from toolway.errors import ConfigError

_ALL: Final = (
    *CLAUDE_CLIENTS,
    *EDITOR_CLIENTS,
    *TERMINAL_CLIENTS,
    *TOML_CLIENTS,
    *YAML_CLIENTS,
    *DESKTOP_CLIENTS,
)
CLIENTS: Final[dict[str, Client]] = {client.name: client for client in _ALL}


def _no_files(_paths: ClientPaths) -> list[ClientConfigFile]:
    return []


TOOLWAY: Final = Client("toolway", "Toolway", _no_files, Dialect(is_own=True, syntax=TOOLWAY_SYNTAX))


def toolway_file(path: Path, root: tuple[str, ...] = ("mcpServers",)) -> ClientConfigFile:
    """Return Toolway's own config file as a client file, to read and change it like one."""
    return make_config_file(TOOLWAY.name, "user", path, root=root)


def get_client(name: str) -> Client:
    """Return the MCP client with this name, such as `claude-code`.

    Raises `ConfigError` if the name is unknown, with a hint that suggests the closest name.
    """
    if name == TOOLWAY.name:
        return TOOLWAY
    if name not in CLIENTS:
        close = difflib.get_close_matches(name, CLIENTS, n=1, cutoff=0.5)
        raise ConfigError(
            f"unknown client {name!r}",
            detail=f"known clients: {', '.join(CLIENTS)}",
            hint=f"did you mean {close[0]!r}?" if close else "",
            code="E-CLIENT-UNKNOWN",
        )
    return CLIENTS[name]
