"""Agents that keep YAML: Goose, Continue and the Docker MCP toolkit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from toolway.config.clients.dialect import Dialect, Timeout, Value
from toolway.config.clients.docker import lift_image, lower_image
from toolway.config.clients.paths import Paths, place
from toolway.config.clients.values import Client, Place
from toolway.config.editing.documents import Document
from toolway.config.syntaxes import OURS, SECRETS, Ref, parse


def _goose(paths: Paths) -> list[Place]:
    windows = paths.support / "Block" / "goose" / "config"
    user = windows if paths.platform == "win32" else paths.config / "goose"
    project = paths.nearest(".goose/config.yaml")
    return [
        place("goose", "user", user / "config.yaml", "yaml", ("extensions",)),
        place("goose", "project", project, "yaml", ("extensions",), project.parent.parent),
    ]


def _continue(paths: Paths) -> list[Place]:
    return [place("continue", "user", paths.home / ".continue" / "config.yaml", "yaml")]


def _docker(paths: Paths) -> list[Place]:
    """Every catalog. They offer hundreds of servers; those that are on are named in `registry.yaml`."""
    folder = paths.home / ".docker" / "mcp" / "catalogs"
    found: list[Path] = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    return [place("docker-mcp", "user", path, "yaml", ("registry",)) for path in found or [folder / "docker-mcp.yaml"]]


def _switched_on(place: Place) -> frozenset[str]:
    registry = place.path.parent.parent / "registry.yaml"
    found = Document(registry).at(("registry",)) if registry.is_file() else None
    return frozenset(found) if isinstance(found, dict) else frozenset()


def _lift_goose(value: Value, left: Value) -> None:
    """`env_keys` name secrets that Goose keeps, or variables. What is built in is no server for others."""
    keys = left.get("env_keys")
    if isinstance(keys, list) and keys and all(isinstance(key, str) for key in keys):
        value["env"] = {**value.get("env", {}), **{key: f"${{{key}}}" for key in left.pop("env_keys")}}


def _lower_goose(value: Value, written: Value) -> list[tuple[str, str]]:
    env: Any = value.get("env")
    if isinstance(env, dict):
        named = [key for key, text in env.items() if isinstance(text, str) and parse(text, OURS) == (Ref("env", key),)]
        if named:
            written["env_keys"] = named
            value["env"] = {key: text for key, text in env.items() if key not in named}
            if not value["env"]:
                del value["env"]
    return []


CLIENTS: Final = (
    Client(
        "goose",
        "Goose",
        _goose,
        Dialect(
            named="name",
            command="cmd",
            env="envs",
            urls={"http": "uri", "sse": "uri"},
            types={"stdio": "stdio", "http": "streamable_http", "sse": "sse"},
            timeout=Timeout("timeout", 1000),
            enabled="enabled",
            says_enabled=True,
            allow="available_tools",
            lift=_lift_goose,
            lower=_lower_goose,
        ),
    ),
    Client(
        "continue",
        "Continue",
        _continue,
        Dialect(
            named="name",
            listed=True,
            types={"stdio": "stdio", "http": "streamable-http", "sse": "sse"},
            cwd="cwd",
            start_timeout=Timeout("connectionTimeout"),
            syntax=SECRETS,
        ),
    ),
    Client(
        "docker-mcp",
        "Docker MCP",
        _docker,
        Dialect(lift=lift_image, lower=lower_image, types={"stdio": "server", "http": "remote", "sse": "remote"}),
        _switched_on,
    ),
)
