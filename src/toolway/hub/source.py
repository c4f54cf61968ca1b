"""Config source of a hub (file, mapping or default files) and its default folders."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from toolway.catalog.storage import CatalogStorage, FileCatalogStorage
from toolway.config.loader import LoadedConfig, load_file
from toolway.config.schema import RetryPolicy, Server, ServerLike, Timeout, check_server_name, with_defaults
from toolway.config.scopes import load_config
from toolway.config.server_entry import parse_entry, parse_inline
from toolway.config.settings import with_network_policy
from toolway.network.policy import NetworkPolicy

ConfigSource = str | os.PathLike[str] | Mapping[str, ServerLike] | LoadedConfig | None
DEFAULT_CATALOG: Final = Path()  # sentinel for the user's cache folder


def load_servers(
    config: ConfigSource, timeout: Timeout | None, retry: RetryPolicy | None, network_policy: NetworkPolicy
) -> tuple[dict[str, Server], tuple[Any, ...], NetworkPolicy]:
    """Load the config of a hub: servers, config issues, and a network policy.

    The network policy is for servers that are added later. Raises `ConfigError` if the config cannot be used.
    """
    issues: tuple[Any, ...] = ()
    later_policy = network_policy
    if config is None:
        config = load_config(os.environ, Path.cwd())
    if isinstance(config, str | os.PathLike):
        config = load_file(config)
    if isinstance(config, LoadedConfig):
        servers, issues, later_policy = config.servers, config.issues, network_policy.union(config.network_policy)
    else:
        servers = {check_server_name(name): parse_server(value) for name, value in config.items()}
    with_settings = {name: with_defaults(server, timeout, retry) for name, server in servers.items()}
    return (
        {name: with_network_policy(server, network_policy) for name, server in with_settings.items()},
        issues,
        later_policy,
    )


def parse_server(value: ServerLike) -> Server:
    if isinstance(value, Server):
        return value
    if isinstance(value, str):
        return parse_inline(value)
    if isinstance(value, Mapping):
        return parse_entry(value)
    return Server(instance=value)


def server_fingerprint(server: Server) -> str:
    """Return the fingerprint of a server's definition, under which its lists are stored.

    Environment variables and headers are not part of it, because they may contain secrets.
    """
    parts: list[Any] = [server.command, server.args, server.cwd, server.url]
    if server.openapi is not None:
        api = server.openapi
        inline = sha256(json.dumps(api.document, default=str).encode()).hexdigest() if api.document else ""
        parts += [api.url, api.file, inline, repr((api.include, api.exclude, api.outputs))]
    return json.dumps(parts)


def open_catalog_storage(
    folder: str | os.PathLike[str] | CatalogStorage | None, environ: Mapping[str, str]
) -> CatalogStorage | None:
    if folder is None or isinstance(folder, CatalogStorage):
        return folder
    return FileCatalogStorage(Path(folder)) if folder is not DEFAULT_CATALOG else default_catalog_storage(environ)


def default_catalog_storage(environ: Mapping[str, str]) -> FileCatalogStorage | None:
    """Open the catalog storage in this user's cache folder. None without a home directory."""
    cache = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if "HOME" in environ else "")
    return FileCatalogStorage(Path(cache) / "toolway" / "catalog") if cache else None


def default_runtime_dir(environ: Mapping[str, str]) -> Path | None:
    """Return the private folder for pid files of the reaper, the parent process of servers.

    None without a runtime directory and a home directory.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "toolway"
    return Path(environ["HOME"]) / ".local" / "state" / "toolway" / "run" if "HOME" in environ else None
