"""`toolway explain` and `toolway completion`: error codes and shell scripts.

The pages about error codes are in docs/errors.
"""

from __future__ import annotations

import difflib
import os
import sys
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # not listed there
from typer.completion import install as install_script  # type: ignore[attr-defined] # not listed there

from toolway.cli.completion import complete_codes
from toolway.cli.error_pages import ERROR_PAGE_DIRS, first_paragraph
from toolway.cli.exit_codes import ExitCode, UsageError, did_you_mean
from toolway.cli.framework import COMPLETE_VARIABLE, PROGRAM_NAME, CommandResult
from toolway.cli.help.other_names import RENAMED_CODES
from toolway.cli.options import CommandContext
from toolway.errors import NotFound


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
        # Without the prefix, which all codes share: it would make every code similar.
        named = difflib.get_close_matches(
            full_code.removeprefix("E-"), [page.removeprefix("E-") for page in pages], n=3
        )
        if now := RENAMED_CODES.get(full_code.removeprefix("E-")):
            named = [now]
        hint = f"did you mean {' or '.join(f'E-{each}' for each in named)}?" if named else "list all: toolway explain"
        raise NotFound(f"unknown error code {code!r}", hint=hint)
    text = pages[full_code].read_text(encoding="utf-8")
    if output.as_json:
        output.print_json({"code": full_code, "meaning": first_paragraph(pages[full_code]), "text": text})
    else:
        sys.stdout.write(text)
    return ExitCode.OK


# -- completion --------------------------------------------------------------------------------------------------------

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
    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in SHELLS:
        message = f"unsupported shell {chosen!r}" if chosen else "unknown shell: SHELL is not set"
        raise UsageError(message, hint=did_you_mean(chosen, SHELLS) or f"pick one: {', '.join(SHELLS)}")
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
