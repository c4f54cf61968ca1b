"""The servers of a hub, as configured."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolway.config.schema import ConfigIssue, Server, ServerLike, Timeout, with_defaults
from toolway.config.settings import with_network_policy
from toolway.hub.core_options import ServerDefaults
from toolway.hub.source import ConfigSource
from toolway.network.policy import NetworkPolicy


class ConfiguredServers:
    """A hub's configuration as last loaded, and the defaults for its servers."""

    servers: Mapping[str, Server]  # without later changes
    issues: tuple[ConfigIssue, ...]  # warnings about the entries
    network_policy: NetworkPolicy  # for servers that are added from now on
    model_urls: tuple[str, ...]

    def __init__(self, config: ConfigSource, defaults: ServerDefaults) -> None:
        timeout = defaults.timeout
        self._timeout = Timeout(timeout) if isinstance(timeout, int | float) else timeout
        self._retry = defaults.retry
        self._base_network_policy = defaults.network_policy
        self.load(config)

    def load(self, config: ConfigSource) -> None:
        """Load a configuration. If it cannot be used, nothing changes and `ConfigError` is raised."""
        from toolway.hub.config_source import load_servers  # loads the parsers of config files

        self.servers, self.issues, self.network_policy, self.model_urls = load_servers(
            config, self._timeout, self._retry, self._base_network_policy
        )

    def complete(self, name: str, server: ServerLike) -> Server:
        """Return a server's definition, with the hub's defaults for missing settings.

        Warnings about the definition are logged and added to `issues`.
        """
        from toolway.hub.config_source import log_issues, parse_server

        parsed, found = parse_server(name, server)
        issues = tuple(msgspec.structs.replace(issue, server=name) for issue in found)
        log_issues(issues)
        self.issues = (*(each for each in self.issues if each.server != name), *issues)
        return with_network_policy(with_defaults(parsed, self._timeout, self._retry), self.network_policy)
