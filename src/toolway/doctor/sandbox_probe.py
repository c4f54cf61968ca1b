"""Tries a server's sandbox: runs a small program in it that tries to read private files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from toolway.config.locations import own_folders
from toolway.config.schema import Server
from toolway.doctor.security_facts import SandboxProbe
from toolway.upstream.process.bubblewrap import SECRET_PATHS, refuse_package_runner
from toolway.upstream.process.confinement import SandboxError, program_folders
from toolway.upstream.process.pipes import read_all
from toolway.upstream.process.sandboxes import describe
from toolway.upstream.process.shown_paths import program_paths
from toolway.upstream.process.spawner import Spawner, SpawnError, build_environment

SHELL: Final = "/bin/sh"
PROBE_TIMEOUT_S: Final = 20.0
MAX_SEARCHED_FILES: Final = 200  # in one folder, for one that can be read
MAX_OUTPUT_BYTES: Final = 256 * 1024
OWN_FILES: Final = "files of Toolway"
#: Prints the number of each file of which a byte can be read.
_SCRIPT: Final = (
    'n=0; for f; do if [ -n "$(head -c 1 "$f" 2>/dev/null | tr "\\0" x)" ]; then echo $n; fi; n=$((n+1)); done'
)


def find_private_files(environ: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """Return private files that no server may read, with a description each.

    `more` has other files, such as a `.env`. Return nothing if Toolway has no file to try.
    """
    own = [path for folder in own_folders(environ) if (path := _first_file(folder, program_folders()))]
    if not own:
        return {}
    found = {f"{OWN_FILES} ({path})": path for path in dict.fromkeys(own)}
    found |= {path: path for path in more if _is_readable(path)}
    home = environ.get("HOME", "")
    for name in SECRET_PATHS if home else ():
        if path := _first_file(Path(home) / name):
            found[f"~/{name}"] = path
    process = f"/proc/{os.getpid()}/environ"
    return found | ({"the variables of other processes": process} if _is_readable(process) else {})


def _first_file(place: Path, skipped: Iterable[str] = ()) -> str:
    """Return the path of a readable file with content: `place` itself, or a file in the folder `place`; "" if none."""
    return next((path for path in islice(_files(place, skipped), MAX_SEARCHED_FILES) if _is_readable(path)), "")


def _files(place: Path, skipped: Iterable[str]) -> Iterator[str]:
    if place.is_file():
        yield os.fspath(place)
    for folder, names, files in os.walk(place):
        names[:] = sorted(name for name in names if name not in skipped)
        yield from (os.path.join(folder, name) for name in sorted(files))


def _is_readable(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return os.path.isfile(path) and bool(file.read(1))
    except OSError:
        return False


async def probe_sandbox(
    server: Server, argv: list[str], files: Mapping[str, str], environ: Mapping[str, str], spawner: Spawner
) -> SandboxProbe | None:
    """Start a program in a server's sandbox, and return which files it could read.

    `argv` is the command line of the server itself, from its lock if it has one. The program sees what this command
    line sees. Return None if this system has no shell.
    """
    if not os.access(SHELL, os.X_OK):
        return None
    env = build_environment(environ, server.env_policy, {})
    grants = server.grants
    try:
        made_by = (await asyncio.to_thread(describe, server.sandbox, grants))[0].removeprefix("made by ")
        if server.sandbox == "strict":
            refuse_package_runner(argv, grants)
            own = await asyncio.to_thread(program_paths, argv, {**env, **server.env}, server.cwd)
            grants = replace(grants, read=(*grants.read, *own))
        process = await spawner.start(
            [SHELL, "-c", _SCRIPT, SHELL, *files.values()], env, server.cwd, server.sandbox, grants
        )
    except (SandboxError, SpawnError, ValueError, OSError) as exc:
        return SandboxProbe(problem=getattr(exc, "detail", "") or str(exc))
    process.stdin.close()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reading = (read_all(each, MAX_OUTPUT_BYTES) for each in (process.stdout, process.stderr))
            output, errors = [data.decode(errors="replace") for data in await asyncio.gather(*reading)]
            status = await process.exited
    except TimeoutError:
        process.kill_tree()
        return SandboxProbe(made_by, problem=f"a program in it did not end within {PROBE_TIMEOUT_S:g} s")
    finally:
        process.stdout.close()
        process.stderr.close()
    labels = [*files]
    if status != 0:
        return SandboxProbe(made_by, problem=errors.strip()[-200:] or f"a program in it ended with code {status}")
    return SandboxProbe(made_by, tuple(labels), tuple(labels[int(number)] for number in output.split()))
