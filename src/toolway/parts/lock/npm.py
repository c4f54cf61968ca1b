"""npm packages: resolves a package with its dependencies, and installs them from a lock without install scripts."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from toolway.parts.lock.lock_file import npm_name
from toolway.parts.lock.runner_command import PackageCommand, split_requirement
from toolway.parts.lock.tool_process import LockError, find_tool, run_tool

#: Fields of a package in package-lock.json that `npm ci` needs. The address is not one of them.
_KEPT_FIELDS: Final = (
    *("name", "version", "integrity", "dependencies", "optionalDependencies", "peerDependencies", "bin", "engines"),
    *("peerDependenciesMeta", "bundleDependencies", "os", "cpu", "libc", "optional", "dev", "devOptional", "peer"),
    *("inBundle", "hasInstallScript", "hasShrinkwrap"),
)
_FLAGS: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--omit-lockfile-registry-resolved", "--loglevel=error")
_MAX_PACKUMENT_BYTES: Final = 256 * 1024 * 1024


def resolve(
    command: PackageCommand, environ: Mapping[str, str], folder: Path, cache: Path, before: datetime | None
) -> dict[str, Any]:
    """Return the packages that npm picks for an npx command, by their path in the project: `node_modules/…`.

    Only packages published before `before` are used. Raises `LockError` if npm fails, or if a package is not from a
    registry.
    """
    _write_project(folder, command.packages, None)
    extra = [f"--before={before.isoformat()}"] if before is not None else []
    run_tool(
        [_npm(environ), "install", "--package-lock-only", *_FLAGS, "--cache", os.fspath(cache), *extra],
        environ,
        folder=os.fspath(folder),
        what=f"npm could not resolve {command.packages[0]}",
    )
    found = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    return {path: _kept(path, package) for path, package in sorted(found.items()) if path}


def install(
    requirements: Sequence[str], contents: Mapping[str, Any], environ: Mapping[str, str], folder: Path, cache: Path
) -> None:
    """Install locked packages into `folder`. npm compares each with its hash, and does not run their scripts."""
    _write_project(folder, requirements, contents)
    run_tool(
        [_npm(environ), "ci", *_FLAGS, "--cache", os.fspath(cache)],
        environ,
        folder=os.fspath(folder),
        what=f"npm could not install {requirements[0]}",
    )
    for name in ("package.json", "package-lock.json", "node_modules/.package-lock.json"):
        (folder / name).unlink(missing_ok=True)


def find_program(command: PackageCommand, folder: Path) -> str:
    """Return the path within `folder` of the program that npx would run. Raises `LockError` if there is none."""
    manifest = json.loads((folder / "node_modules" / command.name / "package.json").read_text(encoding="utf-8"))
    found = manifest.get("bin")
    own = command.name.rpartition("/")[2]
    programs = {own: found} if isinstance(found, str) else dict(found) if isinstance(found, dict) else {}
    name = command.program or (next(iter(programs)) if len(programs) == 1 else own)
    path = f"node_modules/.bin/{name}"
    if not command.program and name not in programs:
        names = ", ".join(sorted(programs)) or "none"
        raise LockError(
            f"{command.packages[0]} does not provide a program named {name}",
            detail=f"its programs: {names}",
            hint=f"pick one: npx -y -p {command.packages[0]} PROGRAM",
        )
    if not (folder / path).exists():
        raise LockError(
            f"{command.packages[0]} does not provide a program named {name}", detail="npm installed none of this name"
        )
    return path


def publish_times(contents: Mapping[str, Any], cache: Path) -> dict[tuple[str, str], datetime | None]:
    """Return when each package was published, by name and version, or None where the registry did not say.

    The times are in the documents that npm fetched to resolve the tree, and are read from npm's cache.
    """
    wanted = {(npm_name(path, each), each["version"]) for path, each in contents.items() if not each.get("inBundle")}
    names = {name for name, _ in wanted}
    times: dict[tuple[str, str], datetime | None] = dict.fromkeys(sorted(wanted))
    for name, document in _cached_documents(cache / "_cacache", names):
        published = document.get("time")
        if not isinstance(published, dict):
            continue
        for key in wanted:
            if key[0] == name and (time := _parse_time(published.get(key[1]))) is not None:
                times[key] = time
    return times


def _cached_documents(cache: Path, names: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the package documents in npm's cache, each with the package's name."""
    for bucket in sorted((cache / "index-v5").glob("*/*/*")):
        for line in bucket.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line.partition("\t")[2])
                url, integrity = unquote(entry["key"]), entry["integrity"]
            except (ValueError, KeyError, TypeError):
                continue
            found = re.search(r"/((?:@[^/]+/)?[^/]+)$", url)
            if found is None or found[1] not in names or not isinstance(integrity, str):
                continue
            document = _read_content(cache, integrity)
            if isinstance(document, dict) and document.get("name") == found[1]:
                yield found[1], document


def _read_content(cache: Path, integrity: str) -> Any:
    algorithm, _, encoded = integrity.split()[0].partition("-")
    try:
        digest = base64.b64decode(encoded, validate=True).hex()
        path = cache / "content-v2" / algorithm / digest[:2] / digest[2:4] / digest[4:]
        if path.stat().st_size > _MAX_PACKUMENT_BYTES:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, binascii.Error):
        return None


def _parse_time(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None


def _npm(environ: Mapping[str, str]) -> str:
    found = find_tool("npm", environ)
    if found is None:
        raise LockError(
            "npm is not installed", detail="npx entries need it", hint="install Node.js, which includes npm"
        )
    return found


def _write_project(folder: Path, requirements: Sequence[str], contents: Mapping[str, Any] | None) -> None:
    pairs = [split_requirement("npm", each) for each in requirements]
    if contents is not None:  # exact: a tag such as latest means another version later
        pairs = [(name, str(contents.get(f"node_modules/{name}", {}).get("version", ""))) for name, _ in pairs]
    project: dict[str, Any] = {"name": "locked", "version": "1.0.0", "private": True}
    project["dependencies"] = {name: wanted or "latest" for name, wanted in pairs}
    (folder / "package.json").write_text(json.dumps(project))
    if contents is not None:
        root = {key: project[key] for key in ("name", "version", "dependencies")}
        lock = {**root, "lockfileVersion": 3, "requires": True, "packages": {"": root, **contents}}
        lock.pop("dependencies")
        (folder / "package-lock.json").write_text(json.dumps(lock))


def _kept(path: str, package: Mapping[str, Any]) -> dict[str, Any]:
    if package.get("link") or "resolved" in package or not path.startswith("node_modules/"):
        raise LockError(
            f"{npm_name(path, package)} does not come from the registry",
            detail="it is a local folder, a repository, or a URL",
            hint="such a server cannot be locked: install it yourself, and set its program as the command",
        )
    if not package.get("inBundle") and not package.get("integrity"):
        raise LockError(
            f"the registry has no integrity hash for {npm_name(path, package)}",
            hint="use a registry that provides integrity hashes",
        )
    return {key: package[key] for key in _KEPT_FIELDS if key in package}
