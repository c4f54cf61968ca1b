"""Where a hub's config comes from (file, mapping or default files), and its default folders."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from toolway._os import cache_folder, state_folder
from toolway.catalog.storage import CatalogStorage, FileCatalogStorage
from toolway.config.locations import gateway_state_folder
from toolway.config.schema import (
    ConfigIssue,
    RetryPolicy,
    Server,
    ServerLike,
    Timeout,
    check_server_name,
    with_defaults,
)
from toolway.config.settings import with_network_policy
from toolway.errors import ConfigError
from toolway.network.policy import NetworkPolicy
from toolway.upstream.transport import InProcessServer

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig

ConfigSource: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, ServerLike] | Sequence[Mapping[str, Any]] | LoadedConfig | None"
)
_log = logging.getLogger("toolway.config")
DEFAULT_CATALOG: Final = Path()  # sentinel for the user's cache folder


def load_servers(
    config: ConfigSource, timeout: Timeout | None, retry: RetryPolicy | None, network_policy: NetworkPolicy
) -> tuple[dict[str, Server], tuple[ConfigIssue, ...], NetworkPolicy, tuple[str, ...]]:
    """Load a hub's config: servers, issues, network policy, and the addresses in `toolway.modelUrls`.

    The network policy is for servers that are added later. Raises `ConfigError` if the config cannot be used.
    """
    from toolway.config.loader import LoadedConfig, load_file
    from toolway.config.scopes import load_config

    later_policy = network_policy
    model_urls: tuple[str, ...] = ()
    is_logged = not isinstance(config, LoadedConfig)  # the program that loaded it shows its issues
    if config is None:
        config = load_config(os.environ, Path.cwd())
    if isinstance(config, str | os.PathLike):
        config = load_file(config)
    if isinstance(config, LoadedConfig):
        servers, issues, later_policy = config.servers, config.issues, network_policy.union(config.network_policy)
        model_urls = config.gateway.model_urls
    else:
        servers, issues = _parse_servers(config)
    if is_logged:
        log_issues(issues)
    with_settings = {name: with_defaults(server, timeout, retry) for name, server in servers.items()}
    return (
        {name: with_network_policy(server, network_policy) for name, server in with_settings.items()},
        issues,
        later_policy,
        model_urls,
    )


def _parse_servers(
    config: Mapping[str, ServerLike] | Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Server], tuple[ConfigIssue, ...]]:
    """Return the servers in a mapping or list, and warnings about their keys.

    A mapping may have the form of a file: `{"mcpServers": {…}}`. Raises `ConfigError` if an entry is invalid.
    """
    from toolway.config.foreign_keys import warn_unread_root_keys
    from toolway.config.loader import find_server_map_key, name_entries

    root_issues: list[ConfigIssue] = []
    if not isinstance(config, Mapping):
        config = name_entries(config)
    elif (key := find_server_map_key(config)) is not None:
        root_issues = warn_unread_root_keys(config, (key,))
        config = config[key] if isinstance(config[key], Mapping) else name_entries(config[key])
    parsed = {check_server_name(name): parse_server(name, value) for name, value in config.items()}
    issues = tuple(
        msgspec.structs.replace(issue, server=name) for name, (_, found) in parsed.items() for issue in found
    )
    return {name: server for name, (server, _) in parsed.items()}, (*root_issues, *issues)


def parse_server(name: str, value: ServerLike) -> tuple[Server, list[ConfigIssue]]:
    """Return the server for any value that `Hub` accepts, and warnings about its keys.

    Raises `ConfigError`, which names the entry, if the value is invalid.
    """
    try:
        return _parse_server(value)
    except ConfigError as exc:
        raise ConfigError(f"server {name!r}: {exc.message}", detail=exc.detail, hint=exc.hint, code=exc.code) from None


def _parse_server(value: ServerLike) -> tuple[Server, list[ConfigIssue]]:
    if isinstance(value, Server):
        if value.transport == "memory" and not _is_server_object(value.instance):
            raise _type_error(value.instance)
        return value, []
    if _is_server_object(value):  # first: it may be a list or a mapping, too
        return Server(instance=value), []
    from toolway.config.server_entry import parse_entry_with_issues, parse_inline

    if isinstance(value, str):
        return parse_inline(value), []
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
        value = {"command": value[0], "args": list(value[1:])}
    if isinstance(value, Mapping):
        return parse_entry_with_issues(value, os.environ)
    raise _type_error(value)


def _is_server_object(value: object) -> bool:
    """Return True for an SDK server object or an object that creates its own transport."""
    if isinstance(value, type):
        return False
    if isinstance(value, InProcessServer):
        return True
    sdk = sys.modules.get("mcp.server")  # a program that has not imported the SDK has no object of it
    return sdk is not None and isinstance(value, (sdk.Server, sdk.MCPServer))


def _type_error(value: object) -> ConfigError:
    from toolway.config.field_reader import json_type_name

    found = "a list of more than strings" if value and isinstance(value, list | tuple) else json_type_name(value)
    return ConfigError(
        "a server must be a command line, a URL, a config entry, a `Server` or a server object",
        detail=f"found {found}",
        hint='use "uvx mcp-server-time", ["python", "server.py"], "https://…/mcp" or {"command": …}',
        code="E-CONFIG-SERVER",
    )


def log_issues(issues: Iterable[ConfigIssue]) -> None:
    """Log each config error and warning, but no notes."""
    for issue in issues:
        if issue.severity != "note":
            _log.warning("%s%s", f"{issue.server}: " if issue.server and issue.location else "", issue)


def server_fingerprint(server: Server) -> str:
    """Return the fingerprint of a server's definition, under which its lists are stored.

    Environment variables and headers are not part of it, because they may contain secrets.
    """
    parts: list[Any] = [server.command, server.args, server.cwd, server.url]
    if server.message_url is not None:
        parts.append(server.message_url)
    if server.transport_settings is not None:
        parts += server.transport_settings.fingerprint()
    return json.dumps(parts)


def open_catalog_storage(
    folder: str | os.PathLike[str] | CatalogStorage | None, environ: Mapping[str, str]
) -> CatalogStorage | None:
    if folder is None or isinstance(folder, CatalogStorage):
        return folder
    return default_catalog_storage(environ) if folder is DEFAULT_CATALOG else _catalog_storage(Path(folder), environ)


def default_catalog_storage(environ: Mapping[str, str]) -> FileCatalogStorage | None:
    """Open the catalog storage in this user's cache folder. None without a home directory."""
    cache = default_cache_folder(environ)
    return _catalog_storage(cache / "catalog", environ) if cache is not None else None


def default_cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder `toolway` in this user's cache folder. None without a home directory."""
    return cache_folder(environ)


def _catalog_storage(folder: Path, environ: Mapping[str, str]) -> FileCatalogStorage | None:
    """Open the store for tool lists in `folder`; None without a state folder.

    The key that authenticates the stored lists is in the state folder.
    """
    state = gateway_state_folder(environ)
    return FileCatalogStorage(folder, state / "lists.key") if state is not None else None


def default_runtime_dir(environ: Mapping[str, str]) -> Path | None:
    """Return the private folder for pid files of the reaper (the servers' parent process).

    None without a runtime directory and a home directory.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "toolway"
    state = state_folder({"HOME": environ["HOME"]} if "HOME" in environ else environ)
    return state / "run" if state else None
