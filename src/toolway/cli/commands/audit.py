"""audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolway.cli.frame import Work
from toolway.cli.options import Session

LogFile = Annotated[
    str | None,
    typer.Option("--log", metavar="FILE", help="This log: a file, or postgresql://…", show_default=False),
]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="Not older: 30m, 2h, 7d.", show_default=False)]
Kind = Annotated[
    str, typer.Option("--kind", metavar="KIND", help="As call, call.intent or process.", show_default=False)
]


def audit_verify(
    session: Session,
    log: LogFile = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="NUMBER:HASH", help="The head that was kept earlier.", show_default=False),
    ] = None,
) -> Work:
    """Ends with 9 where a record was changed, removed or added since it was written."""
    from toolway.cli import audit as work

    return work.verified(session, log, head)


def audit_ls(
    session: Session,
    log: LogFile = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", show_default=False)] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", show_default=False)] = None,
    call: Annotated[str | None, typer.Option("--call", metavar="ID", show_default=False)] = None,
    caller: Annotated[str | None, typer.Option("--caller", metavar="WHO", show_default=False)] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", metavar="WORD", help="As ok, unknown, rejected.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="An idempotency key.", show_default=False)
    ] = None,
    kind: Kind = "",
    since: Since = "",
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="So many of the last ones.")] = 50,
) -> Work:
    """What was intended, and what became of it."""
    from toolway.cli import audit as work

    wanted = {"server": server, "tool": tool, "call": call, "caller": caller, "outcome": outcome, "key": key}
    return work.show(session, log, wanted, kind, since, lines)


def audit_export(
    session: Session,
    log: LogFile = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Into this file; else stdout.", show_default=False)
    ] = None,
    kind: Kind = "",
    since: Since = "",
) -> Work:
    """As lines of JSON, oldest first."""
    from toolway.cli import audit as work

    return work.export(session, log, kind, since, to)
