"""One gateway's process from start to end: what `toolway serve` does.

The configuration file is polled. A change is applied once the file is stable and valid; only the changed servers are
restarted. A first signal drains the gateway, a second one stops it at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from toolway._os import on_reload_signal, on_stop_signals
from toolway.catalog.pin_ignore import ignored_paths
from toolway.config.approval.held_entries import REVIEW_CODE, HeldEntry, count_waiting
from toolway.config.exposure import GatewayRules, find_rules, is_loopback_host
from toolway.config.loader import LoadedConfig, load_file, normalize_name
from toolway.config.schema import Server
from toolway.config.settings import GatewaySettings
from toolway.errors import ConfigError
from toolway.gateway.admin.config import ConfigHistory
from toolway.gateway.admin.dashboard import EndedSessions
from toolway.gateway.admin.overview import RunDoctor
from toolway.gateway.cluster_hooks import NO_CLUSTER
from toolway.gateway.gateway import DRAIN_DELAY_S, Gateway
from toolway.gateway.gateway_options import ClientState, ConnectionRules, LiveSettings, ProcessControl
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.mcp.stdio import take_stdio
from toolway.gateway.mcp.view import STARTUP_WINDOW_S
from toolway.gateway.part_set import PartSet, file_database
from toolway.gateway.principals import ApiKeyStore
from toolway.gateway.state_dir import RunningGateway, StateDir
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.core import HubCore
from toolway.hub.core_options import Reporting
from toolway.part_api import registry
from toolway.part_api.part import GatewayPlace
from toolway.serve.sockets import (
    check_bindable,
    format_host,
    listen_error,
    no_auth_error,
    raise_file_limit,
)
from toolway.serve.wiring import Telemetry
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.catalog.pins import PinMode
    from toolway.cluster.node import ClusterNode
    from toolway.cluster.options import ClusterOptions
    from toolway.serve.workers import ParentLink
    from toolway.upstream.status import ServerStatus

KEPT_BYTES: Final = 2 * 1024 * 1024  # glibc then keeps up to twice as much
FILE_POLL_INTERVAL_S: Final = 0.5  # seconds between two polls of the configuration file
PART_DRAIN_S: Final = 10.0  # seconds that work of a part may take during a shutdown
MAX_NAMED_SERVERS: Final = 5  # servers that the first log line names
_DOWN_STATES: Final = ("starting", "down")
_log = logging.getLogger("toolway.gateway")


class GatewayProcess:
    """The process of `toolway serve`: a gateway with its configuration file, state, and cluster node.

    With `parent`, it is one of several workers that share an address.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        state_dir: StateDir,
        *,
        auth: bool = True,
        doctor: RunDoctor | None = None,
        cluster: ClusterOptions | None = None,
        parent: ParentLink | None = None,
    ) -> None:
        self._file_config = self._active_config = loaded  # last read, and in use; in a cluster these may differ
        stamps = _config_stamps(loaded)  # now: a change during the start must not be missed
        self._state_dir = state_dir
        self._parent = parent
        self._listen_host = "127.0.0.1"  # also for a client over stdio
        self._cluster_node = _create_cluster_node(cluster, state_dir, auth=auth) if cluster is not None else None
        self._api_keys = _open_key_store(state_dir, self._cluster_node) if auth else None
        settings = loaded.gateway
        audit = settings.audit.with_folder(state_dir.folder) if settings.audit is not None else None
        if audit is not None and cluster is not None:
            audit = audit.for_cluster(cluster.tenant_key)
        alerts = settings.alerts
        if alerts is not None and not alerts.folder:
            alerts = replace(alerts, folder=str(state_dir.folder / "alerts"))
        reporting = Reporting(audit, alerts)
        if self._cluster_node is None:
            self.hub = HubCore(loaded, callbacks=NoHubCallbacks(), reporting=reporting)
        else:
            options = self._cluster_node.hub_options
            self.hub = HubCore({}, callbacks=NoHubCallbacks(), reporting=reporting, **options)
        key = cluster.tenant_key if cluster is not None else state_dir.read_sealing_key()
        node = self._cluster_node
        self._parts = PartSet(
            self.hub,
            self._api_keys,
            key=key,
            open_database=node.open_part_database if node and self._shares_config else file_database(state_dir.folder),
            node_count=node.context.node_count if node is not None else lambda: 1,
            config_file=lambda: self._config_path,
            gateway_url=lambda: self._active_config.gateway.public_url or self._loopback_url,
            place=self._find_place(),
            alerts=alerts,
            parts=registry.in_use(),
        )
        if self._shares_config:
            self._parts.check(settings.parts)  # before they are given to all nodes
        else:
            self._parts.start(settings.parts)
        self._apply_start_rules(settings)
        self.telemetry = Telemetry(settings.telemetry, os.environ)
        self.telemetry.attach(self.hub)
        self.gateway = Gateway(
            self.hub,
            key,
            self._api_keys,
            settings=LiveSettings(
                self._toolsets,
                lambda: self._active_config.gateway.admission,
                lambda: self._active_config.gateway.invisible_characters,
                lambda: self._active_config.gateway.drop_nulls,
            ),
            control=ProcessControl(
                self.reload,
                ConfigHistory(self._shown_config, self.reload, os.environ) if loaded.file else None,
                doctor,
            ),
            connections=ConnectionRules(settings.hosts, settings.origins, settings.local_token_from),
            clients=ClientState(
                rate_limiter=self._cluster_node.rate_limiter if self._cluster_node is not None else None,
                ended_sessions=EndedSessions(state_dir.folder / "ended-sessions.json"),
            ),
            metrics=self.telemetry.metrics,
            cluster=self._cluster_node.gateway_hooks if self._cluster_node is not None else NO_CLUSTER,
            parts=self._parts,
        )
        if not settings.telemetry.calls:
            self.gateway.stop_recording()
        self._reload_lock = self._parts.servers_lock  # one reload at a time
        self._applied_stamps = [*stamps, *self._parts.stamps(settings)]
        if self._cluster_node is not None:
            self._cluster_node.router.in_process = self._parts.server_names  # each node has them
        self._tool_filters = _create_tool_filters(settings)
        self._draining_since = 0.0  # when the parent began to stop the other workers
        self._loopback_url = ""  # URL of this gateway if only this machine can reach it
        if self._cluster_node is not None and self._shares_config:
            self._cluster_node.use_pins(self.hub, self._pin_mode, self._ignored_parts)
        else:
            self.hub.lists.use_pins(state_dir.folder, self._pin_mode, self._ignored_parts)
        self._stop_requested = asyncio.Event()
        self._fast_shutdown = asyncio.Event()
        self._reload_tasks: set[asyncio.Task[None]] = set()
        self._last_key_error = ""  # last logged error about the file of API keys

    def _find_place(self) -> GatewayPlace:
        """Return the place of this process among those that serve the gateway."""
        folder, node = self._state_dir.folder, self._cluster_node
        if node is not None and self._shares_config:
            return GatewayPlace(folder, node.open_part_store, node.is_first)
        worker = node.options.worker if node is not None else None
        return GatewayPlace(folder, is_first_worker=worker is None or worker.is_first)

    def _apply_start_rules(self, settings: GatewaySettings) -> None:
        """Apply what is required of a server process: start guards and sandbox. Running servers stay as they are."""
        rules = self._find_rules(settings)
        self.hub.spawner.required_guards = rules.required_guards
        self.hub.spawner.default_sandbox = rules.default_sandbox

    def _find_rules(self, settings: GatewaySettings) -> GatewayRules:
        return find_rules(settings, self._listen_host, in_cluster=self._shares_config)

    @property
    def public_reason(self) -> str:
        """Why this gateway counts as public; "" if only this machine can reach it."""
        return self._find_rules(self._active_config.gateway).public_reason

    def _pin_mode(self, server: str) -> PinMode:
        """Return a server's pin mode: whether changed definitions of its tools are only reported, or held for review.

        If nothing is set, they are held if the gateway is public. For servers of parts they are only reported, because
        the administrator runs those servers.
        """
        if server in self._parts.server_names and server not in self._active_config.servers:
            return "warn"
        return self._find_rules(self._active_config.gateway).pin_mode

    def _ignored_parts(self, server: str, name: str) -> Sequence[str]:
        """Return the parts of a tool definition that are ignored when comparing it with its pin."""
        rules = self._active_config.gateway.ignored_changes
        return ignored_paths(rules, server, name) if rules else ()

    @property
    def node_id(self) -> str:
        """Id of this node in its cluster; empty if cluster mode is off."""
        return self._cluster_node.id if self._cluster_node is not None else ""

    @property
    def _shares_config(self) -> bool:
        """Return True if the configuration is in a cluster database.

        Workers of one machine each read the file.
        """
        return self._cluster_node is not None and self._parent is None

    @property
    def _config_path(self) -> str:
        """Absolute path of the configuration file.

        Empty if this is a cluster node without a file: its configuration is in the database.
        """
        return os.path.abspath(self._file_config.file) if self._file_config.file else ""

    def _shown_config(self) -> LoadedConfig:
        """Return the configuration for administrators: current content, problems, and entries to review.

        The problems include the ones in the files of parts. The entries to review come from the file: in a cluster, the
        configuration in use is from the database, which has none.
        """
        issues = (*self._active_config.issues, *self._parts.issues)
        return replace(self._active_config, issues=issues, held=self._file_config.held)

    def _toolsets(self) -> Mapping[str, ToolFilter]:
        return self._tool_filters

    async def run(
        self, host: str, port: int, tls: ssl.SSLContext | None, on_ready: Callable[[str], None], delay: float
    ) -> None:
        """Serve HTTP clients until a signal stops the process; then let active calls finish (drain).

        `on_ready` is called with the gateway's URL. `delay` is the first wait of the drain, in which load balancers
        notice it. Raises `ConfigError` if the address cannot be bound, or if it is public and authentication is off.
        """
        self._listen_host = host
        if self._api_keys is None and self.public_reason:
            raise no_auth_error(self.public_reason)
        self._apply_start_rules(self._active_config.gateway)
        raise_file_limit()
        self._install_signal_handlers()
        if self._parent is None:
            check_bindable(host, port)  # before any server is started
        else:
            port = self._parent.port  # bound by the parent
            self._parent.watch(self._on_others_draining, self.stop)
            await self._parent.wait_turn(self._stop_requested)
            if self._stop_requested.is_set():
                return
        async with self._cluster_connection(host, port, tls), self.hub:
            self.telemetry.start()
            await self._start_cluster_node()
            await self._parts.begin(self._active_config)
            await self._parts.prepare()
            self.gateway.check_refusals()
            try:
                port = await self._listen(host, port, tls)
            except OSError as exc:
                raise listen_error(host, port, exc) from None
            url = f"{'https' if tls else 'http'}://{format_host(host)}:{port}"
            self._loopback_url = url if is_loopback_host(host) else ""
            if self._parent is None:
                self._state_dir.write_running(RunningGateway(url, os.getpid(), self._config_path))
            else:
                self._parent.announce_ready()
            watching = asyncio.create_task(self._watch_file())
            background = asyncio.create_task(self._parts.run())
            starting = asyncio.create_task(self._freeze_gc())
            _keep_freed_memory()
            on_ready(url)
            try:
                await self._stop_requested.wait()
                watching.cancel()
                await self._drain(delay)
            finally:
                watching.cancel()
                background.cancel()
                starting.cancel()
                self._state_dir.remove_running()
                await self._parts.finish(0.0 if self._fast_shutdown.is_set() else PART_DRAIN_S)
                await self.telemetry.close()
                await self._parts.close()
        if self._parent is not None:
            self._parent.clean_up()

    async def _listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Join the cluster, if there is one, and listen for clients. Return the port.

        Raises `OSError` if the address cannot be bound.
        """
        if self._parent is None:
            port = await self.gateway.listen(host, port, tls)
            await self._join_cluster(host, port, tls)
            return port
        assert self._cluster_node is not None and self._cluster_node.options.worker is not None
        await self.gateway.http_server.listen_unix(self._cluster_node.options.worker.socket_path)
        await self._join_cluster(host, port, tls)
        return await self.gateway.listen(host, port, tls, reuse_port=True)

    def _on_others_draining(self) -> None:
        """Report this worker as not ready, because its parent is stopping the other workers."""
        self.gateway.router.ready = False
        self._draining_since = asyncio.get_running_loop().time()

    async def _drain(self, delay: float) -> None:
        self._parts.drain()
        if self._parent is not None:
            waited = asyncio.get_running_loop().time() - self._draining_since if self._draining_since else 0.0
            await self.gateway.drain(self._fast_shutdown, 0.0 if self._parent.is_orphan else max(0.0, delay - waited))
            return
        leaving = asyncio.create_task(self._cluster_node.drain()) if self._cluster_node is not None else None
        await self.gateway.drain(self._fast_shutdown, delay)
        if leaving is not None:
            if self._fast_shutdown.is_set():
                leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    # -- cluster ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _cluster_connection(self, host: str, port: int, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
        """Connect this node to its cluster while the context is open. No-op without a cluster.

        On entry, connects to the database and loads the shared configuration, retrying forever. Raises
        `ServerUnavailable` if a stop signal arrives first.
        """
        if self._cluster_node is None:
            yield
            return
        from toolway.cluster.bootstrap import wait_for_database

        self.gateway.router.ready = False
        try:
            self._active_config = await wait_for_database(
                partial(self._cluster_node.open, self._active_config), self._stop_requested, host, port, tls
            )
            yield
        finally:
            await self._cluster_node.close()

    async def _start_cluster_node(self) -> None:
        if self._cluster_node is not None:
            self._apply_start_rules(self._active_config.gateway)
            if self._shares_config:
                self._parts.start(self._active_config.gateway.parts)
            self._parts.on_servers_changed()
            await self._cluster_node.attach(self.hub, self.gateway, self._apply_cluster_config)
            if not self._shares_config:
                from toolway.cluster.workers.siblings import WorkerKeyStore

                keys = self._api_keys if isinstance(self._api_keys, WorkerKeyStore) else None
                self._cluster_node.gateway_hooks.attach_workers(self.hub, self._reload_file, keys)
                await self._apply_cluster_config(self._active_config)

    async def _join_cluster(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        if self._cluster_node is not None:
            advertised_host = await self._cluster_node.join(host, port, tls=tls is not None)
            self.gateway.set_advertised_host(advertised_host)
            self.gateway.router.ready = True

    async def _freeze_gc(self) -> None:
        """Call `gc.freeze()` after the first servers have started.

        Otherwise each full garbage collection would scan all those objects and block the event loop for 50 ms.
        """
        await self.hub.servers.wait_first_starts(STARTUP_WINDOW_S)
        gc.collect()
        gc.freeze()
        summary = summarize_servers(self.hub.servers.status().values())
        if summary:
            _log.info("%s", summary)

    async def run_stdio(self, endpoint: str = "") -> None:
        """Serve one client over stdin and stdout, until the client closes stdin or a signal arrives.

        `endpoint` is "" or `search`, as in the paths `/mcp` and `/mcp/search`.
        """
        raise_file_limit()
        self._install_signal_handlers()
        if self._file_config.held:  # over stdio, the command itself prints nothing
            _log_waiting(self._file_config.held)
        async with self.hub:
            self.telemetry.start()
            await self._parts.begin(self._active_config)
            watching = asyncio.create_task(self._parts.run())
            client = asyncio.create_task(self.gateway.stdio_client(endpoint).serve(*take_stdio()))
            ending = asyncio.create_task(self._stop_requested.wait())
            await asyncio.wait({client, ending}, return_when=asyncio.FIRST_COMPLETED)
            for task in (client, ending, watching):
                task.cancel()
            await asyncio.gather(client, ending, watching, return_exceptions=True)
            await self.gateway.subscriptions.close()
            await self._parts.finish(0.0)
            await self.telemetry.close()
            await self._parts.close()

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        on_stop_signals(loop, self.stop)
        on_reload_signal(loop, self._schedule_reload)

    def stop(self) -> None:
        """Request a stop after draining active calls; a second call skips the drain."""
        if self._stop_requested.is_set():
            self._fast_shutdown.set()
        self._stop_requested.set()

    # -- configuration file -------------------------------------------------------------------------------------------

    async def reload(self) -> Json:
        """Reload the configuration file, in all workers. Return the changes as JSON.

        Raises `ConfigError` if the file is invalid; the old configuration then stays in use.
        """
        result = await self._reload_file()
        workers = self._cluster_node.gateway_hooks.workers if self._cluster_node is not None else None
        if workers is not None:
            result = {**result, "problems": [*result.get("problems", ()), *await workers.reload_others()]}
        return result

    async def _reload_file(self, *, only_changes: bool = False) -> Json:
        """Reload the configuration file in this process. Raises `ConfigError`.

        In a cluster, its content becomes the configuration of all nodes. With `only_changes`, that only happens if the
        content has changed.
        """
        async with self._reload_lock:
            if self._api_keys is not None:
                self._api_keys.reload()
            if not self._config_path:
                return {"changed": {}}  # without a file, only the database is used, and it is polled anyway
            loaded = await asyncio.to_thread(self._file_config.reload or partial(load_file, self._file_config.file))
            _reject_new_errors(self._file_config, loaded)
            self._report_held(loaded)
            kept = _held_servers(self._file_config, loaded)
            if kept and self._shares_config:
                raise ConfigError(
                    count_waiting(kept), detail="their entries were changed, and not by toolway", code=REVIEW_CODE
                )
            self._file_config = loaded = replace(loaded, servers={**loaded.servers, **kept})
            if self._cluster_node is not None and self._shares_config:
                # The change feed delivers it to this node too.
                self._parts.check(loaded.gateway.parts)
                await _reject_broken_files(loaded)
                await self._cluster_node.publish_config(loaded, force=True, only_changes=only_changes)
                return {"changed": {}, "published_to": "all nodes"}
            changes = await self._apply_config(loaded)
            if self._cluster_node is not None:
                await self._cluster_node.publish_servers(loaded.servers)
            return changes

    def _report_held(self, loaded: LoadedConfig) -> None:
        """Log entries that need review since this reload, and add an event for each."""
        known = {each.digest for each in self._file_config.held}
        new = [each for each in loaded.held if each.digest not in known]
        _log_waiting(new)
        for each in new:
            self.gateway.activity.add_event("change", "", f"{each.issue.message}: {each.issue.hint}")

    async def _apply_cluster_config(self, loaded: LoadedConfig) -> None:
        """Apply the configuration that all nodes of the cluster share."""
        async with self._reload_lock:
            await self._apply_config(loaded)

    async def _apply_config(self, loaded: LoadedConfig) -> Json:
        """Apply the configuration `loaded`: restart only the servers that changed."""
        servers = self._cluster_node.local_servers(loaded.servers) if self._cluster_node is not None else loaded.servers
        self._parts.check(loaded.gateway.parts)
        self._parts.apply(loaded.gateway.parts)
        await self._parts.load(loaded)
        servers = self._parts.with_servers(servers)
        self._apply_start_rules(loaded.gateway)
        changes = await self.hub.servers.reload(replace(loaded, servers=servers))
        self._parts.on_servers_changed()
        previous, self._active_config = self._active_config.gateway, loaded
        self._tool_filters = _create_tool_filters(loaded.gateway)
        pins_before, pins_now = (self._find_rules(each).pin_mode for each in (previous, loaded.gateway))
        if (pins_before, previous.ignored_changes) != (pins_now, loaded.gateway.ignored_changes):
            self.hub.lists.apply_pin_mode()
        problems_of_parts = await self._parts.reload(loaded.gateway.parts)
        self.gateway.on_config_changed(loaded.gateway.hosts, loaded.gateway.origins)
        if previous.audit != loaded.gateway.audit:
            _log.warning("audit settings changed in the file: restart the gateway to apply them")
        if (previous.host, previous.port) != (loaded.gateway.host, loaded.gateway.port):
            _log.warning("gateway address changed in the file: restart the gateway to apply it")
        if previous.telemetry != loaded.gateway.telemetry:
            _log.warning("telemetry settings changed in the file: restart the gateway to apply them")
        problems = [problem.message for problem in (*loaded.issues, *self._parts.issues)]
        return {"changed": changes, "problems": [*problems, *problems_of_parts]}

    def _schedule_reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload_and_log())
        self._reload_tasks.add(task)
        task.add_done_callback(self._reload_tasks.discard)

    async def _reload_and_log(self, *, only_changes: bool = False) -> None:
        try:
            result = await self._reload_file(only_changes=only_changes)  # each worker watches the file, gets signals
        except ConfigError as exc:
            _log.error("configuration rejected; the old one stays in use: %s", exc)
        except Exception:
            _log.exception("configuration not applied: internal error")
        else:
            changed = ", ".join(f"{name} {change}" for name, change in result["changed"].items())
            otherwise = "given to all nodes" if "published_to" in result else "nothing changed"
            _log.info("configuration reloaded: %s", changed or otherwise)

    async def _watch_file(self) -> None:
        seen = self._applied_stamps
        while True:
            await asyncio.sleep(FILE_POLL_INTERVAL_S)
            if not self._shares_config:
                self._reload_keys()
            before, seen = seen, self._file_stamps()
            if seen[0] is None and before[0] is not None:
                _log.error("%s was deleted; its last content stays in use", self._active_config.file)
            is_stable = seen == before  # since the last poll
            if seen[0] is not None and seen != self._applied_stamps and is_stable:
                self._applied_stamps = seen
                await self._reload_and_log(only_changes=True)

    def _file_stamps(self) -> list[object]:
        """Return modification stamps of the configuration file, and of files that it or a part depends on."""
        return [*_config_stamps(self._file_config), *self._parts.stamps(self._file_config.gateway)]

    def _reload_keys(self) -> None:
        """Reload the file of API keys, which another process may have changed.

        If that fails, the old API keys stay valid; an error that repeats is logged once.
        """
        if self._api_keys is None:
            return
        try:
            self._api_keys.reload()
        except (ConfigError, OSError) as exc:
            if str(exc) != self._last_key_error:
                _log.error("API keys not reloaded; the old ones stay valid: %s", exc)
            self._last_key_error = str(exc)
        else:
            self._last_key_error = ""


def _keep_freed_memory() -> None:
    """Let the C library keep a few MB of freed memory for the next results.

    Otherwise every large result would cost a page fault per 4 kB again. glibc keeps twice the size of the largest
    freed mapped block. This one is never written to, so it costs no memory.
    """
    bytes(KEPT_BYTES)


def _open_key_store(state_dir: StateDir, cluster_node: ClusterNode | None) -> ApiKeyStore:
    if cluster_node is None:
        return state_dir.open_key_store()
    if cluster_node.options.worker is not None:
        from toolway.cluster.workers.siblings import WorkerKeyStore

        return WorkerKeyStore(state_dir.keys_file, state_dir.read_token())
    with suppress(ConfigError, OSError):
        if state_dir.open_key_store().list_keys():
            _log.warning("local API keys are not valid in a cluster: create them again in the cluster")
    return cluster_node.api_keys


def _create_cluster_node(cluster: ClusterOptions, state_dir: StateDir, *, auth: bool) -> ClusterNode:
    """Create the cluster node. Raises `ConfigError` if authentication is off."""
    if not auth:
        raise ConfigError(
            "a cluster requires authentication",
            detail="--no-auth was given together with --cluster",
            hint="remove --no-auth",
            code="E-ADDRESS",
        )
    from toolway.cluster.node import ClusterNode  # lazy: loads the database and NATS libraries

    return ClusterNode(cluster, state_dir.read_token())


def summarize_servers(statuses: Iterable[ServerStatus]) -> str:
    """Return a line about the servers after startup: how many are ready, and why others are not."""
    states = [status for status in statuses if status.state != "disabled"]
    if not states:
        return ""
    ready = sum(status.state == "ready" for status in states)
    waiting = sum(status.state == "idle" for status in states)
    down = [
        f"{status.server} ({status.last_error or status.state})" for status in states if status.state in _DOWN_STATES
    ]
    parts = [f"{ready} of {len(states)} servers ready"]
    if waiting:
        parts.append(f"{waiting} start at their first call")
    if down:
        more = f" and {len(down) - MAX_NAMED_SERVERS} more" if len(down) > MAX_NAMED_SERVERS else ""
        parts.append(f"down: {', '.join(down[:MAX_NAMED_SERVERS])}{more}")
    return "; ".join(parts)


def _reject_new_errors(before: LoadedConfig, now: LoadedConfig) -> None:
    """Raise `ConfigError` if a server's entry was valid before this reload and now is not.

    Someone who breaks an entry while the gateway runs does not mean to remove the server. Entries that need review do
    not count.
    """
    known_errors = {(problem.server, problem.file) for problem in before.issues if problem.severity == "error"}
    for problem in now.issues:
        is_known = problem.code == REVIEW_CODE or (problem.server, problem.file) in known_errors
        if problem.severity == "error" and not is_known:
            raise ConfigError(
                problem.message,
                file=problem.file,
                line=problem.line,
                detail=problem.detail,
                hint=problem.hint,
                code=problem.code,
            )


async def _reject_broken_files(loaded: LoadedConfig) -> None:
    """Raise `ConfigError` if a part's file is invalid, so all nodes keep what they have."""
    for part in registry.in_use():
        for issue in await asyncio.to_thread(part.find_issues, loaded, only_approved=True):
            raise ConfigError(
                issue.message, file=issue.file, line=issue.line, detail=issue.detail, hint=issue.hint, code=issue.code
            )


def _log_waiting(held: Iterable[HeldEntry]) -> None:
    """Log how many entries need review: workflows, and everything that runs or sends something."""
    found = list(held)
    workflows = [each.server for each in found if each.kind == "workflow"]
    others = [each.server for each in found if each.kind != "workflow"]
    for names, kind in ((others, "command"), (workflows, "workflow")):
        if names:
            _log.warning("%s", count_waiting(names, kind))


def _held_servers(before: LoadedConfig, now: LoadedConfig) -> dict[str, Server]:
    """Return servers whose entries changed and need review, as defined before this reload."""
    held = (each for each in now.held if each.kind == "server")
    names = {name for each in held for name in (each.name, normalize_name(each.name))}
    return {name: before.servers[name] for name in names if name in before.servers and name not in now.servers}


def _config_stamps(loaded: LoadedConfig) -> list[object]:
    """Return stamps of a config file and the files it depends on, which differ if a file was changed.

    A missing file has None.
    """
    return [*map(_file_stamp, (loaded.file, *loaded.watched_files))]


def _file_stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _create_tool_filters(settings: GatewaySettings) -> dict[str, ToolFilter]:
    return {
        name: ToolFilter(each.tools, each.rename, each.describe, each.resources, each.search, each.show)
        for name, each in settings.toolsets.items()
    }


__all__ = ["DRAIN_DELAY_S", "GatewayProcess"]
