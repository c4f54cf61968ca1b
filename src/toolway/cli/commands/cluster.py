"""nodes, drain, cluster-key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolway.cli.frame import Work
from toolway.cli.options import Session


def nodes(
    session: Session,
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Only this one, and what it owns.")] = None,
) -> Work:
    """Asks the gateway that runs here, or the one of --gateway: every gateway of a cluster knows all."""
    from toolway.cli import nodes as work

    return work.nodes(session, node)


def drain(
    session: Session,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its id, or its name.", show_default=False)],
    wait: Annotated[
        float, typer.Option("--wait", "-w", metavar="SECONDS", min=0, help="How long to wait until it owns nothing.")
    ] = 60.0,
) -> Work:
    """It takes no more servers, and hands over those that it has when their calls have ended. Stop it afterwards; one
    that is started again takes part as before."""
    from toolway.cli import nodes as work

    return work.drain(session, node, wait)


def cluster_key(
    session: Session,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there, for its owner alone.")
    ] = None,
) -> Work:
    """Give the same to every gateway, with --cluster-key-file or as TOOLWAY_CLUSTER_KEY. Whoever has it is taken for
    one of them."""
    from toolway.cli import nodes as work

    return work.make_key(session.output, out)
