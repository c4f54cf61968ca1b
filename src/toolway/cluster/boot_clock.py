"""The clock by which a node judges how long it was away."""

from __future__ import annotations

import time
from typing import Final

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # on macOS the latter goes on by itself


def boot_time() -> float:
    """Seconds that go on while the machine sleeps, and while we are stopped."""
    return time.clock_gettime(_CLOCK)
