"""serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolway.cli.frame import Work
from toolway.cli.options import Session


def serve(
    session: Session,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 = any.")] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve whoever started us, over our own pipes.")] = False,
    certificate: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="A certificate, for TLS.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its key, if it is not in --cert.")] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask nobody for a token.", hidden=True)] = False,
    drain_delay: Annotated[float, typer.Option("--drain-delay", metavar="SECONDS", min=0, hidden=True)] = 3.0,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NATS", help="Be one of several gateways: nats://HOST,…")
    ] = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="What a cluster remembers: postgresql://…")
    ] = None,
    cluster_key_file: Annotated[
        str | None, typer.Option("--cluster-key-file", metavar="FILE", help="The key that all its gateways share.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="URL", help="Where the others reach us; none = over NATS.")
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="What this gateway is called.")] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="LABELS", help="What servers may ask of a node: gpu,region=eu")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option("--capacity", metavar="N", help="The most servers that it owns.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Whose servers it serves.")] = None,
    cluster_name: Annotated[
        str | None, typer.Option("--cluster-name", metavar="NAME", help="For several clusters on one NATS.")
    ] = None,
    nats_credentials: Annotated[
        str | None, typer.Option("--nats-credentials", metavar="FILE", help="The .creds of a NATS account.")
    ] = None,
) -> Work:
    """What is said of a cluster can stand in the environment too: TOOLWAY_CLUSTER, TOOLWAY_DATABASE and so on."""
    from toolway.cli import serve as work
    from toolway.cli.clustered import options_of

    options = options_of(
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
    )
    return work.serve(
        session.output,
        session.where.config,
        host,
        port,
        certificate,
        key,
        auth=not no_auth,
        stdio=stdio,
        drain_delay=drain_delay,
        cluster=options,
    )
