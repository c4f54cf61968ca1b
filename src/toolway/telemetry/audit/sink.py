"""THE SEAM: what every place to write to offers. All of it is called in the writer's thread, and may block.

A sink keeps rows in the order of `seq`. It says nothing about what they mean, and trusts nothing that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from toolway.telemetry.audit.records import Head, Row


class SinkInUse(Exception):
    """Another process writes to it."""


class SinkBroken(Exception):
    """What is stored cannot be read as a log."""


class Torn(Exception):
    """The last record was written in part. `kept` is where its bytes are now; what is left can be gone on with."""

    def __init__(self, size: int, kept: str) -> None:
        super().__init__(f"{size} bytes of a record that was written in part were moved to {kept}")
        self.size = size
        self.kept = kept


class Sink(Protocol):
    @property
    def where(self) -> str:
        """For people; never a secret."""
        ...

    def open(self) -> Torn | None:
        """Be the only one who writes to it. May be called again after a failure. Says what was set aside. Raises
        `SinkInUse`, `SinkBroken`, and whatever else stands in the way."""
        ...

    def head(self) -> Head:
        """The end of what is stored."""
        ...

    def append(self, rows: list[Row]) -> None:
        """All of them or none. On stable storage when it returns."""
        ...

    def forward(self, after: int = 0) -> Iterator[Row]:
        """The rows after this one, oldest first. Raises `SinkBroken`."""
        ...

    def backward(self) -> Iterator[Row]:
        """All rows, newest first. Raises `SinkBroken`."""
        ...

    def removable(self, before: str) -> Head | None:
        """The last row that can be removed, with all before it, where only those older than the time `before` may."""
        ...

    def remove(self, through: int) -> None:
        """Remove the rows up to this one, or fewer."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class OneOfSeveral(Protocol):
    """A sink that has others beside it."""

    def begin_another(self) -> bool:
        """Write to an empty one from now on; whether there is one."""
        ...
