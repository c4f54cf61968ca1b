"""File of a benchmark run: one line of JSON per measurement.

Each line is written at once, so an interrupted run can resume.
A session is one start of the benchmark. Its first line contains the date, the machine and the peers. A resumed session
(`--resume`) measures what is missing. A new session in the same file (`--only`) replaces the rows that it measures
again; all other rows stay.
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
RowKey: TypeAlias = tuple[Any, ...]

#: Two rows with equal values of these keys measure the same thing.
KEYS: Final = ("peer", "behind", "work", "era", "connections")
NUMBERS: Final = ("rate", "p50", "p99", "max", "cpu_us", "rss_mb", "seconds", "mb", "items", "share")

_PATHS = re.compile(r"(?<![\w.:/])/[\w.+-]+(?:/[\w.+-]*)+")  # local paths in a peer's error messages


def row_key(row: Row) -> RowKey:
    """Return the identity of a measurement without its turn."""
    return tuple(row[key] for key in KEYS)


class Journal:
    """Append-only file of measurements. `resume` continues the last session of the file, if there is one."""

    def __init__(self, path: Path, session: str, about: Row, *, resume: bool = False) -> None:
        self._path = path
        abouts, rows = read(path)
        if resume and abouts:
            session = abouts[-1]["session"]
            about = {**abouts[-1], **about}  # versions may have changed; the date of the session stays
        self.session = session
        self._done = {(row_key(row), row["turn"]) for row in rows if row["session"] == session}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            path.write_bytes(path.read_bytes() + b"\n")  # the interrupted run left an incomplete line
        self._write({**about, "session": session, "about": True})

    def has(self, key: RowKey, turn: int) -> bool:
        return (key, turn) in self._done

    def add(self, row: Row) -> Row:
        self._done.add((row_key(row), row["turn"]))
        row = {"session": self.session, **row}
        self._write(row)
        return row

    def _write(self, line: Row) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> tuple[list[Row], list[Row]]:
    """Return the headers of all sessions, and all rows.

    An incomplete line, left by an interrupted run, is skipped.
    """
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
    """Return the summary of a file: one row per measurement, and the peers."""
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
    """Return, for each measurement, the rows of the last session that contains it."""
    rows = list(rows)
    last: dict[RowKey, str] = {}
    for row in rows:
        last[row_key(row)] = max(last.get(row_key(row), ""), row["session"])
    return [row for row in rows if row["session"] == last[row_key(row)]]


def medians(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield one row per measurement: the median of each figure, and the sum of errors."""
    same: dict[RowKey, list[Row]] = {}
    for row in rows:
        same.setdefault(row_key(row), []).append(row)
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
    """Round to four digits, the precision of the measurements."""
    return float(f"{value:.4g}")
