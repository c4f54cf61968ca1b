"""`toolway completion`: shell scripts that complete commands, options, servers and tools."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from toolway.cli.exit_codes import ExitCode, UsageError, did_you_mean
from toolway.cli.framework import COMPLETE_VARIABLE, PROGRAM_NAME, CommandResult
from toolway.cli.options import CommandContext

SHELLS = ("bash", "zsh", "fish", "powershell")


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
