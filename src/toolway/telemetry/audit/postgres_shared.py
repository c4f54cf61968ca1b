"""The logs of one name in PostgreSQL, of which each gateway of a cluster writes one: `gateway`, `gateway#2`, …

A chain has one writer, so that no writer waits for another, and a record is tied to the one before it in the same
process. Whoever begins takes the first log that nobody writes to: so there are as many as there were gateways at once,
and what a gateway left behind that died is set right by the next one that begins. A gateway that has lost its log to
another, because the server took it for gone, begins a new one, which says what it goes on with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from toolway.telemetry.audit.postgres import PostgresSink
from toolway.telemetry.audit.records import Head
from toolway.telemetry.audit.sink import SinkInUse

MOST: Final = 2000  # gateways that write at once
_GAP: Final = 20  # logs that nobody has written to yet, between others


class SharedPostgresSink(PostgresSink):
    def __init__(self, address: str, name: str) -> None:
        super().__init__(address, name)
        self._name = name
        self._chosen = False

    def begin_another(self) -> bool:
        """Write to a log from now on that is empty; whether there is one."""
        before = self._log
        for log in _names(self._name):
            if log == before or not self._try_lock(log):
                continue
            self._log = log
            if self.head() == Head():
                self._unlock(before)
                return True
            self._unlock(log)
        self._log = before
        return False

    def _lock(self) -> None:
        if not self._chosen:
            self._log = self._first_free()
            self._chosen = True
        elif not self._try_lock(self._log) and not self.begin_another():
            raise SinkInUse(f"{self.where} is written to by another process")

    def _first_free(self) -> str:
        for log in _names(self._name):
            if self._try_lock(log):
                return log
        raise SinkInUse(f"all {MOST} logs of the name {self._name!r} are written to")


def family(sink: PostgresSink, name: str) -> list[PostgresSink]:
    """All logs of a name, to be read by the connection of one."""
    found: list[PostgresSink] = []
    missing = 0
    for log in _names(name):
        each = sink.beside(log)
        if each.head() != Head():
            found.append(each)
            missing = 0
        elif (missing := missing + 1) > _GAP:
            break
    return found


def _names(name: str) -> Iterator[str]:
    yield name
    for number in range(2, MOST + 1):
        yield f"{name}#{number}"
