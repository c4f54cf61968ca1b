"""The tables of docs/reference/clients.md, generated from the supported clients."""

from __future__ import annotations

from pathlib import Path

from toolway.config.clients import CLIENTS, Client, ClientConfigFile, find_client_files
from toolway.config.clients.models import Dialect

_HOME, _PROJECT = Path("/~"), Path("/~/project")


def files() -> str:
    """Return the table of config files and scopes of each client."""
    config_files = find_client_files({"HOME": str(_HOME)}, _PROJECT, "linux")
    rows = ["| client | name | user | project | servers are under |", "|---|---|---|---|---|"]
    for client in CLIENTS.values():
        own_files = [each for each in config_files if each.client == client.name]
        user = _paths([each for each in own_files if each.scope == "user"])
        project = _paths([each for each in own_files if each.scope == "project"])
        rows.append(f"| {client.title} | `{client.name}` | {user} | {project} | `{'.'.join(own_files[0].root)}` |")
    return "\n".join(rows)


def _paths(config_files: list[ClientConfigFile]) -> str:
    shown = [str(each.path).removeprefix(f"{_PROJECT}/").replace(f"{_HOME}/", "~/") for each in config_files]
    return ", ".join(f"`{path}`" for path in shown) or "–"


def fields() -> str:
    """Return the table of settings that each client supports."""
    names = ("SSE", "cwd", "env file", "timeout", "start timeout", "off", "tools", "OAuth client")
    rows = [f"| client | {' | '.join(names)} |", f"|---{len(names) * '|---'}|"]
    rows += [f"| {client.title} | {' | '.join(_supported(client))} |" for client in CLIENTS.values()]
    return "\n".join(rows)


def _supported(client: Client) -> list[str]:
    dialect: Dialect = client.dialect
    tools = " ".join(name for name, key in (("allow", dialect.allow), ("deny", dialect.deny)) if key)
    flags = ["sse" in dialect.urls, dialect.cwd, dialect.env_file, dialect.timeout, dialect.start_timeout]
    shown = ["yes" if flag else "–" for flag in (*flags, dialect.enabled or dialect.disabled)]
    return [*shown, tools or "–", "yes" if dialect.oauth else "–"]
