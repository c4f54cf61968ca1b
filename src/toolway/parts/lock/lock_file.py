"""`toolway.lock`: the exact packages of the `npx` and `uvx` entries in the config file next to it.

The file has package versions and hashes, and the digest of the installed tree for each platform. It never contains a
registry's address. The same content is always written as the same bytes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from toolway.errors import ConfigError
from toolway.parts.lock import PackageLocks
from toolway.parts.lock.runner_command import Ecosystem

LOCK_CODE: Final = "E-LOCK"
FORMAT: Final = 1
MAX_LOCK_BYTES: Final = 32 * 1024 * 1024
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PROGRAM: Final = re.compile(r"(?:node_modules/\.bin|bin)/[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class LockedEntry:
    """One server entry in `toolway.lock`: its command, its packages, and the digests of installed trees."""

    ecosystem: Ecosystem
    packages: tuple[str, ...]  # requirements as the entry had them
    program: str  # path in the tree
    name: str = ""  # program that the command line named, if it named one
    python: str = ""  # version of Python that the command line asked for
    contents: Mapping[str, Any] = field(default_factory=dict, repr=False)  # npm: by path; PyPI: by platform, by name
    trees: Mapping[str, str] = field(default_factory=dict)  # digest of the installed tree by platform

    def versions(self, platform: str) -> dict[str, str]:
        """Return the versions of all packages by name. If npm installs several versions of one, they are joined."""
        found: dict[str, set[str]] = {}
        for name, version in self.iter_packages(platform):
            found.setdefault(name, set()).add(version)
        return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}

    def iter_packages(self, platform: str) -> list[tuple[str, str]]:
        """Yield (name, version) for each package that this entry locks on a platform."""
        if self.ecosystem == "npm":
            return [(npm_name(path, each), each["version"]) for path, each in self.contents.items()]
        return [(name, each["version"]) for name, each in self.contents.get(platform, {}).items()]


class PackageLock(msgspec.Struct, frozen=True):
    """How a server entry stands in `toolway.lock`: locked, not locked, no lock file, or an unusable file."""

    file: str  # path of the lock file, which may not exist
    exists: bool = False
    entry: LockedEntry | None = None
    problem: str = ""  # why the file cannot be used


def npm_name(path: str, package: Mapping[str, Any]) -> str:
    """Return the package name in a path such as `node_modules/a/node_modules/@b/c`."""
    return str(package.get("name") or path.rpartition("node_modules/")[2])


def lock_path(config_file: str) -> str:
    """Return the path of the lock file next to a config file."""
    return os.path.join(os.path.dirname(config_file), PackageLocks.entry_file)


def read_lock(path: str) -> dict[str, LockedEntry] | None:
    """Return a lock file's entries by server, or None if the file does not exist.

    Raises `ConfigError` if the file cannot be read or is not in the right format.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _unusable(path, exc.strerror or str(exc)) from None
    if len(data) > MAX_LOCK_BYTES:
        raise _unusable(path, f"it is larger than {MAX_LOCK_BYTES} bytes")
    try:
        document = json.loads(data, object_pairs_hook=_reject_duplicates)
        if document["version"] != FORMAT:
            raise _unusable(path, f"its version is {document['version']!r}, not {FORMAT}")
        return {str(name): _parse_entry(each) for name, each in document["servers"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _unusable(path, f"{type(exc).__name__}: {exc}"[:200]) from None


def find_locks(config_file: str, servers: Collection[str]) -> dict[str, PackageLock]:
    """Return how each of these servers stands in the lock file next to a config file."""
    path = lock_path(config_file)
    try:
        entries = read_lock(path)
    except ConfigError as exc:
        return dict.fromkeys(servers, PackageLock(path, exists=True, problem=exc.detail))
    if entries is None:
        return dict.fromkeys(servers, PackageLock(path))
    return {name: PackageLock(path, exists=True, entry=entries.get(name)) for name in servers}


def _parse_entry(value: Mapping[str, Any]) -> LockedEntry:
    ecosystem = value["ecosystem"]
    if ecosystem not in ("npm", "PyPI"):
        raise ValueError(f"unknown ecosystem {ecosystem!r}")
    program = _text(value["program"])
    if not _PROGRAM.fullmatch(program):
        raise ValueError(f"program {program!r} is not in the tree")
    trees = {_text(platform): _text(digest) for platform, digest in value["trees"].items()}
    if not all(_DIGEST.fullmatch(digest) for digest in trees.values()):
        raise ValueError("a digest in trees is not SHA-256")
    packages = tuple(_text(each) for each in value["packages"])
    if not packages:
        raise ValueError("packages is empty")
    lists = [value["contents"]] if ecosystem == "npm" else list(value["contents"].values())
    for found in lists:
        for path, package in found.items():
            _check_package(ecosystem, path, package)
    return LockedEntry(
        cast(Ecosystem, ecosystem),
        packages,
        program,
        _text(value.get("name", "")),
        _text(value.get("python", "")),
        value["contents"],
        trees,
    )


def _check_package(ecosystem: str, path: str, package: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a package is not from a registry, or has no hash."""
    _text(package["version"])
    if ecosystem == "PyPI":
        if not package["hashes"] or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in package["hashes"]):
            raise ValueError(f"{path} has no hashes")
        return
    if not path.startswith("node_modules/") or ".." in path.split("/"):
        raise ValueError(f"path {path!r} is not in node_modules")
    if "resolved" in package or "link" in package:
        raise ValueError(f"{path} is not from the registry")
    if not package.get("inBundle") and not re.match(r"sha(?:512|384|256|1)-", _text(package["integrity"])):
        raise ValueError(f"{path} has no hash")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return value


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _unusable(path: str, detail: str) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used",
        file=path,
        detail=detail,
        hint="restore it, or remove it and lock again: toolway trust lock",
        code=LOCK_CODE,
    )
