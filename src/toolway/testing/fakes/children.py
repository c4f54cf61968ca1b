"""Processes a server leaves lying about. All of them end by themselves after a while."""

from __future__ import annotations

import os

LIFE = 120  # seconds


def start_plain(*, hold_stdout: bool = False) -> int:
    """A child in the server's own process group."""
    away = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 2) + (() if hold_stdout else (1,))]
    return os.posix_spawnp("sleep", ["sleep", str(LIFE)], os.environ, file_actions=away)


def start_daemon() -> int:
    """A grandchild whose parent is gone, in a session of its own, deaf to SIGTERM."""
    import subprocess  # slow to import, and rarely needed

    script = f"trap '' TERM; sleep {LIFE} </dev/null >/dev/null 2>&1 & echo $!"
    return int(subprocess.check_output(["/bin/sh", "-c", script], start_new_session=True))


def start_zombies(count: int) -> list[int]:
    """Children that have ended and that the server never waits for."""
    return [os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ) for _ in range(count)]


def start_orphans(count: int) -> None:
    """Grandchildren without a parent that end soon: whoever adopts them has to reap them."""
    import subprocess

    script = "sleep 0.2 </dev/null >/dev/null 2>&1 &"
    for _ in range(count):
        subprocess.check_call(["/bin/sh", "-c", script])
