"""How old the records of a file are, by the time that passed while somebody watched.

The clock on the wall may jump by a day, and a record must not be forgotten for that. So a store has a clock of its own,
kept in its file:

Rule 1. While a process has the file, it goes with the monotonic clock, whatever the wall says.
Rule 2. Between two processes only the wall can tell. It is believed for `trust` seconds at most, and never backwards.
Rule 3. Time that nobody is sure of has not passed: records live longer for it, never shorter. The last reading is
        written down now and then; what a crash loses of it has not passed either.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

_SCHEMA = "CREATE TABLE IF NOT EXISTS age (one INTEGER PRIMARY KEY CHECK (one = 1), seen REAL, wall REAL)"


class Age:
    """The clock of one file. Raises what SQLite raises."""

    def __init__(
        self, db: sqlite3.Connection, trust: float, now: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._db = db
        self._step = trust / 60  # how often a reading is written down
        self._now = now
        self._wall = wall
        db.execute(_SCHEMA)
        db.execute("INSERT INTO age VALUES (1, ?, ?) ON CONFLICT DO NOTHING", (wall(), wall()))
        seen, last = db.execute("SELECT seen, wall FROM age").fetchone()
        self._start: float = seen + min(max(0.0, wall() - last), trust)
        self._began = now()
        self._kept = seen

    def seen(self) -> float:
        """Seconds that passed for this file."""
        return self._start + self._now() - self._began

    def keep(self, *, now: bool = False) -> None:
        """Write the reading down if it is time, or `now`."""
        seen = self.seen()
        if now or seen - self._kept >= self._step:
            self._db.execute("UPDATE age SET seen = ?, wall = ?", (seen, self._wall()))
            self._kept = seen
