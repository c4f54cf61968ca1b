"""docs/benchmarks.md and its picture, from a result. What is published stands in bench/published.json; a test keeps
page and figures in step.

    python -m bench.page            write the page again, after its words were changed
"""

from __future__ import annotations

import json

from bench import report, verdicts
from bench.install import ROOT
from bench.journal import Result, Row
from bench.words import cell, markdown, title

PUBLISHED = ROOT / "bench" / "published.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "benchmarks.svg"
_NOT_COMPARED = ("direct", "nginx", "bare", "toolway")


def publish(result: Result) -> None:
    PUBLISHED.write_text(as_text(result))
    write()


def write() -> None:
    result = json.loads(PUBLISHED.read_text())
    PICTURE.write_text(report.picture(result))
    PAGE.write_text(page(result))


def as_text(result: Result) -> str:
    """JSON with one row a line: a run can be compared with the one before."""
    head = json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1, ensure_ascii=False)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in result["rows"])
    return f'{head.removesuffix("}").rstrip()},\n "rows": [\n{rows}\n]}}\n'


def page(result: Result) -> str:
    given = [[title(about), about["given"]] for about in result["peers"].values()]
    absent = [f"- {name} is not available where this was run: {why}" for name, why in result["absent"].items()]
    swift, others = result["settings"]["swift"], result["settings"]["others"]
    return _TEXT.format(
        date=result["date"],
        **result["machine"],
        swift=f"{swift['turns']} rounds of {swift['seconds']:g} s after {swift['warm']:g} s of warming up",
        others=f"{others['turns']} round of {others['seconds']:g} s after {others['warm']:g} s",
        longest=f"{others['longest']:g}",
        given=markdown(["", "given"], given, right=False),
        absent="\n".join([*absent, ""] if absent else []),
        tables=report.tables({**result, "absent": {}}, "###"),
        wins="\n".join(_wins(result)),
        failures="\n".join(_failures(result)),
        verdicts=verdicts.table(result),
    )


_TEXT = """# Benchmarks

Written by `python -m bench.run --publish` from a run of `make bench`; do not edit.

{date}, {cpu}, {cores} cores, {system}; toolway {commit} on Python {python} with uvloop {uvloop}; pinned: {pinned}.

![CPU-µs a call](benchmarks.svg)

## How it is measured

Everything on loopback. A load generator in C keeps each of its connections busy with one call at a time (closed
loop, keep-alive) and checks every answer: status, id, text, no error. The servers behind the gateways are one lean
program in C of both eras: a server made with an SDK answers about a thousand calls a second, and one would measure
that instead. Every gateway is one process, or what it starts by itself, on one core; load and server have the
other.

The limits, toolway and Envoy stand side by side and take turns case by case, {swift}; a cell is the median. The
others need far longer for a call and for their start: they have {others}, one after the other. Whoever is so slow
that each connection has not had two answers by then is given up to {longest} s, and may still
have finished none.

A cell is calls a second and, in brackets, the CPU-µs that all processes of the gateway used for each. On a shared
machine the second is the steadier one: read differences under a fifth as noise. `echo` gives back about 200 bytes,
`big` 100 kB; × n is the number of connections. Modern clients speak 2026-07-28, handshake clients 2025-11-25 with
one session a connection. MB is resident memory under load. A dash: it does not offer that, or it was not measured.

The peers run on Python 3.12, or on the Node of the machine. `bench/peers.py` says how each is started: a change
that makes one of them faster is welcome.

## What each was given

{given}

{absent}## Figures

{tables}

## Where others win

Of those who speak MCP, by calls a second or by CPU; nginx and the bare pass-through promise less, and are faster.

{wins}

## What did not work

{failures}

## What we set out to reach

A ratio is how many times as good toolway is, by calls a second and by CPU time. `python -m bench.verdicts` prints the
same of any run.

{verdicts}
"""


def _wins(result: Result) -> list[str]:
    """Every cell in which somebody who speaks MCP is better than we are, by rate or by CPU."""
    cells: dict[tuple[str, str, str, int], dict[str, Row]] = {}
    for row in result["rows"]:
        if row.get("rate"):
            cells.setdefault((row["behind"], row["era"], row["work"], row["connections"]), {})[row["peer"]] = row
    found = []
    for (behind, era, work, connections), by_peer in cells.items():
        own = by_peer.get("toolway")
        for name, row in by_peer.items():
            if own is None or name in _NOT_COMPARED:
                continue
            if row["rate"] > own["rate"] or (row.get("cpu_us") or 1e9) < (own.get("cpu_us") or 0):
                where = f"{work} × {connections}, {era} client, {behind}"
                found.append(f"- {result['peers'][name]['title']}: {where}: {cell(row)} against {cell(own)}")
    return [*found, *_lighter(result)] or ["Nowhere in this run."]


_LIGHTER = (("first call", "seconds", "{:.2f} s", "its first answer after"), ("memory", "mb", "{:.0f} MB", "idle in"))


def _lighter(result: Result) -> list[str]:
    """Who is up sooner, or needs less memory when idle, with one HTTP server."""
    found = []
    for work, key, form, words in _LIGHTER:
        rows = [row for row in result["rows"] if (row["behind"], row["work"]) == ("http", work) and key in row]
        own = next((row[key] for row in rows if row["peer"] == "toolway"), None)
        for row in rows:
            if own is not None and row["peer"] not in _NOT_COMPARED and row[key] < own:
                name = result["peers"][row["peer"]]["title"]
                found.append(f"- {name}: {words} {form.format(row[key])} against {form.format(own)}")
    return found


def _failures(result: Result) -> list[str]:
    """Every cell with errors, or without an answer, and what was said first."""
    found = []
    for row in result["rows"]:
        if row["errors"] or row.get("said") or row.get("rate") == 0:
            what = f"{row['work']} × {row['connections']}, {row['era']} client, {row['behind']}"
            words = [f"{row['errors']} errors" if row.get("rate") else "none finished"]
            words += [row["said"][:120]] if row.get("said") else []
            found.append(f"- {row['peer']}: {what}: {': '.join(words)}")
    return found or ["Every answer of every peer was good."]


if __name__ == "__main__":
    write()
