"""Print as JSON what a process can and cannot do in the container of scripts/image.py, which runs this there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDERS = ("/", "/etc", "/usr", "/opt/toolway", "/home/toolway", "/tmp", "/var/lib/toolway")
TOOLS = ("pip", "pip3", "gcc", "cc", "g++", "clang", "make", "ld", "git")


def is_writable(folder: str) -> bool:
    path = Path(folder, "written")
    try:
        path.write_text("x")
        path.unlink()
    except OSError:
        return False
    return True


def has_pip(python: str) -> bool:
    return subprocess.run([python, "-c", "import pip"], capture_output=True, check=False).returncode == 0


found = {
    "python": sys.version.split()[0],
    "status": dict(line.split(":\t", 1) for line in Path("/proc/1/status").read_text().splitlines()),
    "writable": [folder for folder in FOLDERS if is_writable(folder)],
    "tools": [tool for tool in TOOLS if shutil.which(tool)],
    "pip": [python for python in (sys.executable, os.path.realpath(sys.executable)) if has_pip(python)],
    "packages": sorted({f"{each.name.lower()}=={each.version}" for each in importlib.metadata.distributions()}),
}
print(json.dumps(found))
