"""The plan for starting a confined server process, and how Toolway's own folders are hidden from it.

`sandboxes.py` makes the sandboxes `guard` and `strict`; `sandbox_choice.py` picks one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolway._os.support import Feature, missing
from toolway.config.locations import private_files
from toolway.config.schema import Sandbox
from toolway.errors import PLATFORM_CODE
from toolway.part_api import registry
from toolway.upstream.process import landlock
from toolway.upstream.process.path_facts import all_places


class SandboxError(Exception):
    """Raised when the server's sandbox is not possible here.

    `code` is the name of the errno, E-SANDBOX, or E-PLATFORM if no sandbox on this system can do that.
    """

    def __init__(self, text: str, code: str = "E-SANDBOX", hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.hint = hint


def program_folders() -> list[str]:
    """Return the names of the folders inside the data folder that hold servers' programs."""
    return ["bundles", *(part.program_folder for part in registry.guarding() if part.program_folder)]


def require(feature: Feature) -> None:
    """Raise `SandboxError` if this operating system lacks a sandbox feature."""
    if lacked := missing(feature):
        raise SandboxError(f"{lacked.message}: {lacked.detail}", PLATFORM_CODE, lacked.hint)


class Confinement(msgspec.Struct, frozen=True):
    """How to start a program: command line, environment, and what the reaper does first."""

    argv: list[str]
    env: Mapping[str, str]
    orders: Mapping[str, Any]  # part of the spawn command
    folder: str = ""  # private home and temporary folder, removed when the process has ended

    def clean_up(self) -> None:
        """Remove the process's private folder, if it has one. The folder may be large, so call this in a thread."""
        if self.folder:
            import shutil  # slow to import

            shutil.rmtree(self.folder, ignore_errors=True)


def hide_own_folders(sandbox: Sandbox, own_folders: Sequence[str]) -> dict[str, Any]:
    """Return the part of a spawn command that makes the reaper hide Toolway's own folders with Landlock.

    The part is empty if nothing can or should be hidden. Raises `SandboxError` if the setting is `guard` and this
    kernel cannot hide folders.
    """
    if sandbox == "off" or not own_folders:
        return {}
    if landlock.abi_version() < landlock.MIN_ABI:
        if sandbox == "guard":
            raise SandboxError('this system has no Landlock for "sandbox": "guard" (Linux 5.19 or later)', "ENOSYS")
        return {}
    folders, files = [os.path.realpath(folder) for folder in own_folders], [*map(os.path.realpath, private_files())]
    if sandbox == "guard":
        folders += all_places(folders)
        files += all_places(files)
    certain = [path for path in (*folders, *files) if landlock.hides_nothing_else(path)]
    hidden = sorted({*folders, *certain}) if sandbox == "guard" else certain
    return {"hidden": hidden, "kept": [os.path.join(folder, name) for folder in hidden for name in program_folders()]}
