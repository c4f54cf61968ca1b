"""serve, token, connect, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolway.cli import complete
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
) -> Work:
    from toolway.cli import serve as work

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
    )


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
