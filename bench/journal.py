"""A run as a file: one line of JSON for each thing measured, written when it was, so that a run can be gone on with.

A session is one start of the benchmark. It begins with a line that says when, where and with whom. A session that goes
on (`--resume`) measures what is missing; a new one in the same file (`--only`) replaces what it measures again, and the
rest stays.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]
Result: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[Any, ...]

#: What makes two rows measurements of the same thing.
KEYS: Final = ("peer", "behind", "work", "era", "connections")
NUMBERS: Final = ("rate", "p50", "p99", "max", "cpu_us", "rss_mb", "seconds", "mb", "items")

_PATHS = re.compile(r"(?<![\w.:/])/[\w.+-]+(?:/[\w.+-]*)+")  # of the machine, in what a peer said


def place(row: Row) -> Place:
    return tuple(row[key] for key in KEYS)


class Journal:
    """`resume` goes on with the last session of the file, where there is one."""

    def __init__(self, path: Path, session: str, about: Row, *, resume: bool = False) -> None:
        self._path = path
        abouts, rows = read(path)
        if resume and abouts:
            session = abouts[-1]["session"]
            about = {**abouts[-1], **about}  # versions may have been written anew; the date is that of the session
        self.session = session
        self._done = {(place(row), row["turn"]) for row in rows if row["session"] == session}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            path.write_bytes(path.read_bytes() + b"\n")  # a line that was being written when the run was ended
        self._write({**about, "session": session, "about": True})

    def has(self, where: Place, turn: int) -> bool:
        return (where, turn) in self._done

    def add(self, row: Row) -> Row:
        self._done.add((place(row), row["turn"]))
        row = {"session": self.session, **row}
        self._write(row)
        return row

    def _write(self, line: Row) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> tuple[list[Row], list[Row]]:
    """What the sessions say of themselves, and all rows. A last line that is not whole was being written when the run
    was ended."""
    if not path.exists():
        return [], []
    abouts: list[Row] = []
    rows: list[Row] = []
    for line in path.read_text().splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        (abouts if found.get("about") else rows).append(found)
    return abouts, rows


def result(path: Path) -> Result:
    """The file in short: one row for each thing measured, and who was there."""
    abouts, rows = read(path)
    together: Result = {"peers": {}, "absent": {}}
    for about in abouts:
        together["peers"] |= about["peers"]
        together["absent"] = {**together["absent"], **about["absent"]}
        together |= {key: about[key] for key in ("date", "machine", "settings")}
    together["absent"] = {name: why for name, why in together["absent"].items() if name not in together["peers"]}
    rows = [row for row in rows if row["work"] != "done"]
    return {**together, "rows": list(medians(newest(rows)))}


def newest(rows: Iterable[Row]) -> list[Row]:
    """Of each thing, what the last session that measured it says of it."""
    rows = list(rows)
    last: dict[Place, str] = {}
    for row in rows:
        last[place(row)] = max(last.get(place(row), ""), row["session"])
    return [row for row in rows if row["session"] == last[place(row)]]


def medians(rows: Iterable[Row]) -> Iterator[Row]:
    """One row for each thing measured: the median of each figure, and all errors."""
    same: dict[Place, list[Row]] = {}
    for row in rows:
        same.setdefault(place(row), []).append(row)
    for group in same.values():
        row = {key: group[0][key] for key in KEYS}
        for key in NUMBERS:
            values = [one[key] for one in group if one.get(key) is not None]
            if values:
                row[key] = _short(statistics.median(values))
        row["turns"] = len(group)
        row["errors"] = sum(one.get("errors", 0) for one in group)
        rates = [one["rate"] for one in group if one.get("rate")]
        if len(rates) > 1:
            row["spread"] = _short((max(rates) - min(rates)) / statistics.median(rates))
        if said := next((said for one in group if (said := one.get("failed") or one.get("first_error"))), ""):
            row["said"] = _PATHS.sub("…", said)[:200]
        yield row


def _short(value: float) -> float:
    """Four figures say all that was measured."""
    return float(f"{value:.4g}")
