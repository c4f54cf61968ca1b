"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli import complete

Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for servers.")]
ServerName = Annotated[
    str, typer.Argument(metavar="NAME", help="The server.", show_default=False, autocompletion=complete.servers)
]
AnyServer = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="One server; all without it.", show_default=False, autocompletion=complete.servers
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only show what would change.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
Plain = Annotated[bool, typer.Option("--plain", help="Leave tokens in the file instead of the store of secrets.")]
Scope = Annotated[
    str | None,
    typer.Option("--scope", metavar="SCOPE", help="user (the default), project or local.", show_default=False),
]
