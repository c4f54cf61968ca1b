"""Installation of the peers, each in its own environment below `.bench/`, in the versions of peers.py.

    python -m bench.install [NAME…]

Installed peers are left unchanged. A peer that cannot be installed on this machine is reported and skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
INTO = ROOT / ".bench"
TOOLS = INTO / "bin"
_SECONDS = 900

Kind: TypeAlias = Literal["pip", "npm", "deb"]


@dataclass(frozen=True)
class Package:
    kind: Kind
    name: str
    version: str
    extra: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


class InstallError(Exception):
    """Failure of an install command; the text is the end of its output."""


def build_tools() -> None:
    """Compile the load generator and the upstream server with the machine's C compiler."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    for name in ("load", "upstream"):
        source, made = ROOT / "bench" / f"{name}.c", TOOLS / name
        if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
            _run([os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-o", str(made), str(source)])


def install(folder: Path, package: Package) -> None:
    """Install a package into a folder, unless that version is already there."""
    marker = folder / ".installed"
    if marker.exists() and marker.read_text() == repr(package):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    {"pip": _pip, "npm": _npm, "deb": _deb}[package.kind](folder, package)
    marker.write_text(repr(package))


def _pip(folder: Path, package: Package) -> None:
    python = _run([str(ROOT / "scripts" / "find-python"), "3.12"]).strip()
    _run([python, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "pip"), "install", "-q", f"{package.name}=={package.version}", *package.extra])


def _npm(folder: Path, package: Package) -> None:
    spec = f"{package.name}@{package.version}"
    _run(["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), spec, *package.extra])


def _deb(folder: Path, package: Package) -> None:
    """Unpack the packages without installing them; the distribution determines the version."""
    if not shutil.which("apt-get"):
        raise InstallError("not a Debian system")
    _run(["apt-get", "download", package.name, *package.extra], cwd=folder)
    for file in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(file), str(folder)])


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(str(error)) from error
    if done.returncode:
        raise InstallError("\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    return done.stdout


def main() -> None:
    from bench.peers import PEERS

    build_tools()
    for peer in PEERS:
        if peer.package is None or (sys.argv[1:] and peer.name not in sys.argv[1:]):
            continue
        try:
            install(peer.home, peer.package)
            print(f"{peer.name}: {peer.package}", flush=True)
        except InstallError as error:
            print(f"{peer.name}: not available here\n{error}", flush=True)


if __name__ == "__main__":
    main()
