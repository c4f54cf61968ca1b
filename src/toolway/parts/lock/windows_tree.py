"""Programs of installed packages on Windows.

uv and pip write launchers (.exe) that contain an interpreter's path, and a Python environment needs a link to an
interpreter, which only administrators may create. So a tree has plain scripts instead, and a file that records which
interpreter runs them. Both are in the tree's local part, whose digest is compared at each start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

SETTINGS_FILE: Final = "pyvenv.cfg"
_NOTE: Final = "executable = "
_GROUPS: Final = ("console_scripts", "gui_scripts")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,100}")
_FUNCTION: Final = re.compile(
    r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*:\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(?:\[[^\]]*\])?"
)
_SCRIPT: Final = """\
import os
import site
import sys

site.addsitedir(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), {modules}))
from {module} import {first}

sys.exit({function}())
"""


def write_scripts(modules: Path, folder: Path) -> None:
    """Write a script for each program of the installed wheels into `bin` below `folder`, and remove the launchers."""
    programs = folder / "bin"
    for launcher in programs.glob("*.exe"):
        launcher.unlink()
    place = os.path.join(*modules.relative_to(folder).parts)
    for package in distributions(path=[os.fspath(modules)]):
        for entry in package.entry_points:
            found = _FUNCTION.fullmatch(entry.value)
            if entry.group not in _GROUPS or found is None or not _FILE_NAME.fullmatch(entry.name):
                continue
            module, function = found.groups()
            first = function.partition(".")[0]
            text = _SCRIPT.format(modules=repr(place), module=module, first=first, function=function)
            (programs / entry.name).write_text(text, encoding="utf-8", newline="\n")


def note_python(folder: Path, path: str, version: str) -> None:
    """Record the interpreter that runs a tree's scripts."""
    settings = f"home = {os.path.dirname(path)}\nversion = {version}\n{_NOTE}{path}\n"
    (folder / SETTINGS_FILE).write_text(settings, encoding="utf-8", newline="\n")


def python_command(folder: str, program: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs a tree's script without the packages of the interpreter itself."""
    with open(os.path.join(folder, SETTINGS_FILE), encoding="utf-8") as file:
        path = next(line.removeprefix(_NOTE).rstrip("\n") for line in file if line.startswith(_NOTE))
    return [path, "-S", "-B", os.path.join(folder, *program.split("/")), *arguments]


def node_command(folder: str, program: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs npm's batch file, which starts node with the program's script."""
    return [f"{os.path.join(folder, *program.split('/'))}.cmd", *arguments]
