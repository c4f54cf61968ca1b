"""The commands and their options. Each one reads its arguments and hands over; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolway._version import __version__

if TYPE_CHECKING:
    from toolway.cli.output import Output

app = typer.Typer(
    name="toolway",
    help="One dependable way to every MCP server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it would show local variables, and with them secrets
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 error, 2 usage, 3 configuration, 4 unreachable, 5 tool failed, 6 credentials, "
    "7 timeout, 8 some servers down.",
)

Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The file of servers.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the data and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="More about what happens, on stderr.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour, as with NO_COLOR=1.")]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for servers.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"toolway {__version__}")
        raise typer.Exit


@app.callback()
def _toolway(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_(
    config: Config = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Show all servers: whether they work, and why not."""
    from toolway.cli import servers

    _run(lambda output: servers.show_list(output, config, wait), as_json, quiet, verbose, no_color)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="One server; all without it.", show_default=False)] = None,
    config: Config = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Show all that is known about a server: state, era, process, restarts, last error, stderr."""
    from toolway.cli import servers

    _run(lambda output: servers.show_status(output, config, wait, name), as_json, quiet, verbose, no_color)


@app.command()
def tools(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only tools with all these words.", show_default=False)
    ] = None,
    server: Annotated[str | None, typer.Option("--server", "-s", metavar="NAME", help="Only of this server.")] = None,
    config: Config = None,
    wait: Wait = 30.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Search the tools of all servers, by name, title and description."""
    from toolway.cli import tools as command

    _run(
        lambda output: command.show_tools(output, config, wait, words or [], server), as_json, quiet, verbose, no_color
    )


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="SERVER.TOOL", help="The tool to call.", show_default=False)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="a=text b:=json c@=file", help="Its arguments, or one JSON object.", show_default=False),
    ] = None,
    config: Config = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", metavar="SECONDS", min=0.001, help="Limit for the whole call.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Only the server's result, as JSON, untouched.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Call one tool and show its answer."""
    from toolway.cli import call as command

    _run(
        lambda output: command.call(output, config, tool, arguments or [], timeout, raw),
        as_json or raw,
        quiet,
        verbose,
        no_color,
    )


@app.command()
def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 = any.")] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve whoever started us, over our own pipes.")] = False,
    certificate: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="A certificate, for TLS.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its key, if it is not in --cert.")] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask nobody for a token.", hidden=True)] = False,
    drain_delay: Annotated[float, typer.Option("--drain-delay", metavar="SECONDS", min=0, hidden=True)] = 3.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Serve all servers at one endpoint, for every client."""
    from toolway.cli import serve as command
    from toolway.cli.output import Output

    output = Output(as_json=as_json, quiet=quiet, verbose=verbose, color=not no_color)
    raise typer.Exit(
        command.serve(
            output, config, host, port, certificate, key, auth=not no_auth, stdio=stdio, drain_delay=drain_delay
        )
    )


@app.command()
def token(as_json: AsJson = False) -> None:
    """Show the token that opens the gateway of this machine."""
    from toolway.cli import serve as command
    from toolway.cli.output import Output

    raise typer.Exit(command.show_token(Output(as_json=as_json)))


def _run(
    command: Callable[[Output], Coroutine[Any, Any, int]], as_json: bool, quiet: bool, verbose: bool, no_color: bool
) -> None:
    from toolway.cli.output import Output
    from toolway.cli.running import run

    raise typer.Exit(run(command, Output(as_json=as_json, quiet=quiet, verbose=verbose, color=not no_color)))
