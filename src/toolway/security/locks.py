"""One at a time, among all processes that share a file, however long it takes.

The lock is the kernel's (`flock`): whoever is killed while it holds one has let it go. It belongs to an open file, so
it can be handed to a child, which keeps it when the parent is gone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

_PAUSES: Final = (0.005, 0.01, 0.02, 0.05)  # seconds between two tries; the last one again and again


async def held_within(limit: float, file: Path) -> int:
    """A handle that holds the lock `file`; closing it lets go. Raises `TimeoutError` and `OSError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        async with asyncio.timeout(limit):
            tried = 0
            while not _taken(handle):
                await asyncio.sleep(_PAUSES[min(tried, len(_PAUSES) - 1)])
                tried += 1
    except BaseException:
        os.close(handle)
        raise
    return handle


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
