"""approve, secrets, login, logout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolway.cli import complete
from toolway.cli.frame import Work
from toolway.cli.options import Session

SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="As server.NAME; an entry names it ${keyring:NAME}.", show_default=False)
]


ServerName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The server.", show_default=False, autocompletion=complete.servers),
]


def login(
    session: Session,
    name: ServerName,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Show the address; take the one where it ended, if it is pasted.")
    ] = False,
) -> Work:
    """In the browser. Every program of yours has the token then, also those that run already; with --gateway and a key,
    the gateway keeps it for that key."""
    from toolway.cli import login as work

    return work.log_in(session.output, session.where, name, with_browser=not no_browser)


def logout(session: Session, name: ServerName) -> Work:
    from toolway.cli import login as work

    return work.log_out(session.output, session.where, name)


def approve(
    session: Session,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="That of this folder without it.", show_default=False)
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option("--digest", metavar="SHA256", help="Approve this content without asking.", show_default=False),
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the approval back.")] = False,
) -> Work:
    """A project's file starts nothing before, and a change of it asks again."""
    from toolway.cli import approve as work

    return work.withdraw(session.output, file) if withdraw else work.approve(session.output, file, digest)


def secrets_set(
    session: Session,
    name: SecretName,
    extra: Annotated[str | None, typer.Argument(hidden=True)] = None,  # whoever gives the value here is told why not
) -> Work:
    """The value is asked for, or comes through a pipe."""
    from toolway.cli import secrets as work

    return work.set_(session.output, name, extra)


def secrets_ls(session: Session) -> Work:
    """Names only, with the servers that use them."""
    from toolway.cli import secrets as work

    return work.show(session.output, session.where.config)


def secrets_rm(session: Session, name: SecretName) -> Work:
    from toolway.cli import secrets as work

    return work.remove(session.output, session.where.config, name)
