"""init, import, export, sync."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli import complete
from toolway.cli.commands.words import DryRun, Plain, Scope, Yes
from toolway.cli.frame import Work
from toolway.cli.options import Session

Clients = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLIENT]…", help="As claude-code, cursor, vscode.", show_default=False, autocompletion=complete.clients
    ),
]


def init(session: Session, plain: Plain = False, yes: Yes = False, dry_run: DryRun = False) -> Work:
    """What is found is written to your own file of servers. No file of a client is changed."""
    from toolway.cli import taking

    return taking.take(session, [], project=False, scope=None, plain=plain, yes=yes, dry_run=dry_run, beginning=True)


def import_(
    session: Session,
    clients: Clients = None,
    everyone: Annotated[bool, typer.Option("--all", help="All clients, as without a name.")] = False,
    project: Annotated[bool, typer.Option("--project", help="Files of this project too, not only your own.")] = False,
    scope: Scope = None,
    plain: Plain = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Work:
    """One server in two files is taken once. Tokens in plain text can go into the store of secrets."""
    from toolway.cli import taking

    return taking.take(session, clients or [], project=project, scope=scope, plain=plain, yes=yes, dry_run=dry_run)


def export(
    session: Session,
    clients: Clients = None,
    everyone: Annotated[bool, typer.Option("--all", help="All clients that are on this machine.")] = False,
    via_hub: Annotated[
        bool, typer.Option("--via-hub", help="One entry, toolway itself, in place of all that is behind it.")
    ] = False,
    scope: Annotated[
        str, typer.Option("--scope", metavar="SCOPE", help="user (the default) or project.", show_default=False)
    ] = "user",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Work:
    """The change is shown before it is made, what the client cannot be told is named, and the old file is kept."""
    from toolway.cli import giving

    return giving.give(
        session, clients or [], everyone=everyone, via_hub=via_hub, scope=scope, yes=yes, dry_run=dry_run
    )


def sync(session: Session, yes: Yes = False, dry_run: DryRun = False) -> Work:
    """New servers of clients come to your file, and from there to all clients; one that has toolway keeps only that."""
    from toolway.cli import giving

    return giving.sync(session, yes=yes, dry_run=dry_run)
