"""The web page of the gateway: built from dashboard/ into src/toolway/gateway/pages, where the wheel finds it.

python scripts/dashboard.py build     needs Node 20.19 or newer
python scripts/dashboard.py check     whether what is built was built from what is there
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
MOST = 300_000  # bytes of all files together, packed


def inputs() -> str:
    """One hash of all that the page is built from."""
    names = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"]
    files = [SOURCE / name for name in names] + [file for file in (SOURCE / "src").rglob("*") if file.is_file()]
    total = hashlib.sha256()
    for file in sorted(files, key=lambda each: each.relative_to(SOURCE).as_posix()):
        total.update(f"{file.relative_to(SOURCE).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


def outputs() -> str:
    """One hash of what was built."""
    total = hashlib.sha256()
    for file in sorted(PAGES.iterdir()):
        if file.name != STAMP:
            total.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


def build() -> int:
    if not (SOURCE / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=SOURCE, check=True)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=SOURCE, check=True)
    (PAGES / STAMP).write_text(f"{inputs()} inputs\n{outputs()} outputs\n")
    return check()


def check() -> int:
    said = (PAGES / STAMP).read_text().split()[::2] if (PAGES / STAMP).is_file() else []
    if said != [inputs(), outputs()]:
        print("the page is not what its sources say: make dashboard", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("build", "check"))
    return {"build": build, "check": check}[parser.parse_args().what]()


if __name__ == "__main__":
    sys.exit(main())
