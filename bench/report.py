"""A result in words and pictures: tables for a terminal, a picture, and the page docs/benchmarks.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, TypeAlias

from bench.install import ROOT

Row: TypeAlias = dict[str, Any]
Result: TypeAlias = dict[str, Any]
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "benchmarks.svg"
_NEVER_PEERS = ("direct", "nginx", "bare", "toolway")


def line(row: Row) -> str:
    """One measurement, as it is made."""
    what = f"{row['peer']} → {row['behind']}, {row['work']}, {row['era']} × {row['connections']}"
    if "failed" in row:
        return f"{what}: FAILED {row['failed']}"
    if "mb" in row:
        return f"{what}: {row['mb']:.0f} MB"
    if "rate" not in row:
        return f"{what}: {row['seconds']:.2f} s"
    errors = f", {row['errors']} errors: {row['first_error'][:100]}" if row["errors"] else ""
    return f"{what}: {_cell(row)}, p50 {row['p50']:.2f} ms, p99 {row['p99']:.2f} ms{errors}"


def tables(result: Result) -> str:
    parts = [f"## {title}\n\n{_markdown(head, rows)}" for title, head, rows in _all_tables(result) if rows]
    absent = [f"{name}: not available here ({why})" for name, why in result["absent"].items()]
    return "\n\n".join([*parts, *absent])


Table: TypeAlias = tuple[str, list[str], list[list[str]]]


def _all_tables(result: Result) -> Iterable[Table]:
    columns = [("echo", 1), ("echo", 16), ("echo", 64), ("big", 1), ("big", 16), ("big", 64)]
    for kind, title in (("http", "before an HTTP server"), ("stdio", "before a stdio server")):
        for era, clients in (
            ("modern", "modern clients"),
            ("handshake", "handshake clients"),
            ("rest", "REST clients"),
        ):
            yield _calls(result, f"{clients[0].upper()}{clients[1:]}, {title}", kind, era, columns)
    for era, other in (("modern", "handshake"), ("handshake", "modern")):
        title = f"The bridge: {era} clients, a {other} server"
        yield _calls(result, title, f"http {other}", era, [("echo", 16)])
    yield _lists(result)
    yield _starts(result)


def _calls(result: Result, title: str, behind: str, era: str, columns: Sequence[tuple[str, int]]) -> Table:
    measured = {
        (row["peer"], row["work"], row["connections"]): row
        for row in result["rows"]
        if row["behind"] == behind and row["era"] == era and ("rate" in row or row["said"])
    }
    present = [column for column in columns if any((name, *column) in measured for name in result["peers"])]
    rows = []
    for name, about in result["peers"].items():
        cells = [measured.get((name, *column)) for column in present]
        if not any(cells):
            continue
        one = measured.get((name, *present[0]))
        times = f"{one['p50']:.2f} / {one['p99']:.2f}" if one and one.get("p50") else "–"
        errors = sum(cell["errors"] for cell in cells if cell)
        memory = max((cell.get("rss_mb", 0) for cell in cells if cell), default=0)
        rows.append([_title(name, about), *map(_cell, cells), times, f"{memory:.0f}" if memory else "–", str(errors)])
    heads = [f"{work} × {connections}" for work, connections in present]
    fewest = f"p50 / p99 ms at {present[0][1]}" if present else ""
    return title, ["", *heads, fewest, "MB", "errors"], rows


def _lists(result: Result) -> Table:
    rows = []
    for name, about in result["peers"].items():
        found = {
            (row["behind"], row["connections"]): row
            for row in result["rows"]
            if row["peer"] == name and row["work"] == "list"
        }
        if found:
            places = [("18 http", 1), ("18 http", 16), ("18 stdio", 1), ("18 stdio", 16)]
            rows.append([_title(name, about), *(_cell(found.get(place)) for place in places)])
    heads = ["", "HTTP servers × 1", "HTTP servers × 16", "stdio servers × 1", "stdio servers × 16"]
    return "tools/list of 18 servers with 20 tools each", heads, rows


def _starts(result: Result) -> Table:
    def figure(name: str, behind: str, work: str, key: str) -> float | None:
        rows = result["rows"]
        return next(
            (r[key] for r in rows if (r["peer"], r["behind"], r["work"]) == (name, behind, work) and key in r), None
        )

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    rows = []
    for name, about in result["peers"].items():
        starts = [figure(name, behind, "first call", "seconds") for behind in ("http", "stdio", "18 http", "18 stdio")]
        one, many = (figure(name, behind, "memory", "mb") for behind in ("http", "18 http"))
        each = f"{max(many - one, 0) * 1000 / 17:,.0f}" if one and many else "–"
        if name != "direct" and any(start is not None for start in starts):
            rows.append([_title(name, about), *map(seconds, starts), each])
    heads = ["", "1 HTTP, s", "1 stdio, s", "18 HTTP, s", "18 stdio, s", "memory of one more HTTP server, kB"]
    return "From the start of the program to the first good answer, and memory", heads, rows


def _title(name: str, about: dict[str, str]) -> str:
    return f"{about['title']} {about['version']}".strip()


def _cell(row: Row | None) -> str:
    """Calls a second, and in brackets CPU-µs of the gateway for each."""
    if row is None:
        return "–"
    if not row.get("rate"):
        return "none finished"
    cpu = f" ({_short(row['cpu_us'])})" if row.get("cpu_us") else ""
    return f"{_short(row['rate'])}{cpu}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# ---- the picture ----

_BAR, _GAP, _LEFT, _WIDTH = 18, 6, 210, 760


def picture(result: Result) -> str:
    """CPU-µs of one call by logarithm: one bar a peer, for HTTP and for stdio servers."""
    parts, top = [], 10
    for kind in ("http", "stdio"):
        bars = _bars(result, kind)
        if bars:
            drawn, top = _chart(f"CPU-µs a call, {kind} server, echo, 16 connections (shorter is better)", bars, top)
            parts.append(drawn)
    style = "text{font:13px sans-serif;fill:#333}.own{fill:#0a7d5a}.limit{fill:#999}.peer{fill:#4a78b8}"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}">\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _bars(result: Result, kind: str) -> list[tuple[str, str, float]]:
    best: dict[str, float] = {}
    for row in result["rows"]:
        if (row["behind"], row["work"], row["connections"]) == (kind, "echo", 16) and row.get("cpu_us"):
            best[row["peer"]] = min(best.get(row["peer"], row["cpu_us"]), row["cpu_us"])
    kinds = {"toolway": "own", "nginx": "limit", "bare": "limit"}
    bars = [(result["peers"][name]["title"], kinds.get(name, "peer"), value) for name, value in best.items()]
    return sorted(bars, key=lambda bar: bar[2])


def _chart(title: str, bars: list[tuple[str, str, float]], top: int) -> tuple[str, int]:
    low, high = math.log10(min(bar[2] for bar in bars) / 2), math.log10(max(bar[2] for bar in bars))
    drawn = [f'<text x="10" y="{top + 14}" font-weight="bold">{escape(title)}</text>']
    top += 28
    for name, kind, value in bars:
        wide = (math.log10(value) - low) / max(high - low, 0.1) * (_WIDTH - _LEFT - 90)
        drawn.append(f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>')
        drawn.append(f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{wide:.0f}" height="{_BAR}"/>')
        drawn.append(f'<text x="{_LEFT + wide + 6:.0f}" y="{top + 14}">{_short(value)}</text>')
        top += _BAR + _GAP
    return "\n".join(drawn), top + 14


# ---- the page ----


def write_page(result: Result) -> None:
    PICTURE.write_text(picture(result))
    PAGE.write_text(page(result))


def page(result: Result) -> str:
    given = [[_title(name, about), about["given"]] for name, about in result["peers"].items()]
    absent = [f"- {name} is not available where this was run: {why}" for name, why in result["absent"].items()]
    return _PAGE_TEXT.format(
        date=result["date"],
        **result["machine"],
        **result["settings"],
        given=_markdown(["", "given"], given).replace("---:", "---"),
        absent="\n".join(absent),
        tables=tables({**result, "absent": {}}),
        wins="\n".join(_wins(result)),
    )


_PAGE_TEXT = """# Benchmarks

Written by `python -m bench.run --report FILE` from a result of `make bench`; do not edit.

{date}, {cpu}, {cores} cores, {system}, Python {python}; pinned: {pinned}.

![CPU-µs a call](benchmarks.svg)

## How it is measured

Everything on loopback. A load generator in C keeps each of its connections busy with one call at a time (closed loop,
keep-alive) and checks every answer: status, id, text, no error. The servers behind the gateways are one lean
program in C. All peers take turns, {repeats} times; a measurement lasts {seconds:g} s after {warm:g} s of warming up,
or longer for who is slow; a cell is the median of the turns. Every gateway is one process, or what it starts by
itself, on one core; load and server have another.

A cell is calls a second and, in brackets, the CPU-µs that all processes of the gateway used for each. On a shared
machine the second is the steadier one. `echo` gives back about 200 bytes, `big` 100 kB; × n is the number of
connections. Modern clients speak 2026-07-28, handshake clients 2025-11-25 with one session a connection.
A dash: it does not offer that, or it was not measured.

## What each was given

{given}

{absent}

{tables}

## Where others win

Of those who speak MCP, by calls a second or by CPU; nginx and the bare pass-through promise less, and are faster.

{wins}
"""


def _wins(result: Result) -> list[str]:
    """Every cell in which somebody who speaks MCP is better than we are, by rate or by CPU."""
    cells: dict[tuple[str, str, str, int], dict[str, Row]] = {}
    for row in result["rows"]:
        if row.get("rate"):
            key = (row["behind"], row["era"], row["work"], row["connections"])
            cells.setdefault(key, {})[row["peer"]] = row
    found = []
    for (behind, era, work, connections), by_peer in cells.items():
        own = by_peer.get("toolway")
        for name, row in by_peer.items():
            if own is None or name in _NEVER_PEERS:
                continue
            if row["rate"] > own["rate"] or (row.get("cpu_us") or 1e9) < (own.get("cpu_us") or 0):
                where = f"{work} × {connections}, {era} client, {behind}"
                found.append(f"- {result['peers'][name]['title']}: {where}: {_cell(row)} against {_cell(own)}")
    return found or ["Nowhere in this run."]
