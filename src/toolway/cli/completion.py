"""`toolway completion`: what makes a shell complete commands, options, servers and tools."""

from __future__ import annotations

import os
import sys

from typer.completion import get_completion_script  # type: ignore[attr-defined] # not listed there
from typer.completion import install as put  # type: ignore[attr-defined] # not listed there

from toolway.cli.exits import Exit, UsageError
from toolway.cli.frame import COMPLETE, NAME
from toolway.cli.meant import did_you_mean
from toolway.cli.options import Session

SHELLS = ("bash", "zsh", "fish", "powershell")


def completion(session: Session, shell: str | None, *, install: bool) -> Exit:
    """The script of a shell on stdout, or put where the shell finds it."""
    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    if chosen not in SHELLS:
        what = f"{chosen!r} is no shell that can be completed in" if chosen else "which shell is meant?"
        raise UsageError(what, fix=did_you_mean(chosen, SHELLS) or f"name one: {', '.join(SHELLS)}")
    output = session.output
    if install:
        _, path = put(shell=chosen, prog_name=NAME, complete_var=COMPLETE)
        if output.as_json:
            output.facts({"shell": chosen, "file": str(path)})
        else:
            output.say(f"written to {path}; it works in the next {chosen} you open", "green")
        return Exit.OK
    script = get_completion_script(prog_name=NAME, complete_var=COMPLETE, shell=chosen)
    if output.as_json:
        output.facts({"shell": chosen, "script": script})
    else:
        sys.stdout.write(script + "\n")
        if sys.stdout.isatty():
            output.say(f"to have it always: toolway completion {chosen} --install", "dim")
    return Exit.OK
