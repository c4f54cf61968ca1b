"""`toolway serve`: run the gateway, alone or as a node of a cluster.

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
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from toolway._os import on_stop_signals, usable_cores
from toolway._os.support import missing
from toolway.cli.exit_codes import ExitCode, UsageError, exit_code_for
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.cli.targets import load_masked_file
from toolway.cluster.options import ClusterOptions, Flags, read_options, require_cluster_extra
from toolway.config.exposure import public_reason
from toolway.config.locations import add_private_file
from toolway.config.masking import create_mask
from toolway.config.scopes import ApprovalGate
from toolway.config.settings import GatewaySettings
from toolway.errors import ConfigError, ToolwayError, platform_error
from toolway.gateway.principals import SEARCH_ENDPOINT
from toolway.gateway.state_dir import StateDir
from toolway.serve.own_process import protect_process
from toolway.serve.process import GatewayProcess
from toolway.serve.sockets import tls_context
from toolway.serve.workers import WorkerPool, count_workers, read_worker, reject_combination
from toolway.telemetry.logging import LogSink, configure_logging

if TYPE_CHECKING:
    import ssl

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

CLUSTER_VARIABLE: Final = "TOOLWAY_CLUSTER"


def serve(
    context: CommandContext,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0 = any free one.")] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve the parent process over stdin and stdout.")] = False,
    search: Annotated[
        bool, typer.Option("--search", help="With --stdio: list the meta-tools of tool search, not all tools.")
    ] = False,
    certificate: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="TLS certificate.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="TLS key, if not in --cert.")] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Accept requests without a token.", hidden=True)] = False,
    drain_delay: Annotated[float, typer.Option("--drain-delay", metavar="SECONDS", min=0, hidden=True)] = 3.0,
    workers: Annotated[
        str | None, typer.Option("--workers", metavar="N", help="Processes at this address; auto: one per core.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NATS", help="Join a cluster through these NATS servers.")
    ] = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="Database of the cluster: postgresql://…")
    ] = None,
    cluster_key_file: Annotated[
        str | None, typer.Option("--cluster-key-file", metavar="FILE", help="File with the key of the cluster.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="URL", help="URL for other nodes; none = over NATS.")
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Name of this node.")] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="LABELS", help="Labels servers can require: gpu,region=eu")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option("--capacity", metavar="N", help="Maximum number of servers this node owns.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Tenant to serve.")] = None,
    cluster_name: Annotated[
        str | None, typer.Option("--cluster-name", metavar="NAME", help="Name, if clusters share a NATS server.")
    ] = None,
    nats_credentials: Annotated[
        str | None, typer.Option("--nats-credentials", metavar="FILE", help="NATS credentials file (.creds).")
    ] = None,
    insecure_nats: Annotated[
        bool, typer.Option("--insecure-nats", help="Use a NATS on another machine without authentication.")
    ] = False,
) -> CommandResult:
    """Run the gateway until Ctrl-C, alone or as a node of a cluster.

    Cluster options can also be set in the environment: TOOLWAY_CLUSTER, TOOLWAY_DATABASE and so on.
    """
    options = read_cluster_options(
        cluster=cluster,
        database=database,
        cluster_name=cluster_name,
        tenant=tenant,
        node=node,
        advertise=advertise,
        capacity=capacity,
        labels=labels,
        cluster_key_file=cluster_key_file,
        nats_credentials=nats_credentials,
        insecure_nats=insecure_nats or None,
    )
    worker = None
    if workers is not None:
        if lacked := missing("workers"):
            raise platform_error(*lacked)

        worker = read_worker(os.environ)
        if worker is None and (count := check_workers(workers, options, stdio=stdio, auth=not no_auth)) > 1:
            return run_workers(
                context.output, context.target_options.config, host, port, count, tls=certificate is not None
            )
    return run_serve(
        context.output,
        context.target_options.config,
        host,
        port,
        certificate,
        key,
        auth=not no_auth,
        stdio=stdio,
        search=search,
        drain_delay=drain_delay,
        cluster=options if worker is None else worker[0],
        parent=None if worker is None else worker[1],
    )


# -- workers -----------------------------------------------------------------------------------------------------------


def check_workers(text: str, cluster: ClusterOptions | None, *, stdio: bool, auth: bool) -> int:
    """Return the number of workers. Raises `ConfigError` if --workers is invalid or combined with another option."""

    if cluster is not None:
        raise reject_combination("--cluster", "a node of a cluster is one process")
    if stdio:
        raise reject_combination("--stdio", "one client over stdin and stdout has one process")
    if not auth:
        raise reject_combination("--no-auth", "workers authenticate each other")
    count = count_workers(text, usable_cores())
    if count > 1:
        require_cluster_extra()
    return count


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
            raise reject_combination(f"an audit log in a file ({audit.to})", "such a log has one writer")
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


# -- process -----------------------------------------------------------------------------------------------------------


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

    reject_stdio_in_cluster(cluster, stdio)
    if search and not stdio:
        raise UsageError(
            "--search needs --stdio: over HTTP, the endpoint /mcp/search always has tool search",
            hint="remove --search, and connect clients to /mcp/search",
        )
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
    """Return the gate that leaves out config entries until someone reviews them.

    If someone at a terminal names a config file (--config), its entries are trusted.
    """

    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    return ApprovalGate.open(os.environ, "take" if config is not None and at_terminal else "hold")


def _make_announcer(output: Output, auth: bool, node: str, public_reason: Callable[[], str]) -> Callable[[str], None]:
    """Return the function that prints where the gateway serves, and why it counts as public, if it does."""

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


# -- cluster -----------------------------------------------------------------------------------------------------------


def read_cluster_options(**flags: Any) -> ClusterOptions | None:
    """Return the cluster options from flags and environment; None outside a cluster.

    Raises `ConfigError` if they are incomplete or invalid, or if a needed package is not installed.
    """
    if not os.environ.get(CLUSTER_VARIABLE) and all(value is None for value in flags.values()):
        return None

    options = read_options(Flags(**flags), os.environ)
    if options is not None:
        require_cluster_extra()
    return options


def reject_stdio_in_cluster(cluster: ClusterOptions | None, stdio: bool) -> None:
    """Raise `UsageError` if --stdio is combined with a cluster."""
    if cluster is not None and stdio:
        raise UsageError(
            "a cluster node serves HTTP only, not stdio",
            detail="--stdio was combined with --cluster",
            hint="remove one of them, or connect to a node: toolway connect generic --print",
        )


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
            "no configuration found, neither on this machine nor in the cluster database",
            detail=f"{file_error.detail}; the database has no configuration for tenant {cluster.tenant!r}",
            hint="start one node of the cluster with a file, once: toolway serve --config FILE; or select a tenant that"
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
            rules = {"requires_lock": spawner().requires_lock, "default_sandbox": spawner().default_sandbox}
        return await check_servers(name, config, None if current_servers is None else current_servers(), gate, rules)

    return run_checks_as_json
