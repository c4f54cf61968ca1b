"""token, connect, keys."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli import complete
from toolway.cli.frame import Work
from toolway.cli.options import Session


def token(session: Session) -> Work:
    from toolway.cli import serve as work

    return work.show_token(session.output)


def connect(
    session: Session,
    client: Annotated[
        str,
        typer.Argument(
            help="claude-code, cursor, vscode, codex or generic.",
            show_default=False,
            autocompletion=complete.connectable,
        ),
    ],
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="Only this group, or server/NAME.", show_default=False),
    ] = None,
) -> Work:
    """A command, or lines for its file; nothing is changed."""
    from toolway.cli import connect as work

    return work.connect(session.output, session.where, client, group)


def keys_create(
    session: Session,
    name: Annotated[str, typer.Argument(help="Whose key it is.", show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="GROUP", help="Only this group, or server/NAME.", show_default=False),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It also opens /admin.")] = False,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="CALLS", help="How often it may call: 10/s, 600/min, 1000/h, 5000/day."),
    ] = None,
) -> Work:
    from toolway.cli import keys

    return keys.create(session.output, session.where, name, scope or [], admin, rate)


def keys_ls(session: Session) -> Work:
    from toolway.cli import keys

    return keys.show(session.output, session.where)


def keys_revoke(
    session: Session, id_: Annotated[str, typer.Argument(metavar="ID", help="The key's id.", show_default=False)]
) -> Work:
    from toolway.cli import keys

    return keys.revoke(session.output, session.where, id_)
