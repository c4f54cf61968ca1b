"""Targets of commands: the servers of config files, or of a running gateway.

Both offer the same interface, so commands do not distinguish them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from toolway.catalog.catalog import Prompt, Resource, Tool
from toolway.cli.cached_lists import CachedLists, load_cached_lists
from toolway.cli.config_choice import choose_file
from toolway.cli.exit_codes import ExitCode, GatewayError, UsageError
from toolway.cli.gateway_client import (
    GatewayClient,
    explain_missing_gateway,
    find_local_gateway,
    gateway_from_url,
    require_no_named_state,
)
from toolway.cli.options import TargetOptions
from toolway.cli.output import Output
from toolway.config.loader import LoadedConfig, load_file, normalize_name
from toolway.config.masking import build_masker
from toolway.config.schema import ConfigIssue, Server
from toolway.config.scopes import ApprovalGate, load_config
from toolway.config.server_entry import parse_entry
from toolway.errors import CallError, ConfigError
from toolway.middleware.resolve import require_server
from toolway.types import ProgressCallback, PromptResult, ResourceResult, ToolResult
from toolway.upstream.status import describe_missing

if TYPE_CHECKING:
    from toolway.cli.commands.catalogs.server_questions import ServerQuestions
    from toolway.cli.remote_hub import RemoteHub
    from toolway.events import EventSink
    from toolway.hub.hub import Hub
    from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus

__all__ = [
    "HubApi",
    "Target",
    "TargetOptions",
    "file_without_gateway",
    "find_gateway",
    "find_target",
    "is_server_url",
    "load_masked_config",
    "load_masked_file",
    "load_server_info",
    "require_gateway",
    "require_status",
    "server_from_url",
    "server_name_from_url",
    "url_target",
    "usable_server",
]
DOWN_STATES = ("starting", "down")  # it cannot be called now
_SPINNER_INTERVAL_S = 0.1  # seconds between two updates of the list of starting servers


class HubApi(Protocol):
    """The `Hub` methods that commands use. `RemoteHub` has them too."""

    def status(self) -> dict[str, ServerStatus]: ...

    def server_info(self, name: str) -> ServerInfo | Awaitable[ServerInfo | None] | None: ...

    async def check_health(self) -> dict[str, HealthResult]: ...

    def add_sink(self, sink: EventSink) -> object: ...

    def known_tools(self, *, server: str | None = None) -> list[Tool]: ...

    async def list_tools(self, *, server: str | None = None, wait: float | None = None) -> list[Tool]: ...

    async def list_prompts(self, *, server: str | None = None, wait: float | None = None) -> list[Prompt]: ...

    async def list_resources(self, *, server: str | None = None, wait: float | None = None) -> list[Resource]: ...

    async def list_resource_templates(
        self, *, server: str | None = None, wait: float | None = None
    ) -> list[Resource]: ...

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> PromptResult: ...

    async def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        progress_callback: ProgressCallback | None = None,
        raise_on_error: bool = True,
    ) -> ToolResult: ...


class Target(Protocol):
    """Servers that a command works on: from config files, or from a running gateway."""

    @property
    def name(self) -> str:
        """Name of the target in messages: the path of the config file, or the gateway's URL."""
        ...

    def problems(self, server: str | None = None) -> tuple[ConfigIssue, ...]:
        """Return the problems found in the config file: all, or only the problems of `server`."""
        ...

    def open(
        self, only_server: str | None = None, questions: ServerQuestions | None = None
    ) -> AbstractAsyncContextManager[HubApi]:
        """Open access to the servers, as a context manager that yields a hub or its equivalent.

        `questions` answers requests that servers send during a call. With `only_server`, a config file target starts
        only this server at once. It raises `ConfigError` if the entry of this server is broken, and `NotFound` if there
        is none.
        """
        ...

    def cached(self, only_server: str | None = None) -> CachedLists | None:
        """Return the lists of all servers, or of `only_server`, that earlier runs cached on disk.

        None for a gateway, which responds quickly itself. Raises `ConfigError` if the entry of the server is
        broken, and `NotFound` if there is none.
        """
        ...

    def open_some(self, names: Collection[str]) -> AbstractAsyncContextManager[HubApi]:
        """Open access to the servers like `open`. A config file target starts exactly the servers in `names`."""
        ...


async def find_target(output: Output, target_options: TargetOptions) -> Target:
    """Return the gateway or the config files whose servers a command uses, by its options.

    Raises `ConfigError` if no config file can be used, `UsageError` if the gateway's URL is invalid, and
    `GatewayError` if a gateway is registered or named, but does not answer.
    """
    gateway = await find_gateway(output, target_options)
    if gateway is not None:
        return _GatewayTarget(gateway)
    require_no_named_state(target_options)
    return _FileTarget(load_masked_config(output, target_options))


def file_without_gateway(output: Output, target_options: TargetOptions) -> Target | None:
    """Return the config file's servers as the target, if certainly no gateway is used.

    None if --gateway is given, or if a gateway is registered on this machine. Sends no request. Raises `ConfigError` if
    the config file cannot be used, and `GatewayError` if `$TOOLWAY_STATE` names a gateway that has not started.
    """
    if target_options.gateway is not None or (
        not target_options.no_gateway and find_local_gateway(target_options) is not None
    ):
        return None
    require_no_named_state(target_options)
    return _FileTarget(load_masked_config(output, target_options))


def is_server_url(word: str) -> bool:
    """Return True if a word of the command line is the URL of a server."""
    return word.startswith(("http://", "https://", "ws://", "wss://"))


def server_name_from_url(url: str) -> str:
    """Derive a server name from a URL: `https://mcp.sentry.dev/mcp` gives sentry."""
    host = urlsplit(url).hostname or ""
    parts = [part for part in host.split(".") if part not in ("mcp", "www", "api")]
    numeric = all(part.isdecimal() for part in parts)
    return normalize_name(host if numeric or len(parts) < 2 else parts[-2])


def url_target(output: Output, url: str, headers: Iterable[str] = ()) -> Target:
    """Return name and settings for the server at `url`, with `Name: value` headers.

    The token of a gateway is never sent to it. Raises `UsageError` if a header is invalid, and `ConfigError` if the URL
    is.
    """
    name, server = server_from_url(url, headers)
    output.mask = build_masker([server], [name])
    return _FileTarget(LoadedConfig(servers={name: server}, file=url))


def server_from_url(url: str, headers: Iterable[str] = ()) -> tuple[str, Server]:
    """Return name and settings of the server at `url`, which gets the headers `Name: value`.

    Raises `UsageError` if a header is invalid, and `ConfigError` if the URL is.
    """
    fields = {}
    for header in headers:
        name, found, value = header.partition(":")
        if not found or not name.strip():
            raise UsageError(f"invalid header {name!r}", hint="use -H 'Name: value'")
        fields[name.strip()] = value.strip()
    return server_name_from_url(url), parse_entry({"url": url, "headers": fields} if fields else {"url": url})


async def find_gateway(output: Output, target_options: TargetOptions) -> GatewayClient | None:
    """Return the gateway to use: the one of --gateway, or one that is registered on this machine. None without one.

    Raises `GatewayError` if the registered one does not answer: the servers of a file may be others, so they never
    stand in for its servers.
    """
    gateway = _select_gateway(output, target_options)
    if gateway is None:
        return None
    if target_options.gateway is None:
        await gateway.ping()
        file = f" ({gateway.named_file})" if gateway.named_file is not None else ""
        output.info(f"using the gateway at {gateway.url}{file}; --no-gateway uses the file", "dim")
    return gateway


async def require_gateway(output: Output, target_options: TargetOptions, missing: str, fix: str) -> GatewayClient:
    """Return the gateway for a command that cannot work without one.

    Raises `GatewayError` if no gateway runs or responds; `missing` is its message and `fix` its hint.
    """
    gateway = _select_gateway(output, target_options)
    if gateway is None:
        why = "--no-gateway was given" if target_options.no_gateway else explain_missing_gateway(target_options.config)
        raise GatewayError(missing, detail=why, hint=fix)
    if target_options.gateway is None:
        await gateway.ping()
    return gateway


def _select_gateway(output: Output, target_options: TargetOptions) -> GatewayClient | None:
    """Return the gateway that the options select, or None. Secrets of its servers are masked in the output."""
    if target_options.gateway is not None:
        gateway: GatewayClient | None = gateway_from_url(target_options)
    else:
        gateway = None if target_options.no_gateway else find_local_gateway(target_options)
    if gateway is not None:
        output.mask = build_masker(
            [*_servers_in_file(gateway.config), Server(url=gateway.url, headers=gateway.headers)]
        )
    return gateway


def load_masked_config(output: Output, options: TargetOptions) -> LoadedConfig:
    """Load the config file that the options select, as `load_masked_file` does."""
    return load_masked_file(output, choose_file(output, options))


def load_masked_file(
    output: Output, config: Path | None, gate: ApprovalGate | None = None, directory: Path | None = None
) -> LoadedConfig:
    """Load the config file `config`, or all scopes' files; mask their secrets in the output.

    Entries of the user's own files that need review are left out; without a `gate`, the entries of `config` are not
    checked. Raises `ConfigError` if the file is missing or cannot be read.
    """
    found = load_config(os.environ, directory or Path.cwd(), config, gate or ApprovalGate.open(os.environ))
    output.mask = build_masker(found.servers.values(), found.servers.keys())
    return found


def _servers_in_file(file: str) -> list[Server]:
    """Return the servers in the config file of a local gateway, to mask their secrets."""
    try:
        return list(load_file(file).servers.values()) if file else []
    except ConfigError:
        return []


def usable_server(loaded: LoadedConfig, name: str) -> Server:
    """Return the server with this name from a loaded configuration, if its entry can be used.

    Raises `ConfigError` if its entry is broken, and `NotFound` without an entry.
    """
    for problem in loaded.issues if name not in loaded.servers else ():
        if problem.severity == "error" and name in (problem.server, normalize_name(problem.server)):
            raise ConfigError(
                f"{problem.server}: {problem.message}",
                file=problem.file,
                line=problem.line,
                detail=problem.detail,
                hint=problem.hint,
                code=problem.code,
            )
    require_server(loaded.servers, name)
    return loaded.servers[name]


class _FileTarget:
    """Target that reads config files and starts servers in a local hub."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self.name = os.fspath(loaded.file)

    def problems(self, server: str | None = None) -> tuple[ConfigIssue, ...]:
        return tuple(p for p in self._loaded.issues if server is None or p.server in (server, ""))

    @asynccontextmanager
    async def open(
        self, only_server: str | None = None, questions: ServerQuestions | None = None
    ) -> AsyncIterator[HubApi]:
        """Open a hub in which all servers start at once, or only the named one.

        The other servers start when they are first called.
        """
        self._check_usable(only_server or None)
        loaded = self._loaded
        servers = {
            name: replace(server, lazy=only_server not in (None, name)) for name, server in loaded.servers.items()
        }
        async with _open_hub(replace(loaded, servers=servers), questions) as hub:
            yield hub

    def cached(self, only_server: str | None = None) -> CachedLists:
        self._check_usable(only_server)
        servers = self._loaded.servers
        return load_cached_lists(servers if only_server is None else {only_server: servers[only_server]})

    @asynccontextmanager
    async def open_some(self, names: Collection[str]) -> AsyncIterator[HubApi]:
        servers = self._loaded.servers
        chosen = {name: replace(server, lazy=False) for name, server in servers.items() if name in names}
        async with _open_hub(replace(self._loaded, servers=chosen)) as hub:
            yield hub

    def _check_usable(self, name: str | None) -> None:
        if name is not None:
            usable_server(self._loaded, name)


def _open_hub(loaded: LoadedConfig, questions: ServerQuestions | None = None) -> Hub:
    """Return a hub that records for the next command which servers were late."""
    from toolway.hub.hub import Hub

    logger = logging.getLogger("toolway.hub")
    if not logger.handlers:  # else Python writes its warnings to stderr, and the command names missing servers itself
        logger.addHandler(logging.NullHandler())
    hub = Hub(
        loaded,
        elicitation_callback=questions.elicit if questions is not None else None,
        sampling_callback=questions.sample if questions is not None else None,
        log_callback=questions.show_log if questions is not None else None,
        log_level=questions.log_level if questions is not None else None,
    )
    hub._core.lists.share_late_servers()
    return hub


class _GatewayTarget:
    """Target that sends all requests to a running gateway and starts no server itself."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self._remote_hub: RemoteHub | None = None
        self.name = gateway.url

    def problems(self, server: str | None = None) -> tuple[ConfigIssue, ...]:
        """Return the entries that need review. The gateway logs the other problems of its file."""
        found = self._remote_hub.config_issues if self._remote_hub is not None else ()
        return tuple(each for each in found if server in (None, each.server))

    @asynccontextmanager
    async def open(
        self, only_server: str | None = None, questions: ServerQuestions | None = None
    ) -> AsyncIterator[HubApi]:
        from toolway.cli.remote_hub import RemoteHub

        self._remote_hub = RemoteHub(self._gateway, questions)
        yield self._remote_hub

    def cached(self, only_server: str | None = None) -> None:
        return None  # the gateway itself responds quickly

    def open_some(self, names: Collection[str]) -> AbstractAsyncContextManager[HubApi]:
        return self.open()


# -- states of a target's servers --------------------------------------------------------------------------------------


async def wait_for_tools(
    servers: HubApi, output: Output, wait: float | None, only_server: str | None = None
) -> list[ServerStatus]:
    """Wait up to `wait` seconds until each server has listed its tools or failed.

    Returns the statuses. At a terminal a spinner shows the servers that are still starting. Raises `NotFound` for
    an unknown server.
    """
    with output.spinner("starting") as update:
        # Only for human readers: with many servers, collecting the statuses again and again takes longer than the rest.
        spinner_task = asyncio.ensure_future(_update_spinner(servers, update)) if output.shows_spinner else None
        try:
            await servers.list_tools(server=only_server, wait=wait)
        except CallError:
            pass  # the status has more detail
        finally:
            if spinner_task is not None:
                spinner_task.cancel()
    found = servers.status()
    if only_server is None:
        return list(found.values())
    if only_server not in found and servers.known_tools(server=only_server):
        return []  # a key without admin rights sees the tools of a server, and not its status
    require_server(found, only_server)
    return [found[only_server]]


async def load_server_info(servers: HubApi, name: str) -> ServerInfo | None:
    """Return what a server says about itself; None if it is not connected."""
    found = servers.server_info(name)
    return await found if isinstance(found, Awaitable) else found


def require_status(servers: HubApi) -> None:
    """Raise `GatewayAdmin` if server statuses are missing because the key is not an admin key."""
    denied = getattr(servers, "status_denied", None)
    if denied is not None:
        raise denied


async def _update_spinner(servers: HubApi, update: Callable[[str], None]) -> None:
    while True:
        names = [name for name, status in servers.status().items() if status.state == "starting"]
        if names:
            update(f"waiting for {len(names)}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}")
        await asyncio.sleep(_SPINNER_INTERVAL_S)


def print_missing(output: Output, statuses: Iterable[ServerStatus]) -> None:
    """Print one line per server that a list lacks."""
    for status in statuses:
        if status.state in DOWN_STATES:
            wait = "; to wait for it: --wait 30" if status.state == "starting" and not status.last_error else ""
            output.info_wrapped(f"{describe_missing(status)}{wait}", "red")


def failure_cause(status: ServerStatus) -> str:
    """Return the reason why a server is not ready, as short as its status allows."""
    _, found, cause = status.why.partition("likely cause: ")
    if found:
        return cause
    return status.last_error or status.why if status.state in DOWN_STATES else status.why


def exit_code_for_statuses(
    statuses: Iterable[ServerStatus], problems: Iterable[ConfigIssue] = (), failed_checks: Collection[str] = ()
) -> ExitCode:
    """Return a command's exit code: 0 all servers up, 8 some down, 4 all down, 3 no usable entry.

    A server that failed a health check is down.
    """
    states = [(status.server, status.state) for status in statuses if status.state != "disabled"]
    down = sum(state in DOWN_STATES or name in failed_checks for name, state in states)
    broken = any(problem.severity == "error" for problem in problems)
    if not states and broken:
        return ExitCode.CONFIG
    if states and down == len(states):
        return ExitCode.UNREACHABLE
    return ExitCode.PARTIAL if down or broken else ExitCode.OK
