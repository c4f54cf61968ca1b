"""The tables of docs/reference/clients.md, from the clients that are known."""

from __future__ import annotations

from pathlib import Path

from toolway.config.clients import CLIENTS, Client, Place, find
from toolway.config.clients.dialect import Dialect

_HOME, _PROJECT = Path("/~"), Path("/~/project")


def files() -> str:
    """Where each client keeps its servers."""
    places = find({"HOME": str(_HOME)}, _PROJECT, "linux")
    rows = ["| client | name | user | project | servers are under |", "|---|---|---|---|---|"]
    for client in CLIENTS.values():
        mine = [place for place in places if place.client == client.name]
        user = _paths([place for place in mine if place.scope == "user"])
        project = _paths([place for place in mine if place.scope == "project"])
        rows.append(f"| {client.title} | `{client.name}` | {user} | {project} | `{'.'.join(mine[0].root)}` |")
    return "\n".join(rows)


def _paths(places: list[Place]) -> str:
    shown = [str(place.path).removeprefix(f"{_PROJECT}/").replace(f"{_HOME}/", "~/") for place in places]
    return ", ".join(f"`{path}`" for path in shown) or "–"


def fields() -> str:
    """What each client has a word for."""
    names = ("SSE", "cwd", "env file", "timeout", "start timeout", "off", "tools", "OAuth client")
    rows = [f"| client | {' | '.join(names)} |", f"|---{len(names) * '|---'}|"]
    rows += [f"| {client.title} | {' | '.join(_known(client))} |" for client in CLIENTS.values()]
    return "\n".join(rows)


def _known(client: Client) -> list[str]:
    dialect: Dialect = client.dialect
    tools = " ".join(name for name, key in (("allow", dialect.allow), ("deny", dialect.deny)) if key)
    flags = ["sse" in dialect.urls, dialect.cwd, dialect.env_file, dialect.timeout, dialect.start_timeout]
    shown = ["yes" if flag else "–" for flag in (*flags, dialect.enabled or dialect.disabled)]
    return [*shown, tools or "–", "yes" if dialect.oauth else "–"]
