"""Results as Markdown tables, for the terminal and for the docs page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from bench.chart import chart
from bench.formatting import cell, markdown, times, title
from bench.journal import Result, Row

__all__ = ["chart", "line", "tables"]

Table: TypeAlias = tuple[str, list[str], list[list[str]]]

_BEHIND = {"http": "HTTP server", "stdio": "stdio server"}
_CLIENTS = {"modern": "Modern clients", "legacy": "Legacy clients", "rest": "REST clients"}
_CALLERS = {
    "hub": "`Hub.call_tool`",
    "sdk": "the SDK's `Client.call_tool`",
    "http1": "our HTTP client",
    "httpx2": "httpx2",
    "bare": "client of the bare pass-through",
}


def line(row: Row) -> str:
    """Format one measurement as a line of progress output."""
    what = f"{row['peer']} → {row['behind']}, {row['work']}, {row['era']} × {row['connections']}"
    if "failed" in row:
        return f"{what}: FAILED {row['failed']}"
    if "rate" in row:
        errors = f", {row['errors']} errors: {row['first_error'][:100]}" if row["errors"] else ""
        latency = f", p50 {row['p50']:.2f} ms, p99 {row['p99']:.2f} ms" if row.get("p50") else ""
        return f"{what}: {cell(row)}{latency}{errors}"
    words = [f"{row['mb']:.2f} MB"] if "mb" in row else []
    words += [f"{row['seconds']:.3f} s"] if "seconds" in row else []
    words += [f"{row['cpu_us']:.0f} µs"] if "cpu_us" in row else []
    words += [f"{row['share']:.1%}"] if "share" in row else []
    return f"{what}: {', '.join(words)}"


def tables(result: Result, heading: str = "##") -> str:
    """Return all tables that have rows."""
    parts = [f"{heading} {name}\n\n{markdown(head, rows)}" for name, head, rows in _all_tables(result) if rows]
    absent = [f"{name}: not available here ({why})" for name, why in result["absent"].items()]
    return "\n\n".join([*parts, *absent])


def _all_tables(result: Result) -> Iterable[Table]:
    columns = [(work, n) for work in ("echo", "big") for n in (1, 16, 64)]
    for kind, servers in _BEHIND.items():
        for era, clients in _CLIENTS.items():
            yield _calls(result, f"{clients}, {servers}", kind, era, columns)
    bridge = [("echo", 1), ("echo", 16), ("echo", 64), ("big", 16)]
    for kind, servers in _BEHIND.items():
        for server in ("legacy", "modern"):
            for era in ("modern", "legacy"):
                how = "the bridge" if era != server else "no bridge"
                name = f"{_CLIENTS[era]}, {servers} of the {server} era only ({how})"
                yield _calls(result, name, f"{kind} {server}", era, bridge)
    yield _lists(result)
    yield _starts(result)
    yield _callers(result, "64 concurrent calls in one Python process", ("hub", "sdk"))
    yield _callers(result, "HTTP clients: the same POST, from one Python process", ("http1", "httpx2", "bare"))
    yield _growth(result)
    yield _cold(result)
    yield _options(result)
    yield _profile(result)


def _calls(result: Result, name: str, behind: str, era: str, columns: Sequence[tuple[str, int]]) -> Table:
    measured = {
        (row["peer"], row["work"], row["connections"]): row
        for row in result["rows"]
        if row["behind"] == behind and row["era"] == era and ("rate" in row or row.get("said"))
    }
    present = [column for column in columns if any((peer, *column) in measured for peer in result["peers"])]
    rows = []
    for peer, about in result["peers"].items():
        cells = [measured.get((peer, *column)) for column in present]
        if not any(cells):
            continue
        errors = sum(one["errors"] for one in cells if one)
        memory = max((one.get("rss_mb", 0) for one in cells if one), default=0)
        latency = times(measured.get((peer, *present[0])))
        rows.append([title(about), *map(cell, cells), latency, f"{memory:.0f}" if memory else "–", str(errors)])
    heads = [f"{work} × {connections}" for work, connections in present]
    latency_head = f"p50 / p99 ms at {present[0][1]}" if present else ""
    return name, ["", *heads, latency_head, "MB", "errors"], rows


def _lists(result: Result) -> Table:
    columns = [("18 http", 1), ("18 http", 16), ("18 stdio", 1), ("18 stdio", 16)]
    rows = []
    for name, about in result["peers"].items():
        found = {
            (row["behind"], row["connections"]): row
            for row in result["rows"]
            if row["peer"] == name and row["work"] == "list"
        }
        if found:
            rows.append([title(about), *(cell(found.get(column)) for column in columns)])
    heads = ["", "HTTP servers × 1", "HTTP servers × 16", "stdio servers × 1", "stdio servers × 16"]
    return "tools/list of 18 servers with 20 tools each", heads, rows


def _starts(result: Result) -> Table:
    def figure(name: str, behind: str, work: str, key: str) -> float | None:
        wanted = (name, behind, work)
        found = (
            row[key] for row in result["rows"] if (row["peer"], row["behind"], row["work"]) == wanted and key in row
        )
        return next(found, None)

    rows = []
    for name, about in result["peers"].items():
        starts = [figure(name, behind, "first call", "seconds") for behind in ("http", "stdio", "18 http", "18 stdio")]
        one, many = (figure(name, behind, "memory", "mb") for behind in ("http", "18 http"))
        each = f"{max(many - one, 0) * 1000 / 17:,.0f}" if one and many else "–"
        if name != "direct" and any(start is not None for start in starts):
            memory = "–" if one is None else f"{one:.0f}"
            rows.append([title(about), *("–" if s is None else f"{s:.2f}" for s in starts), memory, each])
    heads = ["", "1 HTTP, s", "1 stdio, s", "18 HTTP, s", "18 stdio, s", "idle, MB", "per extra HTTP server, kB"]
    return "Time from process start to the first correct result, and memory", heads, rows


def _callers(result: Result, name: str, callers: Sequence[str]) -> Table:
    found = {
        (row["peer"], row["behind"], row["work"], row["connections"]): row
        for row in result["rows"]
        if row["era"] == "any" and row["peer"] in callers
    }
    columns = list(dict.fromkeys(key[1:] for key in found))
    heads = [f"{behind} × {n}{work.removeprefix('library').removeprefix('post')}" for behind, work, n in columns]
    rows = [
        [_CALLERS[peer], *(cell(found.get((peer, *column))) for column in columns)]
        for peer in callers
        if any(key[0] == peer for key in found)
    ]
    return name, ["", *heads], rows


def _growth(result: Result) -> Table:
    found = {(row["behind"], row["work"]): row for row in result["rows"] if row["peer"] == "toolway"}
    rows = []
    for size in (10, 100, 1000):
        one = {work: row for (behind, work), row in found.items() if behind == f"{size} http"}
        if "memory" in one:
            calls = [cell(one.get(f"echo, {where}")) for where in ("first", "last", "spread")]
            lists = [cell(one.get(f"list, {which} page")) for which in ("first", "last")]
            listed = one.get("list, all pages")
            walked = f"{listed['seconds']:.3f}" if listed else "–"
            ready = f"{one['all listed']['seconds']:.1f}" if "all listed" in one else "–"
            rows.append(
                [f"{size:,} servers, {size * 10:,} tools", *calls, ready, f"{one['memory']['mb']:.0f}", *lists, walked]
            )
    heads = ["", "calls: first server", "last server", "16 servers", "all listed, s", "idle, MB"]
    return "One gateway, many HTTP servers", [*heads, "list: first page × 16", "last page × 16", "all pages, s"], rows


def _cold(result: Result) -> Table:
    names = {
        ("toolway", "stdio", "cold start"): "first result of a stdio server, alone",
        ("toolway", "18 stdio", "cold start"): "… with 17 equally fast servers",
        ("toolway", "18 slow stdio", "cold start"): "… with 17 servers that import the SDK first",
        ("toolway", "18 stdio", "kept list"): "list of 18 servers from the stored catalog, after the start: gateway",
        ("hub", "18 stdio", "kept list"): "… hub",
    }
    found = {(row["peer"], row["behind"], row["work"]): row for row in result["rows"]}
    rows = [[name, f"{found[key]['seconds']:.3f}"] for key, name in names.items() if key in found]
    return "Cold starts of toolway", ["", "s"], rows


def _options(result: Result) -> Table:
    found = [row for row in result["rows"] if row["behind"] == "options" and row.get("rate")]
    works = list(dict.fromkeys(row["work"] for row in found))
    cells = {(row["work"], row["connections"]): cell(row) for row in found}
    rows = [[work.removeprefix("echo, "), *(cells.get((work, n), "–") for n in (16, 64))] for work in works]
    return "Optional parts of toolway: echo, HTTP server", ["", "× 16", "× 64"], rows


def _profile(result: Result) -> Table:
    """Return the parts of the code by their share in the CPU time of a call, with their function calls per call."""
    columns = (("http", "echo"), ("stdio", "echo"), ("http", "big"))
    found: dict[str, dict[tuple[str, str], str]] = {}
    order: dict[str, float] = {}
    for row in result["rows"]:
        if "share" in row:
            work, _, part = row["work"].removeprefix("profile of ").partition(": ")
            found.setdefault(part, {})[row["behind"], work] = f"{100 * row['share']:.0f} % ({row['items']:.1f})"
            order[part] = max(order.get(part, 0), row["share"])
    parts = sorted((part for part in found if order[part] >= 0.01), key=lambda part: -order[part])
    rows = [[part, *(found[part].get(column, "–") for column in columns)] for part in parts]
    heads = ["", *(f"{work}, {kind} server" for kind, work in columns)]
    return "Where the CPU time of a call is spent, by the profiler (function calls per call)", heads, rows
