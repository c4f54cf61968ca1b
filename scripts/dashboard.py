"""Build of the dashboard: from dashboard/ into src/toolway/gateway/pages, which is part of the wheel.

python scripts/dashboard.py build     needs Node 20.19 or newer
python scripts/dashboard.py check     verify that the built files match their sources
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "dashboard"
PAGES = ROOT / "src" / "toolway" / "gateway" / "pages"
STAMP = "inputs.sha256"


def hash_inputs() -> str:
    """Return one hash of all source files."""
    names = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"]
    files = [SOURCE / name for name in names] + [file for file in (SOURCE / "src").rglob("*") if file.is_file()]
    total = hashlib.sha256()
    for file in sorted(files, key=lambda each: each.relative_to(SOURCE).as_posix()):
        total.update(f"{file.relative_to(SOURCE).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


def hash_outputs() -> str:
    """Return one hash of all built files."""
    total = hashlib.sha256()
    for file in sorted(PAGES.iterdir()):
        if file.name != STAMP:
            total.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


def build() -> int:
    if not (SOURCE / "node_modules").is_dir():
        # Not `npm ci`: it requires every optional package of every system in the lock, even if a registry has none.
        subprocess.run(["npm", "install", "--no-save", "--no-audit", "--no-fund"], cwd=SOURCE, check=True)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=SOURCE, check=True)
    (PAGES / STAMP).write_text(f"{hash_inputs()} inputs\n{hash_outputs()} outputs\n")
    return check()


def check() -> int:
    recorded = (PAGES / STAMP).read_text().split()[::2] if (PAGES / STAMP).is_file() else []
    if recorded != [hash_inputs(), hash_outputs()]:
        print("the built dashboard does not match its sources: make dashboard", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("build", "check"))
    return {"build": build, "check": check}[parser.parse_args().command]()


if __name__ == "__main__":
    sys.exit(main())
