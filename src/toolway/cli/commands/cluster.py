"""`toolway cluster`: list and drain the nodes of a cluster, create its keys, sign its database.

Any node of the cluster can answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from toolway._os import O_UNSHARED
from toolway.cli.exit_codes import ExitCode
from toolway.cli.file_changes import confirm
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.cli.targets import require_gateway
from toolway.cluster.keys import format_tenant_key
from toolway.cluster.options import (
    generate_cluster_key,
    parse_name,
    read_cluster_key,
    read_database_url,
    require_cluster_extra,
)
from toolway.errors import ConfigError

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.types import Json

_DRAIN_POLL_INTERVAL_S: Final = 0.5  # seconds between two polls of a draining node


def nodes(
    context: CommandContext,
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Show this node and its servers.")] = None,
) -> CommandResult:
    """List the nodes of the cluster, asked from the local gateway or that of --gateway.

    Every node knows all nodes of its tenant.
    """
    return run_nodes(context, node)


def drain(
    context: CommandContext,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Id or name of the node.", show_default=False)],
    wait: Annotated[
        float, typer.Option("--wait", "-w", metavar="SECONDS", min=0, help="Time to wait until it owns no server.")
    ] = 60.0,
) -> CommandResult:
    """Drain a node: it accepts no more servers, and hands over the servers that it owns.

    Each server is handed over when its calls have ended. Stop the node afterwards. After a restart it accepts
    servers again.
    """
    return run_drain(context, node, wait)


def keygen(
    context: CommandContext,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it to a private file.")] = None,
) -> CommandResult:
    """Print a new cluster key, which every node needs: --cluster-key-file or TOOLWAY_CLUSTER_KEY.

    The cluster accepts everyone who has the key as a node.
    """
    return run_keygen(context.output, out)


def tenant_key(
    context: CommandContext,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it to a private file.")] = None,
    cluster_key_file: Annotated[
        Path | None, typer.Option("--cluster-key-file", metavar="FILE", help="File of the cluster key.")
    ] = None,
) -> CommandResult:
    """Derive a key for nodes of one tenant, in place of the cluster key: --cluster-key-file or TOOLWAY_CLUSTER_KEY.

    Such a node can do nothing to other tenants. Without --cluster-key-file, TOOLWAY_CLUSTER_KEY is used.
    """
    return run_tenant_key(context.output, tenant, out, cluster_key_file)


def trust(
    context: CommandContext,
    database: Annotated[str | None, typer.Option("--database", metavar="URL", help="The cluster database.")] = None,
    cluster_key_file: Annotated[
        Path | None, typer.Option("--cluster-key-file", metavar="FILE", help="File of the cluster key.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
) -> CommandResult:
    """Make nodes accept the database again, after they rejected it or after a change of the cluster key.

    Stop all nodes first. Each row is shown: those with a valid signature are kept, all others are deleted. Without
    options, TOOLWAY_DATABASE and TOOLWAY_CLUSTER_KEY are used.
    """
    return run_trust(context.output, database, cluster_key_file, yes, dry_run)


# -- nodes -------------------------------------------------------------------------------------------------------------


async def run_nodes(context: CommandContext, node: str | None) -> ExitCode:
    """Print one line per node of the cluster, or one node with the servers it owns."""
    output, gateway = context.output, await _cluster_gateway(context)
    found = await gateway.request_admin("GET", f"nodes/{quote(node, safe='')}" if node else "nodes")
    if output.as_json:
        output.print_json(found)
    elif node:
        _print_node(output, found)
    else:
        _print_nodes(output, found)
    return ExitCode.OK if node or not _needs_attention(found) else ExitCode.PARTIAL


def _needs_attention(found: Json) -> bool:
    """Return True if the cluster has an unowned server, a silent node, rejected rows, or no NATS."""
    is_silent = any(each["state"] == "silent" for each in found["nodes"])
    return bool(found["unowned"] or not found["nats"] or found.get("rejected") or is_silent)


def _print_nodes(output: Output, found: Json) -> None:
    rows = [
        (
            f"{each['id']} *" if each["id"] == found["node"] else each["id"],
            each["state"],
            f"{each['servers']}/{each['capacity']}",
            each["version"],
            each["address"] or "over NATS",
            ",".join(each["labels"]) or "–",
        )
        for each in found["nodes"]
    ]
    output.print_table(("node", "state", "owns", "version", "address", "labels"), rows, right=("owns",), cut=True)
    owned = sum(each["servers"] for each in found["nodes"])
    output.info(f"{owned} servers are owned, {found['unowned']} unowned; * is the node that was queried", "dim")
    if found["unowned"]:
        output.info("unowned servers are acquired within seconds, unless no node has capacity or matching labels")
    for finding in found.get("rejected", ()):
        output.info(f"database: {finding}", "red")
    if not found["nats"]:
        output.info("this node is not connected to NATS: it learns of changes about a second later", "yellow")


def _print_node(output: Output, found: Json) -> None:
    output.info(f"{found['id']}: {found['state']}, {found['address'] or 'over NATS'}, version {found['version']}")
    rows = [(each["server"], str(each["instance"]), each["tenant"]) for each in found["owns"]]
    if rows:
        output.print_table(("server", "instance", "tenant"), rows, right=("instance",))
    else:
        output.info("it owns no server")
    if found["more"]:
        output.info("and more")


# -- drain -------------------------------------------------------------------------------------------------------------


async def run_drain(context: CommandContext, node: str, wait: float) -> ExitCode:
    """Drain a cluster node and wait at most `wait` seconds until it owns no server.

    Returns 7 if it then still owns servers; the node keeps draining.
    """
    output, gateway = context.output, await _cluster_gateway(context)
    node_id = str((await gateway.request_admin("POST", f"nodes/{quote(node, safe='')}/drain"))["draining"])
    left = await _owned_count(gateway, node_id)
    if left and not await _has_ready_node(gateway):
        output.info("no other node accepts servers, so they will be unavailable", "yellow")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    with output.spinner(f"draining {node_id}") as update:
        while left and loop.time() < deadline:
            update(f"{node_id} still owns {left}")
            await asyncio.sleep(_DRAIN_POLL_INTERVAL_S)
            left = await _owned_count(gateway, node_id)
    if output.as_json:
        output.print_json({"draining": node_id, "left": left})
    elif left:
        output.info(f"{node_id} is draining and still owns {left}; check it with: toolway cluster nodes")
    else:
        output.info(f"{node_id} owns no server and can be stopped", "green")
    return ExitCode.TIMEOUT if left and wait else ExitCode.OK


async def _cluster_gateway(context: CommandContext) -> GatewayClient:
    return await require_gateway(
        context.output,
        context.target_options,
        "no gateway is running here, so the cluster is unknown",
        fix="select one: --gateway http://HOST:8765 --token TOKEN",
    )


async def _owned_count(gateway: GatewayClient, id_: str) -> int:
    """Return the number of servers that a cluster node owns; 0 if it has left the cluster."""
    found = (await gateway.request_admin("GET", "nodes"))["nodes"]
    return sum(int(each["servers"]) for each in found if each["id"] == id_)


async def _has_ready_node(gateway: GatewayClient) -> bool:
    return any(each["state"] == "ready" for each in (await gateway.request_admin("GET", "nodes"))["nodes"])


# -- key ---------------------------------------------------------------------------------------------------------------


def run_keygen(output: Output, out: Path | None) -> ExitCode:
    """Generate a cluster key and print it, or write it to a new file."""
    return _print_key(output, generate_cluster_key(), out, "copy this file to every node")


def run_tenant_key(output: Output, tenant: str, out: Path | None, cluster_key_file: Path | None) -> ExitCode:
    """Derive the key of a tenant and print it, or write it to a new file."""
    file = str(cluster_key_file) if cluster_key_file is not None else None
    key = format_tenant_key(read_cluster_key(file, os.environ), parse_name("TENANT", tenant))
    return _print_key(output, key, out, f"copy this file to the nodes of {tenant}")


def _print_key(output: Output, key: str, out: Path | None, advice: str) -> ExitCode:
    if out is None:
        if output.as_json:
            output.print_raw_json({"key": key})
        else:
            sys.stdout.write(key + "\n")
        return ExitCode.OK
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_UNSHARED, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(key + "\n")
    except OSError as exc:
        raise ConfigError(
            f"the cluster key could not be written to {out}",
            detail=exc.strerror or str(exc),
            hint="pick a file that does not exist yet; a cluster that loses its key must be set up again",
            code="E-CLUSTER-KEY",
        ) from None
    if output.as_json:
        output.print_json({"file": str(out)})
    else:
        output.info(f"wrote a new key to {out}; {advice}: toolway serve --cluster-key-file {out}")
    return ExitCode.OK


# -- trust -------------------------------------------------------------------------------------------------------------


async def run_trust(
    output: Output, database: str | None, cluster_key_file: Path | None, yes: bool, dry_run: bool
) -> ExitCode:
    """Keep valid rows of the cluster database and delete invalid ones, after confirmation.

    Each row is shown first. With `dry_run`, nothing else is done.
    """
    require_cluster_extra()
    key = read_cluster_key(str(cluster_key_file) if cluster_key_file is not None else None, os.environ)
    url = read_database_url(database, os.environ)
    from toolway.cluster.bootstrap import reporting_database_errors  # what follows needs the extra
    from toolway.cluster.db.engine import open_engine
    from toolway.cluster.db.takeover import take_over

    engine = open_engine(url)
    try:
        with reporting_database_errors():
            found = await take_over(engine, key)
            rows = [(each.tenant, each.kind, each.name or "–", each.action, each.detail) for each in found]
            if not output.as_json:
                output.print_table(("tenant", "kind", "name", "action", "detail"), rows)
            kept = sum(each.action != "delete" for each in found)
            question = f"Keep {kept} rows and delete {len(found) - kept}?"
            is_confirmed = not dry_run and confirm(output, question, yes)
            if is_confirmed:
                await take_over(engine, key, found)
    finally:
        await engine.dispose()
    if output.as_json:
        names = ("tenant", "kind", "name", "action", "detail")
        output.print_json({"done": is_confirmed, "rows": [dict(zip(names, row, strict=True)) for row in rows]})
    elif is_confirmed:
        output.info("the database is signed; start the nodes", "green")
    return ExitCode.OK
