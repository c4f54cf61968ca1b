"""config and its parts."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli.frame import Work
from toolway.cli.options import Session

Version = Annotated[
    int, typer.Argument(metavar="[VERSION]", min=1, help="1 is what was before the last change, 2 the one before.")
]


def config(
    session: Session,
    origin: Annotated[bool, typer.Option("--origin", "-o", help="Show the file and line of every value.")] = False,
) -> Work:
    from toolway.cli import configuration

    return configuration.show(session, origin=origin)


def path(session: Session) -> Work:
    from toolway.cli import configuration

    return configuration.path(session)


def validate(session: Session) -> Work:
    from toolway.cli import configuration

    return configuration.validate(session)


def diff(session: Session, version: Version = 1) -> Work:
    from toolway.cli import configuration

    return configuration.diff(session, version)


def history(session: Session) -> Work:
    """Every change that is made by this command line keeps what was before."""
    from toolway.cli import configuration

    return configuration.history(session)


def rollback(
    session: Session,
    version: Version = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only show what would change.")] = False,
) -> Work:
    """Going back is a change as well: it can be taken back."""
    from toolway.cli import configuration

    return configuration.rollback(session, version, dry_run=dry_run)
