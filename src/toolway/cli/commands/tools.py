"""tools, call."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli import complete
from toolway.cli.commands.words import Wait
from toolway.cli.frame import Work
from toolway.cli.options import Session


def tools(
    session: Session,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]…",
            help="Only tools with all these words in name, title or description.",
            show_default=False,
            autocompletion=complete.tools,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", "-s", metavar="NAME", help="Only of this server.", autocompletion=complete.servers),
    ] = None,
    refresh: Annotated[bool, typer.Option("--refresh", "-r", help="Start the servers and ask them again.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show what each tool costs a model, roughly.")] = False,
    wait: Wait = 30.0,
) -> Work:
    """Servers that were asked before are not started for it: what they had is on disk. Those that never were are
    started and asked."""
    from toolway.cli import tools as work

    return work.show_tools(session, words or [], server, wait=wait, refresh=refresh, tokens=tokens)


def call(
    session: Session,
    tool: Annotated[
        str,
        typer.Argument(
            metavar="SERVER.TOOL", help="The tool to call.", show_default=False, autocompletion=complete.tools
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENT]…",
            help="a=text, b:=json, c@=file, or one JSON object with all of them.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", metavar="SECONDS", min=0.001, help="Limit for the whole call.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Only the server's result, as JSON, untouched.")] = False,
) -> Work:
    """Of all servers only its own is started."""
    from toolway.cli import call as work

    session.output.as_json |= raw
    return work.call(session.output, session.where, tool, arguments or [], timeout, raw)
