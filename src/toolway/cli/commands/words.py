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
