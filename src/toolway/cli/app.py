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
Gateway = Annotated[
    str | None, typer.Option("--gateway", "-g", metavar="URL", help="Ask this gateway.", show_default=False)
]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", envvar="TOOLWAY_TOKEN", help="What opens it.", show_default=False),
]
NoGateway = Annotated[bool, typer.Option("--no-gateway", help="Ask no gateway, even if one runs here.")]
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
    gateway: Gateway = None,
    token: Token = None,
    no_gateway: NoGateway = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Show all servers: whether they work, and why not."""
    from toolway.cli import servers
    from toolway.cli.places import Where

    _run(
        lambda output: servers.show_list(output, Where(config, gateway, token, no_gateway), wait),
        as_json,
        quiet,
        verbose,
        no_color,
    )


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="One server; all without it.", show_default=False)] = None,
    config: Config = None,
    wait: Wait = 30.0,
    gateway: Gateway = None,
    token: Token = None,
    no_gateway: NoGateway = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Show all that is known about a server: state, era, process, restarts, last error, stderr."""
    from toolway.cli import servers
    from toolway.cli.places import Where

    _run(
        lambda output: servers.show_status(output, Where(config, gateway, token, no_gateway), wait, name),
        as_json,
        quiet,
        verbose,
        no_color,
    )


@app.command()
def tools(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only tools with all these words.", show_default=False)
    ] = None,
    server: Annotated[str | None, typer.Option("--server", "-s", metavar="NAME", help="Only of this server.")] = None,
    config: Config = None,
    wait: Wait = 30.0,
    gateway: Gateway = None,
    token: Token = None,
    no_gateway: NoGateway = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Search the tools of all servers, by name, title and description."""
    from toolway.cli import tools as command
    from toolway.cli.places import Where

    where = Where(config, gateway, token, no_gateway)

    _run(lambda output: command.show_tools(output, where, wait, words or [], server), as_json, quiet, verbose, no_color)


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
    gateway: Gateway = None,
    token: Token = None,
    no_gateway: NoGateway = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Call one tool and show its answer."""
    from toolway.cli import call as command
    from toolway.cli.places import Where

    where = Where(config, gateway, token, no_gateway)

    _run(
        lambda output: command.call(output, where, tool, arguments or [], timeout, raw),
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


@app.command()
def connect(
    client: Annotated[str, typer.Argument(help="claude-code, cursor, vscode, codex or generic.", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="Only this group, or server/NAME.", show_default=False),
    ] = None,
    config: Config = None,
    gateway: Gateway = None,
    token: Token = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show what connects a client to the gateway: a command, or lines for its file."""
    from toolway.cli import connect as command
    from toolway.cli.places import Where

    where = Where(config, gateway, token)
    _run(lambda output: command.connect(output, where, client, group), as_json, quiet, False, False)


keys = typer.Typer(
    help="Keys for others who use the gateway.", no_args_is_help=True, context_settings=app.info.context_settings
)
app.add_typer(keys, name="keys")


@keys.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="Whose key it is.", show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="GROUP", help="Only this group, or server/NAME.", show_default=False),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It also opens /admin.")] = False,
    config: Config = None,
    gateway: Gateway = None,
    token: Token = None,
    no_gateway: NoGateway = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Make a key and show it, once."""
    from toolway.cli import keys as command
    from toolway.cli.places import Where

    where = Where(config, gateway, token, no_gateway)
    _run(lambda output: command.create(output, where, name, scope or [], admin), as_json, quiet, False, no_color)


@keys.command("ls")
def keys_ls(
    config: Config = None,
    gateway: Gateway = None,
    token: Token = None,
    no_gateway: NoGateway = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Show all keys."""
    from toolway.cli import keys as command
    from toolway.cli.places import Where

    where = Where(config, gateway, token, no_gateway)
    _run(lambda output: command.show(output, where), as_json, quiet, False, no_color)


@keys.command("revoke")
def keys_revoke(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The key's id.", show_default=False)],
    config: Config = None,
    gateway: Gateway = None,
    token: Token = None,
    no_gateway: NoGateway = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """End a key."""
    from toolway.cli import keys as command
    from toolway.cli.places import Where

    where = Where(config, gateway, token, no_gateway)
    _run(lambda output: command.revoke(output, where, id_), as_json, quiet, False, no_color)


def _run(
    command: Callable[[Output], Coroutine[Any, Any, int]], as_json: bool, quiet: bool, verbose: bool, no_color: bool
) -> None:
    from toolway.cli.output import Output
    from toolway.cli.running import run

    raise typer.Exit(run(command, Output(as_json=as_json, quiet=quiet, verbose=verbose, color=not no_color)))
