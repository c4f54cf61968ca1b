"""Runs the commands of a page, and compares what they say with what the page says.

A ```console block has commands, which begin with `$ ` (`> ` continues with one), and below each its output, of both
streams. `…` in a line stands for anything, and a line of nothing else for any lines.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from tests.orphans import no_other_orphans

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_MARK = "\x1e next command \x1e"


def commands_of(page: Path) -> list[tuple[str, list[str]]]:
    """The commands, with the output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    for block in _BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> ") and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
            else:
                found[-1][1].append(line)
    return found


def outputs_of(commands: list[str], folder: Path, environ: Mapping[str, str], seconds: float = 120) -> list[str]:
    """What each of them says, one after the other in one shell."""
    script = "\n".join(f"{command}\nprintf '%s\\n' '{_MARK}'" for command in commands)
    # What another test leaves for a moment would be shown by a doctor.
    with no_other_orphans() if "toolway doctor" in script else nullcontext():
        done = _run(script, folder, environ, seconds)
    return done.stdout.split(f"{_MARK}\n")[:-1]


def _run(script: str, folder: Path, environ: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"exec 2>&1\nset -m\n{script}"],
        cwd=folder,
        env={**environ, "PYTHONUNBUFFERED": "1"},  # both streams in the order in which a terminal shows them
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=seconds,
        check=False,
    )


def fits(said: str, shown: list[str]) -> bool:
    lines = ["(?:.*\n)*?" if line == "…" else f"{re.escape(line).replace('…', '.*')}\n" for line in shown]
    return re.fullmatch("".join(lines), said) is not None
