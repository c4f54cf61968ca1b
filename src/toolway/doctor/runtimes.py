"""What runs a server: which version of Node.js, uv or Docker, and which version of a package."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from toolway.config.spec import Server
from toolway.doctor.commands import output_of
from toolway.upstream.causes import NODE_PROGRAMS

OLDEST_NODE: Final = 18  # below it there is no `fetch`, which nearly every server needs
WAIT: Final = 3.0
_RUNS: Final = {**dict.fromkeys(NODE_PROGRAMS, "node"), "uvx": "uv", "uv": "uv", "docker": "docker", "deno": "deno"}
_TAKES_A_VALUE: Final = frozenset({"--python", "--with", "--registry", "--cache", "--index", "--prefix"})
_NAMES_THE_PACKAGE: Final = ("--package", "-p", "--from")


async def runtime(server: Server, path: str, environ: Mapping[str, str]) -> str:
    """The program that runs the command, with its version: `node v22.1.0`; empty where that says nothing."""
    program = _RUNS.get(os.path.basename(server.command or ""))
    if program is None:
        return ""
    # A full path brings its folder along, as the fix for a program that is not on PATH does.
    folder = os.path.dirname(server.command or "")
    searched = os.pathsep.join(filter(None, (path, folder)))
    said = await output_of(["/usr/bin/env", program, "--version"], {**environ, "PATH": searched}, WAIT)
    found = re.search(r"v?\d+(?:\.\d+)+", said)
    return f"{program} {found[0]}" if found else ""


def is_old(runtime: str) -> bool:
    """Whether it is a Node.js that most servers cannot run on."""
    found = re.fullmatch(r"node v?(\d+)\..*", runtime)
    return found is not None and int(found[1]) < OLDEST_NODE


def unpinned(server: Server) -> str:
    """The package that a runner gets in its newest version at every start; empty where a version is named."""
    if os.path.basename(server.command or "") not in ("npx", "uvx", "bunx"):
        return ""
    package = _package(server.args)
    version = re.search(r"(?<=.)@\d|[=<>~]=|^(?:git\+|https?:|file:|[./])", package)
    return "" if version else package


def _package(args: tuple[str, ...]) -> str:
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word.startswith(tuple(f"{flag}=" for flag in _NAMES_THE_PACKAGE)):
            return word.partition("=")[2]
        if word in _NAMES_THE_PACKAGE:
            return rest[0] if rest else ""
        if word in _TAKES_A_VALUE and rest:
            rest.pop(0)
        elif not word.startswith("-"):
            return word
    return ""
