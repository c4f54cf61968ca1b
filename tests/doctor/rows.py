"""The table of broken setups: how a row is written, and how all of them are run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.doctor.doctor_lab import Lab

Row = Callable[[Lab], Awaitable[None]]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    """Enter a setup into the table. It breaks something, asks the doctor, does what he says, and asks again."""

    def enter(function: Row) -> Row:
        assert name not in ROWS
        ROWS[name] = function
        return function

    return enter
