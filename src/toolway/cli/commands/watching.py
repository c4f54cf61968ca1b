"""ui, top, calls, trace, replay."""

from __future__ import annotations

from typing import Annotated

import typer

from toolway.cli import complete
from toolway.cli.commands.words import Yes
from toolway.cli.frame import Work
from toolway.cli.options import Session

CallId = Annotated[str, typer.Argument(metavar="ID", help="The call, as `toolway calls` shows it.", show_default=False)]


def ui(
    session: Session,
    demo: Annotated[bool, typer.Option("--demo", help="A living example; no file and no server of yours.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only show the link.")] = False,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Of the demo; 0 = any.")] = 0,
) -> Work:
    """The link works once, and the browser then keeps a session of twelve hours."""
    if demo:
        from toolway.cli.demo.run import run

        return run(session.output, port, browser=not no_browser)
    from toolway.cli import ui as work

    return work.ui(session, browser=not no_browser)


def top(
    session: Session, once: Annotated[bool, typer.Option("--once", "-1", help="Show it once and end.")] = False
) -> Work:
    """Until Ctrl-C; once where nobody looks at a terminal."""
    from toolway.cli import watching

    return watching.top(session, once=once)


def calls(
    session: Session,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="NAME", help="Of this server.", show_default=False, autocompletion=complete.servers
        ),
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="TOOL", help="Of this tool.", show_default=False)
    ] = None,
    who: Annotated[
        str | None, typer.Option("--who", metavar="NAME", help="Of the holder of this key.", show_default=False)
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Those that did not end well.")] = False,
    slow: Annotated[
        str | None,
        typer.Option("--slow", metavar="TIME", help="Those that took so long: 1s, 200ms.", show_default=False),
    ] = None,
    retried: Annotated[bool, typer.Option("--retried", help="Those with more than one try.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=500, help="So many at most.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> Work:
    """What the gateway remembers of them, newest last."""
    from toolway.cli import watching
    from toolway.config.fields import duration

    wishes = {
        "server": server or "",
        "tool": tool or "",
        "who": who or "",
        "status": "failed" if failed else "",
        "slow": f"{duration('--slow', slow):g}" if slow is not None else "",
        "retried": "1" if retried else "",
        "limit": str(limit),
    }
    return watching.calls(session, wishes, follow=follow)


def trace(session: Session, id_: CallId) -> Work:
    """Every try, and where its time went."""
    from toolway.cli import watching

    return watching.trace(session, id_)


def replay(session: Session, id_: CallId, yes: Yes = False) -> Work:
    """With the same arguments. A call that may change something wants --yes."""
    from toolway.cli import watching

    return watching.replay(session, id_, yes=yes)
