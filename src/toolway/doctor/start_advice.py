"""Causes of a failed start found in the entry: variables, relative paths, docker, scripts.

Messages name keys, variables and paths of an entry, never the values of its variables.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable
from typing import Final

from toolway.config.schema import Server
from toolway.doctor.entry_checks import CheckTarget, format_entry_keys
from toolway.upstream.diagnosis import Diagnosis

HEAD_BYTES: Final = 256  # of a script: its first line names its interpreter
MIN_SIMILARITY: Final = 0.5  # of two names of variables, from 0 to 1
_MISSING_VARIABLE: Final = re.compile(r"the variable (\w+) is missing")
_MISSING_FILE: Final = re.compile(r"the (?:file|folder) (.+?) does not exist")
_INTERACTIVE_FLAG: Final = re.compile(r"--interactive(?:=true)?|-[A-Za-z]*i[A-Za-z]*")


def refine_cause(target: CheckTarget, server: Server, cause: Diagnosis, exit_code: int | None) -> Diagnosis:
    """Return a more precise cause of a failed start, if the entry shows one; else `cause`."""
    if missing := _MISSING_VARIABLE.search(cause.cause):
        return _misnamed_variable(missing[1], server.env) or cause
    if missing := _MISSING_FILE.search(cause.cause):
        return _unexpanded_path(target, server) or _relative_path(target, server, missing[1], cause) or cause
    if exit_code in (0, None) and (found := _docker_without_stdin(server)):
        return found
    return cause


def _misnamed_variable(missing: str, names: Iterable[str]) -> Diagnosis | None:
    """Return a cause if the entry sets a variable whose name is similar to the missing one; else None."""
    words = {missing.split("_")[0], missing.split("_")[-1]}
    similar = [name for name in names if name != missing and words & set(name.upper().split("_"))]
    close = difflib.get_close_matches(missing, [name.upper() for name in similar], 1, MIN_SIMILARITY)
    if not close:
        return None
    other = next(name for name in similar if name.upper() == close[0])
    return Diagnosis(
        f"the variable {missing} is missing, and its entry has {other}",
        f'use "{missing}" instead of "{other}" in env',
    )


def _unexpanded_path(target: CheckTarget, server: Server) -> Diagnosis | None:
    """Return a cause if an argument begins with `~` or `$NAME`, which only a shell expands."""
    for arg in server.args:
        if arg.startswith("~/") or re.match(r"\$[A-Za-z_]", arg):
            prefix = arg.split("/", 1)[0]
            where = "use the full path" if target.client else "use ${HOME} or the full path"
            return Diagnosis(f"no shell expands {prefix} in args, so the file is not found", where)
    return None


def _relative_path(target: CheckTarget, server: Server, missing: str, cause: Diagnosis) -> Diagnosis | None:
    """Return a cause if the missing file is an argument with a path relative to the working directory; else None."""
    found = [arg for arg in server.args if not os.path.isabs(arg) and os.path.normpath(missing).endswith(_plain(arg))]
    if not found or not _plain(found[0]):
        return None
    folder = os.path.dirname(target.file)
    start = server.cwd or "the folder where the program runs"
    text = f"{cause.cause}: {found[0]} is relative to {start}"
    if folder and os.path.exists(os.path.join(folder, found[0])):
        return Diagnosis(text, f"set the working directory: {format_entry_keys({'cwd': folder})}")
    return Diagnosis(text, "use the full path in args, or set cwd in the entry")


def _plain(path: str) -> str:
    return os.path.normpath(path).lstrip("./") if not path.startswith("-") else ""


def _docker_without_stdin(server: Server) -> Diagnosis | None:
    program = os.path.basename(server.command or "")
    if program not in ("docker", "podman") or "run" not in server.args:
        return None
    if any(_INTERACTIVE_FLAG.fullmatch(arg) for arg in server.args):
        return None
    place = server.args.index("run") + 1
    args = [*server.args[:place], "-i", *server.args[place:]]
    return Diagnosis(
        f"{program} run has no -i, so the server cannot read its input", f"add it: {format_entry_keys({'args': args})}"
    )


# -- scripts -----------------------------------------------------------------------------------------------------------


def script_problem(path: str) -> Diagnosis | None:
    """Return why the system cannot run a script: Windows line endings, or a missing interpreter."""
    try:
        with open(path, "rb") if os.path.isfile(path) else open(os.devnull, "rb") as file:  # a FIFO would block
            head = file.read(HEAD_BYTES)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        if head and b"\0" not in head and not head.startswith((b"\x7fELF", b"MZ")):
            hint = "add #!/bin/sh or its own interpreter as the first line, or use that interpreter as command"
            return Diagnosis(f"{path} is a script without an interpreter in its first line", hint)
        return None
    line = head.split(b"\n", 1)[0]
    if line.endswith(b"\r"):
        return Diagnosis(
            f"{path} has Windows line endings, so its interpreter is not found",
            f"convert it: sed -i 's/\\r$//' {shlex.quote(path)}",
        )
    words = line[2:].decode(errors="replace").split()
    if words and os.path.isabs(words[0]) and not os.path.exists(words[0]):
        hint = "install it, or fix the first line; if you moved a virtual environment, create it again"
        return Diagnosis(f"{path} needs {words[0]}, which does not exist", hint)
    return None
