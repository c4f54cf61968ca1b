"""Definitions of arguments and options that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli.completion import complete_clients, complete_servers

Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        help="Time to wait for servers. Default: 2 s, or 30 s for one server.",
        show_default=False,
    ),
]
ServerName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the server.", show_default=False, autocompletion=complete_servers),
]
AnyServer = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="Name of a server. Default: all.",
        show_default=False,
        autocompletion=complete_servers,
    ),
]
ServersOrUrl = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME… | URL]",
        help="Server names, or a URL. Default: all servers.",
        show_default=False,
        autocompletion=complete_servers,
    ),
]
Refresh = Annotated[bool, typer.Option("--refresh", "-r", help="Start the servers and update the lists.")]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="With a URL: HTTP header for the server."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the change without making it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Plain = Annotated[bool, typer.Option("--plain", help="Keep tokens in the file, not in the secret store.")]
Scope = Annotated[
    str | None,
    typer.Option("--scope", metavar="SCOPE", help="user (the default), project or local.", show_default=False),
]
ClientNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLIENT]…",
        help="For example claude-code.",
        show_default=False,
        autocompletion=complete_clients,
    ),
]
