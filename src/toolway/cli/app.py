"""Root command `toolway` of the CLI: global options, `--version` and the table of commands.

`table.py` lists the commands, `options.py` the options that all commands share.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from toolway._version import __version__
from toolway.cli.framework import LazyGroup, run_command
from toolway.cli.help.pages import first_page
from toolway.cli.help.text import TAGLINE
from toolway.cli.options import GATEWAY_OPTIONS, CommandContext, GlobalOptions, option_parameters
from toolway.cli.table import COMMANDS


class _Root(LazyGroup):
    table = COMMANDS
    is_root = True

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(first_page())


app = typer.Typer(
    name="toolway",
    cls=_Root,
    help=TAGLINE,
    invoke_without_command=True,
    add_completion=False,  # `toolway completion` is ours
    rich_markup_mode=None,  # importing rich takes longer than everything else in `--help`
    pretty_exceptions_enable=False,  # it prints local variables, which contain secrets
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"toolway {__version__}")
        raise typer.Exit


def _root_command(*, ctx: typer.Context, version: bool = False, **option_values: Any) -> int:
    """Show the state of all servers and the next step, if no command is given."""
    ctx.obj = shared = GlobalOptions(**option_values)
    if ctx.invoked_subcommand is not None:
        return 0
    from toolway.cli.commands.overview import show_overview

    context = CommandContext.from_options(shared)
    return run_command(lambda: show_overview(context), context.output)


_VersionOption = Annotated[
    bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version.")
]
_parameters = [
    inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
    *option_parameters(GATEWAY_OPTIONS),
    inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_VersionOption),
]
_root_command.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined] # `inspect.signature` reads it
_root_command.__annotations__ = {each.name: each.annotation for each in _parameters}
app.callback()(_root_command)
