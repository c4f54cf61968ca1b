"""PyPI packages: resolves them to wheels with hashes, and installs the wheels as a Python environment.

This uses `uv` if it is installed, or else the interpreter's pip. Only wheels are installed, so no package code runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from toolway._os import HAS_DRIVES
from toolway.parts.lock import windows_tree
from toolway.parts.lock.runner_command import PackageCommand, normalize, requirement_line, split_requirement
from toolway.parts.lock.store import machine_platform
from toolway.parts.lock.tool_process import LockError, find_tool, run_tool

_FACTS: Final = (
    "import json, os, platform, sys; "
    "print(json.dumps([os.path.realpath(getattr(sys, '_base_executable', '') or sys.executable), "
    "platform.python_version(), sys.implementation.name]))"
)
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)((?:\s*\\?\s*--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)
_INSTALL_FLAGS: Final = ("--no-deps", "--require-hashes", "--only-binary", ":all:")
_MIN_PIP_WITH_TIMES: Final = 26  # --uploaded-prior-to


@dataclass(frozen=True, slots=True)
class Python:
    """A Python interpreter that runs installed packages."""

    path: str
    version: str  # such as 3.12.3

    @property
    def platform(self) -> str:
        """Return the platform that this interpreter installs packages for, such as `linux-x86_64-cp312`."""
        return f"{machine_platform()}-cp{''.join(self.version.split('.')[:2])}"


def find_python(wanted: str, environ: Mapping[str, str]) -> Python:
    """Return the interpreter that uvx would use. Raises `LockError` if there is none."""
    uv = find_tool("uv", environ)
    if uv is not None:
        path = run_tool([uv, "python", "find", "--no-project", *([wanted] if wanted else [])], environ).strip()
    else:
        path = find_tool(f"python{wanted or '3'}", environ) or ""
    if not path:
        raise LockError(f"Python {wanted or 3} is not installed", hint="install it, or install uv, which fetches it")
    real, version, name = json.loads(run_tool([path, "-I", "-c", _FACTS], environ))
    if name != "cpython" or not (version == wanted or version.startswith(f"{wanted}.") or not wanted):
        raise LockError(f"{path} is {name} {version}, not Python {wanted}", hint=f"install Python {wanted}")
    return Python(real, version)


def resolve(
    command: PackageCommand,
    python: Python,
    environ: Mapping[str, str],
    folder: Path,
    before: datetime | None,
    constraints: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the wheels that uv or pip picks for a uvx command: version and hashes by package name.

    Only wheels published before `before` are used. `constraints` are the versions locked for another platform. Raises
    `LockError` if no such wheels exist.
    """
    lines = [requirement_line(each) for each in command.packages]
    file = folder / "constraints.txt"
    file.write_text("\n".join(constraints) + "\n", encoding="utf-8")
    uv = find_tool("uv", environ)
    if uv is not None:
        return _resolve_with_uv(uv, lines, python, environ, file, before)
    return _resolve_with_pip(lines, python, environ, file, before)


def install(contents: Mapping[str, Any], python: Python, environ: Mapping[str, str], folder: Path) -> Path:
    """Install locked wheels into `folder`, and return the folder with their modules.

    Each wheel must have a locked hash.
    """
    rows = [
        f"{name}=={each['version']} {' '.join(f'--hash={digest}' for digest in each['hashes'])}"
        for name, each in contents.items()
    ]
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(rows) + "\n", encoding="utf-8")
    modules = folder / "lib" / f"python{'.'.join(python.version.split('.')[:2])}" / "site-packages"
    uv = find_tool("uv", environ)
    pip = [*_pip(python), "install", "--no-compile", "--no-warn-script-location"]
    manager = [uv, "pip", "install", "--python", python.path, "--link-mode", "copy", "--quiet"] if uv else pip
    run_tool(
        [*manager, *_INSTALL_FLAGS, "--target", os.fspath(modules), "-r", os.fspath(requirements)],
        environ,
        what="the wheels could not be installed",
    )
    requirements.unlink()
    for name in (".lock", ".gitignore", "CACHEDIR.TAG"):
        (modules / name).unlink(missing_ok=True)  # of uv
    for cached in modules.rglob("__pycache__"):
        shutil.rmtree(cached)
    return modules


def take_scripts(modules: Path, folder: Path) -> None:
    """Move `bin`, the folder with the installed packages' scripts, from the modules' folder to the top of the tree."""
    written, programs = modules / "bin", folder / "bin"
    if written.is_dir():
        written.rename(programs)
    else:
        programs.mkdir()
    if HAS_DRIVES:
        windows_tree.write_scripts(modules, folder)


def complete(folder: Path, final: Path, modules: Path, python: Python, environ: Mapping[str, str]) -> None:
    """Finish an installed tree: fix its scripts, link its Python interpreter, and compile its modules.

    The tree is in `folder` but will be moved to `final`, so its scripts use that path.
    """
    if HAS_DRIVES:
        windows_tree.note_python(folder, python.path, python.version)
    else:
        _make_environment(folder, final, python)
    compiled = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    places = ["-s", os.fspath(folder), "-p", os.fspath(final), os.fspath(modules)]
    try:
        run_tool([python.path, "-I", *compiled, *places], environ)
    except LockError:
        return  # a package has files for other versions of Python, which are not compiled


def _make_environment(folder: Path, final: Path, python: Python) -> None:
    programs = folder / "bin"
    for script in sorted(programs.iterdir()):
        _correct_script(script, final)
    for name in ("python", "python3"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(python.path)
    home = os.path.dirname(python.path)
    settings = f"home = {home}\ninclude-system-site-packages = false\nversion = {python.version}\n"
    (folder / "pyvenv.cfg").write_text(settings, encoding="utf-8")


def find_program(command: PackageCommand, folder: Path) -> str:
    """Return the path within `folder` of the program that uvx would run. Raises `LockError` if there is none."""
    name = command.program or command.name
    if (folder / "bin" / name).is_file():
        return f"bin/{name}"
    names = sorted(each.name for each in (folder / "bin").iterdir() if not each.name.startswith("python"))
    raise LockError(
        f"{command.packages[0]} does not provide a program named {name}",
        detail=f"programs that it and its dependencies provide: {', '.join(names[:20]) or 'none'}",
        hint=f"pick one: uvx --from {command.packages[0]} PROGRAM",
    )


def _resolve_with_uv(
    uv: str,
    lines: Sequence[str],
    python: Python,
    environ: Mapping[str, str],
    constraints: Path,
    before: datetime | None,
) -> dict[str, Any]:
    flags = ["--generate-hashes", "--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet"]
    flags += ["--exclude-newer", before.isoformat()] if before is not None else []
    try:
        text = run_tool(
            [uv, "pip", "compile", "-", "--python", python.path, "--constraint", os.fspath(constraints), *flags],
            environ,
            text="\n".join(lines) + "\n",
            what=f"uv could not resolve {lines[0]}",
        )
    except LockError as exc:
        if (found := re.search(r"Wheels are required for `([^`]+)` because building", exc.detail)) is None:
            raise
        raise no_wheel_error(lines[0], found[1]) from None
    return {
        normalize(found[1]): {
            "version": found[2],
            "hashes": sorted(re.findall(r"sha256:[0-9a-f]{64}", found[3])),
        }
        for found in _PINNED.finditer(text)
    }


def no_wheel_error(requirement: str, package: str) -> LockError:
    """Return the error for a package that only exists as source code."""
    needed = "" if package == split_requirement("PyPI", requirement)[0] else f", which {requirement} needs,"
    return LockError(
        f"{package}{needed} has no wheel",
        detail="it would have to be built from source, which runs the package's code before it is locked",
        hint='use another server, or run this one without a lock: set "lock": false in its entry',
    )


def _resolve_with_pip(
    lines: Sequence[str], python: Python, environ: Mapping[str, str], constraints: Path, before: datetime | None
) -> dict[str, Any]:
    extra: list[str] = []
    try:
        version = run_tool([*_pip(python), "--version"], environ).split()[1]
    except LockError as exc:
        raise LockError(
            "neither uv nor pip is installed",
            detail=f"{python.path}: {exc.detail}",
            hint="install uv: uvx entries need it anyway",
        ) from None
    if before is not None:
        if int(version.partition(".")[0]) < _MIN_PIP_WITH_TIMES:
            raise LockError(
                "the age of packages cannot be checked",
                detail=f"pip {version} cannot compare publication times",
                hint="install uv or a newer pip, or accept packages of any age: toolway trust lock --min-age 0",
                code="E-LOCK-AGE",
            )
        extra = ["--uploaded-prior-to", before.isoformat()]
    report = constraints.with_name("report.json")
    flags = ["--dry-run", "--ignore-installed", "--only-binary", ":all:", "--quiet", "--report", os.fspath(report)]
    run_tool(
        [*_pip(python), "install", *flags, *extra, "--constraint", os.fspath(constraints), *lines],
        environ,
        what=f"pip could not resolve {lines[0]}",
    )
    found = {}
    for each in json.loads(report.read_text(encoding="utf-8"))["install"]:
        name, version = normalize(each["metadata"]["name"]), each["metadata"]["version"]
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise LockError(f"the index has no hash of {name} {version}", hint="use another index, or install uv")
        found[name] = {"version": version, "hashes": [f"sha256:{digest}"]}
    return dict(sorted(found.items()))


def _pip(python: Python) -> list[str]:
    return [python.path, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def _correct_script(script: Path, final: Path) -> None:
    """Rewrite a script's first line to run it with the Python interpreter of the tree at `final`."""
    content = script.read_bytes()
    first, newline, rest = content.partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        content = f"#!{final}/bin/python".encode() + newline + rest
    elif first.startswith(b"#!/bin/sh") and rest.startswith(b"'''exec'"):  # the path of the interpreter was too long
        content = f"#!{final}/bin/python\n".encode() + rest.partition(b"\n")[2].partition(b"\n")[2]
    script.write_bytes(content)
    script.chmod(0o755)
