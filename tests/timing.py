"""Time bounds of tests: strict on a quiet machine, ten times as long and at least LEAST_S elsewhere.

CI and `make test` run tests side by side: a process may wait for a core for seconds, so elapsed time says little there.
`make long-tests ARGS=timing` and `make matrix` set TOOLWAY_QUIET and check the strict bounds; run nothing next to them.
"""

import os

QUIET = bool(os.environ.get("TOOLWAY_QUIET"))  # nothing else runs on this machine
BUSY_FACTOR = 10.0
LEAST_S = 30.0


def within(seconds: float) -> float:
    """Return the bound to compare an elapsed time with."""
    return seconds if QUIET else max(seconds * BUSY_FACTOR, LEAST_S)
