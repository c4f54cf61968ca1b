"""The root of the command line. What there is stands in `table.py`, what all commands share in `options.py`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from toolway._version import __version__
from toolway.cli.frame import Commands, run
from toolway.cli.options import PLACE, Session, Shared, parameters
from toolway.cli.table import MEANT, SECTIONS, TABLE


class _Root(Commands):
    table = TABLE
    sections = SECTIONS
    meant = MEANT


app = typer.Typer(
    name="toolway",
    cls=_Root,
    help="One dependable way to every MCP server.",
    invoke_without_command=True,
    add_completion=False,  # `toolway completion` is ours
    rich_markup_mode=None,  # rich would take longer than all the rest of `--help`
    pretty_exceptions_enable=False,  # it would show local variables, and with them secrets
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"toolway {__version__}")
        raise typer.Exit


def _toolway(*, ctx: typer.Context, version: bool = False, **given: Any) -> int:
    """Without a command: how the servers are, and what to do next."""
    ctx.obj = shared = Shared(**given)
    if ctx.invoked_subcommand is not None:
        return 0
    from toolway.cli.overview import overview

    session = Session.of(shared)
    return run(lambda: overview(session), session.output)


_Version = Annotated[bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version.")]
_asked = [
    inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
    *parameters(PLACE),
    inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Version),
]
_toolway.__signature__ = inspect.Signature(_asked)  # type: ignore[attr-defined] # what `inspect` reads
_toolway.__annotations__ = {each.name: each.annotation for each in _asked}
app.callback()(_toolway)
