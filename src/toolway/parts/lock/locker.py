"""Locks the packages of server entries: resolves, checks, and installs them, and builds their lock entries."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolway._os import cache_folder
from toolway.parts.lock import npm, pypi
from toolway.parts.lock.lock_file import LockedEntry, npm_name
from toolway.parts.lock.malware import MalwareIndex
from toolway.parts.lock.runner_command import PackageCommand
from toolway.parts.lock.start import matches, reject_malware
from toolway.parts.lock.store import TreeStore, machine_platform
from toolway.parts.lock.tool_process import LockError
from toolway.parts.lock.tree import hash_tree

AGE_CODE: Final = "E-LOCK-AGE"
_MAX_NAMED: Final = 5  # packages that a message names


class VersionChange(NamedTuple):
    """One package's change between two locks. A version is "" if the package is not in that lock."""

    package: str
    before: str
    after: str


@dataclass(slots=True)
class Locker:
    """Resolves and installs the packages that `npx` and `uvx` entries run, for `toolway.lock`.

    `min_age` is a package's minimum age in seconds. 0 accepts any age, even if the registry does not say when a package
    was published.
    """

    environ: Mapping[str, str]
    min_age: float
    malware: MalwareIndex | None = None
    now: float = field(default_factory=time.time)

    @property
    def store(self) -> TreeStore:
        return TreeStore.open(self.environ)

    def lock(self, command: PackageCommand, current: LockedEntry | None) -> tuple[LockedEntry, str]:
        """Lock and install a command's packages. Return its entry for `toolway.lock`, and what was done.

        What was done is "locked", "installed", or "" for nothing. A `current` entry with the same packages is kept, and
        is installed only if its tree is missing or damaged. Raises `LockError`, and `ConfigError` if a package is
        malware.
        """
        if current is None or not matches(current, command):
            return self.resolve(command), "locked"
        platform, python = self._platform(command)
        digest = current.trees.get(platform)
        if digest is not None:
            reject_malware(current, platform, self.malware)
            if not self.store.check(digest, platform):
                return current, ""
            self._install(command, current.contents, platform, python, digest)
            return current, "installed"
        if current.ecosystem == "npm":
            reject_malware(current, platform, self.malware)
            _, digest = self._install(command, current.contents, platform, python)
            return replace(current, trees={**current.trees, platform: digest}), "installed"
        versions: Mapping[str, Any] = next(iter(current.contents.values()), {})
        added = self.resolve(command, [f"{name}=={each['version']}" for name, each in versions.items()])
        contents = {**current.contents, **added.contents}
        return replace(current, contents=contents, trees={**current.trees, **added.trees}), "installed"

    def resolve(self, command: PackageCommand, constraints: list[str] | None = None) -> LockedEntry:
        """Find the newest packages for a command that are old enough, and install them."""
        platform, python = self._platform(command)
        before = datetime.fromtimestamp(int(self.now - self.min_age), UTC) if self.min_age > 0 else None
        with self.store.new_tree() as folder:
            if python is None:
                contents: dict[str, Any] = npm.resolve(command, self.environ, folder, self._npm_cache, before)
            else:
                found = pypi.resolve(command, python, self.environ, folder, before, constraints or [])
                contents = {platform: found}
        if before is not None and command.ecosystem == "npm":
            self._check_age(contents, before)
        entry = LockedEntry(command.ecosystem, command.packages, "", command.program, command.python, contents=contents)
        reject_malware(entry, platform, self.malware)
        program, digest = self._install(command, contents, platform, python)
        return replace(entry, program=program, trees={platform: digest})

    def _install(
        self,
        command: PackageCommand,
        contents: Mapping[str, Any],
        platform: str,
        python: pypi.Python | None,
        expected: str = "",
    ) -> tuple[str, str]:
        """Install locked packages into a new folder in the store. Return the path of the program in it, and its digest.

        Raises `LockError` if `expected` is given and differs from that digest.
        """
        with self.store.new_tree() as folder:
            if python is None:
                npm.install(command.packages, contents, self.environ, folder, self._npm_cache)
                modules = folder
            else:
                modules = pypi.install(contents[platform], python, self.environ, folder)
                pypi.take_scripts(modules, folder)
            digest = hash_tree(os.fspath(folder)).portable
            if expected and digest != expected:
                raise LockError(
                    f"{command.packages[0]} differs from its lock",
                    detail=f"installed {digest}, locked {expected}",
                    hint="if the registry changed a package, do not use it. To lock it again: toolway trust update",
                )
            if python is not None:
                pypi.complete(folder, self.store.folder(digest, platform), modules, python, self.environ)
                program = pypi.find_program(command, folder)
            else:
                program = npm.find_program(command, folder)
            self.store.add(folder, digest, platform)
        return program, digest

    def _platform(self, command: PackageCommand) -> tuple[str, pypi.Python | None]:
        if command.ecosystem == "npm":
            return machine_platform(), None
        python = pypi.find_python(command.python, self.environ)
        return python.platform, python

    @property
    def _npm_cache(self) -> Path:
        return (cache_folder(self.environ) or Path("/.cache/toolway")) / "npm"

    def _check_age(self, contents: Mapping[str, Any], before: datetime) -> None:
        """Raise `LockError` if a package is too young, or if its registry does not say when it was published."""
        times = npm.publish_times(contents, self._npm_cache)
        young = [f"{name} {version}" for (name, version), time in times.items() if time is not None and time > before]
        unknown = [f"{name} {version}" for (name, version), time in times.items() if time is None]
        days = f"{self.min_age / 86_400:g}"
        if young:
            raise LockError(
                f"{len(young)} packages are younger than {days} days",
                detail=_shorten(young),
                hint="wait, or accept packages of any age: toolway trust lock --min-age 0",
                code=AGE_CODE,
            )
        if unknown:
            raise LockError(
                "the age of packages cannot be checked",
                detail=f"the registry does not say when these were published: {_shorten(unknown)}",
                hint="use a registry with publication times, or accept any age: toolway trust lock --min-age 0",
                code=AGE_CODE,
            )


def compare(before: LockedEntry | None, after: LockedEntry) -> list[VersionChange]:
    """Return the packages whose versions differ between two locks of one server."""
    old = _all_versions(before) if before is not None else {}
    new = _all_versions(after)
    names = sorted({*old, *new})
    return [
        VersionChange(name, old.get(name, ""), new.get(name, ""))
        for name in names
        if old.get(name, "") != new.get(name, "")
    ]


def script_packages(entry: LockedEntry) -> list[str]:
    """Return the npm packages that have install scripts, which were not run."""
    if entry.ecosystem != "npm":
        return []
    return sorted(npm_name(path, each) for path, each in entry.contents.items() if each.get("hasInstallScript"))


def _all_versions(entry: LockedEntry) -> dict[str, str]:
    platforms = [""] if entry.ecosystem == "npm" else sorted(entry.contents)
    found: dict[str, str] = {}
    for platform in platforms:
        found |= entry.versions(platform)
    return found


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
