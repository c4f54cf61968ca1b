"""`toolway help`: the first page, every command, one command, or a page for programs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from toolway._version import __version__
from toolway.cli.app import app
from toolway.cli.completion import complete_commands
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import PROGRAM_NAME, CommandResult
from toolway.cli.help.pages import all_commands, all_commands_page, first_page
from toolway.cli.options import CommandContext

_PAGE_TEMPLATE = """\
# toolway {version} for programs

One CLI for many MCP servers. Add --json to any command: stdout is then one JSON
document, even for an error, and its keys never change their meaning.

## Find a tool and call it

    toolway tools WORD... --json          tools with all these words: name, description, input_schema
    toolway call SERVER.TOOL --json '{{"argument": "value"}}'
    toolway call SERVER.TOOL name=text count:=5 flag:=true body@=file.txt

The result has "text", "data" (structured, if the tool returns it), "content" and "is_error".
Tool lists are cached on disk; --refresh updates them.

## When it fails

    {{"error": {{"code", "message", "detail", "hint", "exit", ...}}}}

"executed" of a call says whether the call ran: "no" can be repeated, "unknown" only after
a check, "yes" not. `toolway explain CODE` has a page for every code; `toolway doctor NAME --json`
names the cause if a server does not work.

## Exit codes

{exits}

## Commands

{commands}

Global options: --config FILE, --gateway URL, --token TOKEN, --ca FILE, --no-gateway, --json, -q, -v, --no-color.
`toolway help COMMAND` shows the rest. Secrets are never printed: they are shown as ***.
"""


def help_(
    context: CommandContext,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]…",
            help="A command, or agents for a page for programs.",
            show_default=False,
            autocompletion=complete_commands,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every command.")] = False,
) -> CommandResult:
    return run_help(context, command or [], everything=everything)


def run_help(context: CommandContext, words: list[str], *, everything: bool) -> ExitCode:
    """Print the help that the words name. With --json, print all commands and exit codes as one document."""
    if everything and words:
        raise UsageError("--all and a command cannot be used together", hint="toolway help --all")
    if words and words != ["agents"]:
        text = _command_help(words)
        if context.output.as_json:
            context.output.print_json({"command": " ".join(words), "help": text})
        else:
            sys.stdout.write(text)
    elif context.output.as_json:
        commands = {name: entry.help for name, entry in all_commands()}
        exits = dict(_list_exit_codes())
        context.output.print_json({"version": __version__, "commands": commands, "exits": exits})
    elif words:
        sys.stdout.write(_page_for_programs())
    else:
        sys.stdout.write(all_commands_page(_root_options()) if everything else first_page())
    return ExitCode.OK


def _command_help(words: list[str]) -> str:
    """Return the `--help` text of the command with these names. Raises `UsageError` if there is none."""
    command: Any = typer.main.get_command(app)
    context = _context(command, PROGRAM_NAME)
    for depth in range(len(words)):
        if not hasattr(command, "list_commands"):
            raise UsageError(
                f"unknown command {' '.join(words)!r}", hint=f"show the usage: toolway {' '.join(words[:depth])} --help"
            )
        name, found, _ = command.resolve_command(context, words[depth : depth + 2])
        command, context = found, _context(found, name, context)
    text: str = command.get_help(context)
    return text.rstrip("\n") + "\n"


def _context(command: Any, name: str, parent: typer.Context | None = None) -> typer.Context:
    return typer.Context(command, info_name=name, parent=parent, help_option_names=["-h", "--help"])


def _root_options() -> list[tuple[str, str]]:
    root: Any = typer.main.get_command(app)
    rows: list[tuple[str, str]] = root.option_rows(_context(root, PROGRAM_NAME))
    return rows


def _page_for_programs() -> str:
    commands = "\n".join(f"    toolway {name:<22} {entry.help}" for name, entry in all_commands())
    exits = "\n".join(f"    {code:<4} {name}" for code, name in _list_exit_codes())
    return _PAGE_TEMPLATE.format(version=__version__, commands=commands, exits=exits)


def _list_exit_codes() -> list[tuple[int, str]]:
    return [(int(code), code.name.lower().replace("_", " ")) for code in ExitCode]
