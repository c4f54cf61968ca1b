"""Processes of `toolway serve`: one gateway, alone or as a node of a cluster, or several workers.

What needs an extra is loaded only if a cluster is configured, and the doctor when it is asked.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolway._os import on_stop_signals
from toolway.cli.exit_codes import ExitCode, exit_code_for
from toolway.cli.output import Output
from toolway.cli.targets import load_masked_file
from toolway.config.exposure import public_reason
from toolway.config.locations import add_private_file
from toolway.config.masking import create_mask
from toolway.config.scopes import ApprovalGate
from toolway.config.settings import GatewaySettings
from toolway.errors import ConfigError, ToolwayError
from toolway.gateway.principals import SEARCH_ENDPOINT
from toolway.gateway.state_dir import StateDir
from toolway.serve.own_process import protect_process
from toolway.serve.process import GatewayProcess
from toolway.serve.sockets import tls_context
from toolway.serve.workers import WorkerPool, reject_combination
from toolway.telemetry.logging import LogSink, configure_logging

if TYPE_CHECKING:
    import ssl

    from toolway.cluster.options import ClusterOptions
    from toolway.config.loader import LoadedConfig
    from toolway.config.schema import Server
    from toolway.gateway.admin.overview import RunDoctor
    from toolway.serve.workers import ParentLink
    from toolway.types import Json
    from toolway.upstream.process.spawner import Spawner

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = None  # type: ignore[assignment] # an extra


def run_workers(
    output: Output, config: Path | None, host: str | None, port: int | None, count: int, *, tls: bool
) -> int:
    """Run several gateway processes at one address until a signal stops them, and return the exit code."""

    environ = dict(os.environ)
    protect_process()

    async def main() -> int:
        loaded = load_masked_file(output, config, _open_gate(config))
        output.print_problems(loaded.issues)
        audit = loaded.gateway.audit
        if audit is not None and audit.to != "postgresql":
            raise reject_combination(
                f"an audit log in a file ({audit.to})" if not audit.address else f"an audit log in {audit.to}",
                "such a log has one writer",
            )
        configure_logging(
            "json" if output.as_json else loaded.gateway.telemetry.log,
            verbose=output.verbose,
            quiet=output.quiet,
            mask=create_mask(lambda: loaded.servers),
        )
        state_dir = StateDir.default(os.environ)
        state_dir.read_sealing_key()  # created before the workers need it
        pool = WorkerPool(count, state_dir, os.path.abspath(loaded.file), environ)
        scheme = "https" if tls else "http"
        listen_port = loaded.gateway.port if port is None else port
        listen_host = host or loaded.gateway.host
        announce = _make_announcer(output, True, "", lambda: public_reason(loaded.gateway, listen_host))
        return await pool.run(listen_host, listen_port, scheme, announce)

    try:
        return asyncio.run(main())
    except ToolwayError as exc:
        output.print_error(exc)
        return exit_code_for(exc)


def run_serve(
    output: Output,
    config: Path | None,
    host: str | None,
    port: int | None,
    certificate: Path | None,
    key: Path | None,
    *,
    auth: bool,
    stdio: bool,
    search: bool = False,
    drain_delay: float,
    cluster: ClusterOptions | None = None,
    parent: ParentLink | None = None,
) -> int:
    """Run the gateway until a signal stops it, and return the exit code.

    With `cluster`, run it as a cluster node; with `parent`, as one of several workers.
    """

    protect_process(cluster)
    if certificate is not None:
        add_private_file(key or certificate)

    gate = _open_gate(config)

    async def main() -> int:
        tls = tls_context(certificate, key) if certificate is not None and not stdio else None
        stop = asyncio.Event()
        try:
            loaded = load_masked_file(output, config, gate)
        except ConfigError as exc:
            if cluster is None:
                raise
            loaded = await load_from_database(exc, cluster, stop, host, port, tls)
            output.info("no config file on this machine; serving the configuration of the cluster", "dim")
        if not stdio and parent is None:
            output.print_problems(loaded.issues)
        doctor = build_doctor(
            config,
            None if loaded.file else lambda: serving.hub.servers.entries,
            gate,
            spawner=lambda: serving.hub.spawner,
        )
        serving = GatewayProcess(
            loaded, StateDir.default(os.environ), auth=auth, doctor=doctor, cluster=cluster, parent=parent
        )
        telemetry = loaded.gateway.telemetry
        configure_logging(
            "json" if output.as_json else telemetry.log,
            verbose=output.verbose,
            quiet=output.quiet,
            mask=create_mask(lambda: serving.hub.servers.entries),
        )
        if stop.is_set():
            serving.stop()
        log = LogSink(calls=telemetry.calls)
        serving.hub.instrumentation.add_sink(log)
        with closing(log):
            if stdio:
                await serving.run_stdio(SEARCH_ENDPOINT if search else "")
                return ExitCode.OK
            listen_host = host or loaded.gateway.host
            await serving.run(
                listen_host,
                loaded.gateway.port if port is None else port,
                tls,
                _make_announcer(output, auth, serving.node_id, lambda: serving.public_reason)
                if parent is None
                else lambda url: None,
                drain_delay,
            )
            return ExitCode.OK

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(main())
    except ToolwayError as exc:
        output.print_error(exc)
        return exit_code_for(exc)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _open_gate(config: Path | None) -> ApprovalGate:
    """Return the gate that leaves out config entries until you review them.

    If someone at a terminal names a config file (--config), its entries are trusted.
    """

    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    return ApprovalGate.open(os.environ, "take" if config is not None and at_terminal else "hold")


def _make_announcer(output: Output, auth: bool, node: str, public_reason: Callable[[], str]) -> Callable[[str], None]:
    """Return a function that prints where the gateway serves, and why it counts as public."""

    def announce(url: str) -> None:
        reason = public_reason()
        if output.as_json:
            output.print_json(
                {"url": f"{url}/mcp", "auth": auth, "pid": os.getpid(), "public": reason}
                | ({"node": node} if node else {})
            )
            sys.stdout.flush()
        output.info(f"serving at {url}/mcp", "green")
        if reason:
            output.info(f"public, because {reason}: stricter defaults apply")
        if node:
            output.info(f"as node {node} of a cluster: toolway cluster nodes")
        if auth:
            output.info("open the dashboard: toolway ui")
            output.info("connect a client: toolway connect claude-code --print, or cursor, vscode, codex, generic")
        output.info("Ctrl-C stops it after running calls have finished", "dim")

    return announce


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    return cast(Callable[[], asyncio.AbstractEventLoop] | None, new_event_loop)


async def load_from_database(
    file_error: ConfigError,
    cluster: ClusterOptions,
    stop: asyncio.Event,
    host: str | None,
    port: int | None,
    tls: ssl.SSLContext | None,
) -> LoadedConfig:
    """Load the configuration from the cluster database, for a node without a config file.

    Waits until the database answers or a signal sets `stop`. Raises `ConfigError` if the database has no configuration,
    or if a config file exists but is unusable.
    """

    if file_error.code != "E-CONFIG-NONE":
        raise file_error
    from toolway.cluster.bootstrap import load_initial_config, wait_for_database

    on_stop_signals(asyncio.get_running_loop(), stop.set, interrupt=False)
    defaults = GatewaySettings()
    address = (host or defaults.host, defaults.port if port is None else port)
    found = await wait_for_database(partial(load_initial_config, cluster), stop, *address, tls)
    if found is None:
        raise ConfigError(
            "found no configuration on this machine or in the cluster database",
            detail=f"{file_error.detail}; the database has no configuration for tenant {cluster.tenant!r}",
            hint="start one node with a file, once: toolway serve --config FILE; or select a tenant that"
            " has a configuration: --tenant NAME",
            code=file_error.code,
        )
    return found


# -- doctor of the gateway ---------------------------------------------------------------------------------------------


def build_doctor(
    config: Path | None,
    current_servers: Callable[[], Mapping[str, Server]] | None = None,
    gate: ApprovalGate | None = None,
    *,
    spawner: Callable[[], Spawner] | None = None,
) -> RunDoctor:
    """Return the function that the gateway calls to run the doctor (all checks) on its servers.

    `current_servers` replaces the config file if there is none; the `spawner` of the gateway knows their rules.
    An entry that still needs a review at the `gate` is not started. The doctor is loaded on its first use.
    """

    async def run_checks_as_json(name: str | None) -> Json:
        from toolway.cli.gateway_doctor import check_servers

        rules: dict[str, Any] = {}
        if spawner is not None:
            rules = {"required_guards": spawner().required_guards, "default_sandbox": spawner().default_sandbox}
        return await check_servers(name, config, None if current_servers is None else current_servers(), gate, rules)

    return run_checks_as_json
