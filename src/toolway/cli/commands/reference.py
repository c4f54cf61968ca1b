"""`toolway explain`, `toolway agent-help`, `toolway completion`: error codes, a CLI reference, shell scripts.

The pages about error codes are those of docs/errors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from toolway._version import __version__
from toolway.cli.completion import complete_codes
from toolway.cli.exit_codes import ExitCode, UsageError, did_you_mean
from toolway.cli.framework import COMPLETE_VARIABLE, PROGRAM_NAME, CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.table import COMMANDS
from toolway.errors import NotFound

_PACKAGE_DIR: Final = Path(__file__).resolve().parents[2]
# In an installed package, and in a source checkout.
ERROR_PAGE_DIRS: Final = (_PACKAGE_DIR / "docs" / "errors", _PACKAGE_DIR.parents[1] / "docs" / "errors")
_PAGE_TEMPLATE = """\
# toolway {version} for programs

One CLI for many MCP servers. Add --json to any command: stdout is then one JSON
document, also for an error, and its keys never change their meaning.

## Find a tool and call it

    toolway tools WORD... --json          tools with all these words: name, description, input_schema
    toolway call SERVER.TOOL --json '{{"argument": "value"}}'
    toolway call SERVER.TOOL name=text count:=5 flag:=true body@=file.txt

The result has "text", "data" (structured, if the tool returns it), "content" and "is_error".
Tool lists are cached on disk; --refresh updates them.

## When it fails

    {{"error": {{"code", "message", "detail", "hint", "exit", ...}}}}

"executed" of a call says whether the call was executed: "no" can be repeated, "unknown" only after
a check, "yes" not. `toolway explain CODE` has a page for every code; `toolway doctor NAME --json`
names the cause if a server does not work.

## Exit codes

{exits}

## Commands

{commands}

Global options: --config FILE, --gateway URL, --token TOKEN, --no-gateway, --json, -q, -v, --no-color.
`toolway COMMAND --help` shows the rest. Secrets are never printed: they are shown as ***.
"""


def explain(
    context: CommandContext,
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE]",
            help="For example E-STDIO-ENOENT. Default: all.",
            show_default=False,
            autocompletion=complete_codes,
        ),
    ] = None,
) -> CommandResult:
    """Show the meaning of the error code, its causes and fixes."""
    return run_explain(context, code)


def agent_help(context: CommandContext) -> CommandResult:
    return run_agent_help(context)


# -- explain -----------------------------------------------------------------------------------------------------------


def run_explain(context: CommandContext, code: str | None) -> ExitCode:
    """Print the page of an error code, or a list of all codes."""
    pages = {page.stem: page for folder in ERROR_PAGE_DIRS for page in folder.glob("E-*.md")}
    output = context.output
    if code is None:
        rows = [(name, first_paragraph(pages[name])) for name in sorted(pages)]
        if output.as_json:
            output.print_json({"codes": [{"code": name, "meaning": meaning} for name, meaning in rows]})
        else:
            output.print_table(("code", "meaning"), rows)
        return ExitCode.OK
    full_code = code.upper() if code.upper().startswith("E-") else f"E-{code.upper()}"
    if full_code not in pages:
        hint = did_you_mean(full_code, pages) or "list all codes: toolway explain"
        raise NotFound(f"unknown error code {code!r}", hint=hint)
    text = pages[full_code].read_text(encoding="utf-8")
    if output.as_json:
        output.print_json({"code": full_code, "meaning": first_paragraph(pages[full_code]), "text": text})
    else:
        sys.stdout.write(text)
    return ExitCode.OK


def first_paragraph(page: Path) -> str:
    """Return the first paragraph of an error code's page, which states the meaning of the code."""
    return page.read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")


# -- agent-help --------------------------------------------------------------------------------------------------------


def run_agent_help(context: CommandContext) -> ExitCode:
    """Print the one-page CLI reference for programs and agents, as text or as JSON."""
    if context.output.as_json:
        context.output.print_json(
            {"version": __version__, "commands": dict(_list_commands()), "exits": dict(_list_exit_codes())}
        )
        return ExitCode.OK
    commands = "\n".join(f"    toolway {name:<18} {about}" for name, about in _list_commands())
    exits = "\n".join(f"    {code:<4} {name}" for code, name in _list_exit_codes())
    sys.stdout.write(_PAGE_TEMPLATE.format(version=__version__, commands=commands, exits=exits))
    return ExitCode.OK


def _list_commands(prefix: str = "", table: Any = COMMANDS) -> list[tuple[str, str]]:
    found = []
    for name, entry in table.items():
        if not entry.hidden and (entry.subcommands is None or entry.function_path):
            found.append((f"{prefix}{name}", entry.help))
        if entry.subcommands is not None:
            found += _list_commands(f"{prefix}{name} ", entry.subcommands)
    return found


def _list_exit_codes() -> list[tuple[int, str]]:
    return [(int(code), code.name.lower().replace("_", " ")) for code in ExitCode]


# -- completion

SHELLS: Final = ("bash", "zsh", "fish", "powershell")


def completion(
    context: CommandContext,
    shell: Annotated[
        str | None,
        typer.Argument(metavar="[SHELL]", help="bash, zsh, fish or powershell. Default: yours.", show_default=False),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install the script for the shell.")] = False,
) -> CommandResult:
    """Print a script for the shell that completes commands, options, servers and tools."""
    return run_completion(context, shell, install=install)


def run_completion(context: CommandContext, shell: str | None, *, install: bool) -> ExitCode:
    """Print the completion script of a shell, or install it."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined] # not listed there
    from typer.completion import install as install_script  # type: ignore[attr-defined] # not listed there

    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in SHELLS:
        message = f"unsupported shell {chosen!r}" if chosen else "unknown shell: SHELL is not set"
        raise UsageError(message, hint=did_you_mean(chosen, SHELLS) or f"choose one: {', '.join(SHELLS)}")
    output = context.output
    if install:
        _, path = install_script(shell=chosen, prog_name=PROGRAM_NAME, complete_var=COMPLETE_VARIABLE)
        if output.as_json:
            output.print_json({"shell": chosen, "file": str(path)})
        else:
            output.info(f"written to {path}; it takes effect in the next {chosen} you open", "green")
        return ExitCode.OK
    script = get_completion_script(prog_name=PROGRAM_NAME, complete_var=COMPLETE_VARIABLE, shell=chosen)
    if output.as_json:
        output.print_json({"shell": chosen, "script": script})
    else:
        sys.stdout.write(script + "\n")
        if sys.stdout.isatty():
            output.info(f"to install it: toolway completion {chosen} --install", "dim")
    return ExitCode.OK
