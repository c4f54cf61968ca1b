"""The clock by which a node judges how long it was away."""

from __future__ import annotations

import time


def boot_time() -> float:
    """Seconds that go on while the machine sleeps, and while we are stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
