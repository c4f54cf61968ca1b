"""ls, status, restart."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli.commands.words import AnyServer, ServerName, Wait
from toolway.cli.frame import Work
from toolway.cli.options import Session


def ls(
    session: Session,
    wait: Wait = 30.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever something changes.")] = False,
) -> Work:
    from toolway.cli import servers

    return servers.show_list(session.output, session.where, wait, watch)


def status(session: Session, name: AnyServer = None, wait: Wait = 30.0) -> Work:
    """State, era, process, restarts, last error, and the last lines of its stderr."""
    from toolway.cli import servers

    return servers.show_status(session.output, session.where, wait, name)


def restart(session: Session, name: ServerName) -> Work:
    """Whatever its state; calls that are under way end with an error that says whether they were executed."""
    from toolway.cli import servers

    return servers.restart(session.output, session.where, name)
