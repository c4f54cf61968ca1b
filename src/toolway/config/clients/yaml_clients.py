"""Clients with YAML files: Goose, Continue, and the Docker MCP toolkit.

An entry in a Docker MCP catalog has an image instead of a command, and a remote instead of a URL. An image becomes a
`docker run` command. Its arguments have all settings of the catalog entry, so the conversion can be reversed. Secrets
are referenced by name, never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolway.config.clients.models import (
    Client,
    ClientConfigFile,
    ClientPaths,
    Dialect,
    EntryDict,
    TimeoutKey,
    UnsupportedEntry,
    make_config_file,
)
from toolway.config.editing.document import ConfigDocument
from toolway.config.variables import CONTINUE_SYNTAX, TOOLWAY_SYNTAX, VariableRef, parse_variables

_DOCKER_RUN_ARGS: Final = ("run", "-i", "--rm", "--init")


def _goose_files(paths: ClientPaths) -> list[ClientConfigFile]:
    windows = paths.app_support / "Block" / "goose" / "config"
    user = windows if paths.platform == "win32" else paths.config_home / "goose"
    project = paths.find_nearest(".goose/config.yaml")
    return [
        make_config_file("goose", "user", user / "config.yaml", "yaml", ("extensions",)),
        make_config_file("goose", "project", project, "yaml", ("extensions",), project.parent.parent),
    ]


def _continue_files(paths: ClientPaths) -> list[ClientConfigFile]:
    return [make_config_file("continue", "user", paths.home / ".continue" / "config.yaml", "yaml")]


def _docker_files(paths: ClientPaths) -> list[ClientConfigFile]:
    """Return all catalog files of the Docker MCP toolkit.

    They offer hundreds of servers. `_docker_enabled_servers` returns the ones that `registry.yaml` enables.
    """
    folder = paths.home / ".docker" / "mcp" / "catalogs"
    found: list[Path] = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    return [
        make_config_file("docker-mcp", "user", path, "yaml", ("registry",))
        for path in found or [folder / "docker-mcp.yaml"]
    ]


def _docker_enabled_servers(file: ClientConfigFile) -> frozenset[str]:
    registry = file.path.parent.parent / "registry.yaml"
    found = ConfigDocument(registry).get(("registry",)) if registry.is_file() else None
    return frozenset(found) if isinstance(found, dict) else frozenset()


# -- Goose ------------------------------------------------------------------------------------------------------------


def _goose_to_common(value: EntryDict, unread: EntryDict) -> None:
    """Convert `env_keys` in a Goose entry to `env` with `${VAR}`.

    The keys name environment variables, or secrets in Goose's store.
    """
    keys = unread.get("env_keys")
    if isinstance(keys, list) and keys and all(isinstance(key, str) for key in keys):
        value["env"] = {**value.get("env", {}), **{key: f"${{{key}}}" for key in unread.pop("env_keys")}}


def _goose_from_common(value: EntryDict, written: EntryDict) -> list[tuple[str, str]]:
    env: Any = value.get("env")
    if isinstance(env, dict):
        named = [
            key
            for key, text in env.items()
            if isinstance(text, str) and parse_variables(text, TOOLWAY_SYNTAX) == (VariableRef("env", key),)
        ]
        if named:
            written["env_keys"] = named
            value["env"] = {key: text for key, text in env.items() if key not in named}
            if not value["env"]:
                del value["env"]
    return []


# -- Docker MCP catalogs ----------------------------------------------------------------------------------------------


def _docker_to_common(value: EntryDict, unread: EntryDict) -> None:
    """Convert a Docker catalog entry: an `image` to a `docker run` command, and a `remote` to a URL."""
    remote = unread.get("remote")
    if isinstance(remote, Mapping) and isinstance(remote.get("url"), str):
        value["url"] = remote["url"]
        if isinstance(remote.get("headers"), Mapping):
            value["headers"] = dict(remote["headers"])
        if remote.get("transport_type") == "sse":
            value["type"] = "sse"
        _set_or_remove(
            unread, "remote", {k: v for k, v in remote.items() if k not in ("url", "headers", "transport_type")}
        )
        return
    image = unread.pop("image", None)
    if not isinstance(image, str):
        return
    # In a catalog `command` holds the arguments of the image.
    words = [word for word in (value.pop("command", None),) if word is not None] + value.pop("args", [])
    env = {each["name"]: each.get("value", "") for each in _pop_named_objects(unread, "env", value)}
    env |= {each["env"]: f"${{secret:{each['name']}}}" for each in _pop_named_objects(unread, "secrets", value)}
    volumes = [word for volume in unread.pop("volumes", []) for word in ("-v", volume)]
    value["command"] = "docker"
    value["args"] = [*_DOCKER_RUN_ARGS, *volumes, *(word for name in env for word in ("-e", name)), image, *words]
    if env:
        value["env"] = env


def _docker_from_common(value: EntryDict, written: EntryDict) -> list[tuple[str, str]]:
    """Convert a `docker run` command to a Docker catalog entry's `image`, and a URL to its `remote`.

    Raises `UnsupportedEntry` if the server has any other command.
    """
    if isinstance(value.get("url"), str):
        kind = "sse" if value.get("type") == "sse" else "streamable-http"
        written["remote"] = {"transport_type": kind, "url": value.pop("url")}
        if value.get("headers"):
            written["remote"]["headers"] = value.pop("headers")
        return []
    args = list(value.get("args") or [])
    found = _parse_docker_run(args) if value.get("command") == "docker" else None
    if found is None:
        raise UnsupportedEntry("command", "it only starts container images; the entry is left out")
    volumes, image, words = found
    written["image"] = image
    env = value.pop("env", {})
    plain = [{"name": name, "value": text} for name, text in env.items() if _secret_name(text) is None]
    secrets = [
        {"name": _secret_name(text), "env": name} for name, text in env.items() if _secret_name(text) is not None
    ]
    parts = {"command": words, "volumes": volumes, "env": plain, "secrets": secrets}
    written |= {key: part for key, part in parts.items() if part}
    value["command"] = value["args"] = None
    return []


def _parse_docker_run(args: list[str]) -> tuple[list[str], str, list[str]] | None:
    """Return the volumes, image, and arguments of a `docker run` command, or None for any other command.

    A command with an option that we do not write also counts as a different command.
    """
    if not args or args[0] != "run":
        return None
    volumes, at = [], 1
    while at < len(args):
        word = args[at]
        if word in ("-i", "--rm", "--init", "--interactive"):
            at += 1
        elif word in ("-e", "--env", "-v", "--volume") and at + 1 < len(args):
            volumes += [args[at + 1]] if word in ("-v", "--volume") else []
            at += 2
        elif word.startswith("-"):
            return None
        else:
            return volumes, word, args[at + 1 :]
    return None


def _secret_name(text: Any) -> str | None:
    pieces = parse_variables(text, TOOLWAY_SYNTAX) if isinstance(text, str) else ()
    match pieces:
        case (VariableRef("secret", name, _),):
            return name
    return None


def _pop_named_objects(unread: EntryDict, key: str, value: EntryDict) -> list[dict[str, Any]]:
    """Remove the list of named objects under `key` from a Docker catalog entry, and return it.

    `unread` is the part of the entry that is not converted yet, and `value` the converted part. If the value under
    `key` is not such a list, it stays, and the result is [].
    """
    found = unread.get(key, value.get(key))
    if not isinstance(found, list) or not all(isinstance(each, dict) and "name" in each for each in found):
        return []
    unread.pop(key, None)
    value.pop(key, None)
    return found


def _set_or_remove(unread: EntryDict, key: str, rest: EntryDict) -> None:
    unread[key] = rest
    if not rest:
        del unread[key]


# -- table of clients -------------------------------------------------------------------------------------------------

YAML_CLIENTS: Final = (
    Client(
        "goose",
        "Goose",
        _goose_files,
        Dialect(
            name_key="name",
            command="cmd",
            env="envs",
            urls={"http": "uri", "sse": "uri"},
            types={"stdio": "stdio", "http": "streamable_http", "sse": "sse"},
            timeout=TimeoutKey("timeout", 1000),
            enabled="enabled",
            writes_enabled=True,
            allow="available_tools",
            to_common=_goose_to_common,
            from_common=_goose_from_common,
        ),
    ),
    Client(
        "continue",
        "Continue",
        _continue_files,
        Dialect(
            name_key="name",
            is_list=True,
            types={"stdio": "stdio", "http": "streamable-http", "sse": "sse"},
            cwd="cwd",
            start_timeout=TimeoutKey("connectionTimeout"),
            syntax=CONTINUE_SYNTAX,
        ),
    ),
    Client(
        "docker-mcp",
        "Docker MCP",
        _docker_files,
        Dialect(
            to_common=_docker_to_common,
            from_common=_docker_from_common,
            types={"stdio": "server", "http": "remote", "sse": "remote"},
        ),
        _docker_enabled_servers,
    ),
)
