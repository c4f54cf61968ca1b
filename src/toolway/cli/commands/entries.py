"""add, get, rm, enable, disable, edit."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli.commands.words import AnyServer, DryRun, Plain, Scope, ServerName
from toolway.cli.frame import Work
from toolway.cli.options import Session


def add(
    session: Session,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] SOURCE",
            help="A URL, pypi:PACKAGE, npm:PACKAGE, openapi:DOCUMENT, a .mcpb or server.json file; NAME -- COMMAND …",
            show_default=False,
        ),
    ],
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable for the command.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="A header for the URL.")
    ] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", metavar="FOLDER", help="Where the command runs.")] = None,
    scope: Scope = None,
    answer: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="What a bundle or description asks for.")
    ] = None,
    offer: Annotated[
        int, typer.Option("--offer", metavar="N", min=1, help="Which offer of a server.json.", show_default=False)
    ] = 1,
    replace: Annotated[bool, typer.Option("--replace", help="Also where the name is taken.")] = False,
    plain: Plain = False,
    dry_run: DryRun = False,
) -> Work:
    """toolway add https://mcp.example.com/mcp, toolway add npm:PACKAGE, toolway add files -- npx -y PACKAGE /folder.

    A token that is given goes into the store of secrets, and the entry names it."""
    from toolway.cli import adding

    return adding.add(
        session,
        words,
        env=env or [],
        headers=header or [],
        cwd=cwd,
        scope=scope,
        answers=answer or [],
        offer=offer,
        replace=replace,
        plain=plain,
        dry_run=dry_run,
    )


def get(session: Session, name: ServerName) -> Work:
    """As it is written, without secrets, and in which file."""
    from toolway.cli import entries

    return entries.get(session, name)


def rm(session: Session, name: ServerName, dry_run: DryRun = False) -> Work:
    from toolway.cli import entries

    return entries.remove(session, name, dry_run=dry_run)


def enable(session: Session, name: ServerName, dry_run: DryRun = False) -> Work:
    from toolway.cli import entries

    return entries.switch(session, name, on=True, dry_run=dry_run)


def disable(session: Session, name: ServerName, dry_run: DryRun = False) -> Work:
    """Its entry stays."""
    from toolway.cli import entries

    return entries.switch(session, name, on=False, dry_run=dry_run)


def edit(session: Session, name: AnyServer = None, scope: Scope = None) -> Work:
    """In $VISUAL or $EDITOR. What cannot be read afterwards is not taken."""
    from toolway.cli import entries

    return entries.edit(session, name, scope=scope)
