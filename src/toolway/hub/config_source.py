"""Loads a hub's servers from its config source: a file, a mapping, a list, or the default files.

This module loads the config parsers, so it is imported when a hub is created, not together with `Hub`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolway.config.field_reader import json_type_name
from toolway.config.foreign_keys import warn_unread_root_keys
from toolway.config.loader import LoadedConfig, find_server_map_key, load_file, name_entries
from toolway.config.schema import (
    ConfigIssue,
    RetryPolicy,
    Server,
    ServerLike,
    Timeout,
    check_server_name,
    with_defaults,
)
from toolway.config.scopes import load_config
from toolway.config.server_entry import parse_entry_with_issues, parse_inline
from toolway.config.settings import with_network_policy
from toolway.errors import ConfigError
from toolway.hub.source import ConfigSource
from toolway.network.policy import NetworkPolicy
from toolway.upstream.transport import InProcessServer

_log = logging.getLogger("toolway.config")


def load_servers(
    config: ConfigSource, timeout: Timeout | None, retry: RetryPolicy | None, network_policy: NetworkPolicy
) -> tuple[dict[str, Server], tuple[ConfigIssue, ...], NetworkPolicy, tuple[str, ...]]:
    """Load a hub's config: servers, issues, network policy, and the addresses in `toolway.modelUrls`.

    The network policy is for servers that are added later. Raises `ConfigError` if the configuration cannot be used.
    """
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
    """Return the server defined by any value that `Hub` accepts, and warnings about its keys.

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
