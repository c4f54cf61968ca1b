"""Install the official conformance suite, and a Node that is new enough for it, from npm.

python conformance/install.py [--into .conformance]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

# The newest tagged release does not support 2026-07-28; this one does. It needs Node 22.
PACKAGES = ("node@22", "@modelcontextprotocol/conformance@0.2.0-alpha.12")
MARKER = ".installed"
INSTALL_SECONDS = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path(".conformance"), metavar="DIR")
    into: Path = parser.parse_args().into.resolve()
    marker = into / MARKER
    wanted = json.dumps(PACKAGES)
    if marker.exists() and marker.read_text(encoding="ascii") == wanted:
        print(f"already installed: {' '.join(PACKAGES)}")
        return 0
    started = time.monotonic()
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    error_text = _install(into)
    if error_text:
        print(f"FAILED: {error_text}", file=sys.stderr)
        return 1
    marker.write_text(wanted, encoding="ascii")
    print(f"installed {' '.join(PACKAGES)} in {time.monotonic() - started:.0f} s")
    return 0


def _install(into: Path) -> str:
    """Install the packages and return the error text, or an empty text."""
    # Without a package.json, npm would search the parent folders for one and install there.
    (into / "package.json").write_text('{"private": true}\n', encoding="ascii")
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    # The package `node` downloads its program in an install script, so scripts must be allowed.
    error_text = _run([npm, "install", "--no-audit", "--no-fund", "--prefer-offline", *PACKAGES], into)
    return error_text or _run([str(into / "node_modules" / ".bin" / "node"), "--version"], into)


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return f"exit code {done.returncode} of {' '.join(command)}\n{done.stderr.strip()}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
