"""Lock for tests that leave processes without a parent for a moment, and for tests in which a doctor finds these."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_other_orphans() -> Iterator[None]:
    """Let no other process of the test run leave orphans, or search for them, inside the block."""
    with (Path(tempfile.gettempdir()) / "toolway-tests-orphans.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
