"""What goes wrong again and again, told to people without flooding the log."""

from __future__ import annotations

import logging
from typing import Final

from toolway.errors import ToolwayError

MOST: Final = 10  # different things that are said of one trouble
_LONGEST: Final = 300  # characters

log = logging.getLogger("toolway.cluster")


class Trouble:
    """Each thing is said once, and once that all of it is over."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said: set[str] = set()

    def say(self, exc: Exception) -> None:
        """Of an error of ours its text; that of another may name the database, or hold what was to be kept."""
        said = f"{type(exc).__name__}: {str(exc)[:_LONGEST]}" if isinstance(exc, ToolwayError) else type(exc).__name__
        if said not in self._said and len(self._said) < MOST:
            log.warning("%s: %s", self._what, said)
            self._said.add(said)

    def over(self) -> None:
        if self._said:
            log.warning("%s: that is over", self._what)
            self._said.clear()
