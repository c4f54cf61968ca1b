"""`toolway serve`: run the gateway, alone or as a node of a cluster.

This module only reads the options, so its help is quick.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toolway._os import usable_cores
from toolway._os.support import missing
from toolway.cli.exit_codes import UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.errors import platform_error
from toolway.serve.workers import count_workers, read_worker, reject_combination

if TYPE_CHECKING:
    from toolway.cluster.options import ClusterOptions

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
    reject_stdio_in_cluster(options, stdio)
    if search and not stdio:
        raise UsageError(
            "--search needs --stdio: over HTTP, the endpoint /mcp/search always has tool search",
            hint="remove --search, and connect clients to /mcp/search",
        )
    worker = None
    if workers is not None:
        if lacked := missing("workers"):
            raise platform_error(*lacked)

        worker = read_worker(os.environ)
        if worker is None and (count := check_workers(workers, options, stdio=stdio, auth=not no_auth)) > 1:
            from toolway.cli.gateway_process import run_workers

            return run_workers(
                context.output, context.target_options.config, host, port, count, tls=certificate is not None
            )
    from toolway.cli.gateway_process import run_serve  # the whole gateway

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
        from toolway.cluster.options import require_cluster_extra

        require_cluster_extra()
    return count


# -- cluster -----------------------------------------------------------------------------------------------------------


def read_cluster_options(**flags: Any) -> ClusterOptions | None:
    """Return the cluster options from flags and environment; None outside a cluster.

    Raises `ConfigError` if they are incomplete or invalid, or if a needed package is not installed.
    """
    if not os.environ.get(CLUSTER_VARIABLE) and all(value is None for value in flags.values()):
        return None
    from toolway.cluster.options import Flags, read_options, require_cluster_extra  # not in a gateway alone

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
