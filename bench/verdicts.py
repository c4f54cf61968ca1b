"""Performance targets, and verdicts on whether a run reached them.

    python -m bench.verdicts [bench/results/latest.json]

A ratio compares Toolway with another peer, by calls per second and by CPU time: above 1 is better. A target at several
numbers of connections is reached if all of its ratios reach it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bench.imports import IMPORT_HUB, LIBRARIES
from bench.install import ROOT
from bench.journal import KEYS, Result, Row
from bench.peers import PEERS

Find: TypeAlias = Callable[[int], Row | None]


@dataclass(frozen=True)
class Verdict:
    target: str
    wanted: str
    measured: str
    reached: bool | None  # None if not measured


class Rows:
    def __init__(self, result: Result) -> None:
        self._rows = {tuple(row[key] for key in KEYS): row for row in result["rows"]}

    def get(self, peer: str, behind: str, work: str, era: str, connections: int) -> Row | None:
        return self._rows.get((peer, behind, work, era, connections))

    def find(self, peer: str, behind: str, work: str, era: str = "modern") -> Find:
        return lambda connections: self.get(peer, behind, work, era, connections)

    def best(self, peers: Sequence[str], behind: str, work: str) -> Find:
        """Return a function that finds the fastest of these peers, for clients of any era."""

        def quickest(connections: int) -> Row | None:
            eras = ("modern", "legacy", "rest")
            found = [self.get(peer, behind, work, era, connections) for peer in peers for era in eras]
            return max((row for row in found if row and row.get("rate")), key=lambda row: row["rate"], default=None)

        return quickest


def verdicts(result: Result) -> list[Verdict]:
    rows = Rows(result)
    return [
        *_calls(rows),
        *_clients(rows),
        *_bridges(rows),
        *_library(rows),
        *_growth(rows),
        *_cold(rows),
        *_options(rows),
    ]


def _calls(rows: Rows) -> Iterator[Verdict]:
    own = rows.find("toolway", "http", "echo")
    python = [peer.name for peer in PEERS if peer.python]
    for name, other, wanted in (
        ("Envoy's MCP router", rows.find("envoy", "http", "echo"), 2.0),
        ("our bare pass-through", rows.find("bare", "http", "echo"), 0.4),
        ("nginx", rows.find("nginx", "http", "echo"), 0.33),
        ("the best other Python gateway", rows.best(python, "http", "echo"), 10.0),
        ("FastMCP's default proxy", rows.find("fastmcp", "http", "echo"), 100.0),
    ):
        yield ratio(f"echo, HTTP server, against {name}", wanted, own, other, (16, 64))
    direct = rows.find("direct", "http", "echo")
    yield _added("echo, HTTP server, p50 added to the server itself", "p50", 0.12, own(1), direct(1))
    yield _added("echo, HTTP server, p99 added to the server itself", "p99", 0.3, own(1), direct(1))
    lists = [rows.find(peer, "18 http", "list") for peer in ("toolway", "envoy")]
    yield ratio("tools/list of 18 × 20 tools, against Envoy's MCP router", 20.0, lists[0], lists[1], (1, 16))
    pipes = [rows.find(peer, "stdio", "echo") for peer in ("toolway", "bare")]
    yield ratio("echo, stdio server, against our bare pass-through", 0.4, pipes[0], pipes[1], (16,))
    large = [rows.find(peer, "http", "big") for peer in ("toolway", "bare")]
    yield ratio("100 kB results, HTTP server, against our bare pass-through", 0.55, large[0], large[1], (16,))


def _clients(rows: Rows) -> Iterator[Verdict]:
    for kind in ("http", "stdio"):
        legacy, modern = (rows.find("toolway", kind, "echo", era) for era in ("legacy", "modern"))
        yield ratio(f"legacy clients against modern ones, {kind} server", 0.85, legacy, modern, (16, 64))


def _bridges(rows: Rows) -> Iterator[Verdict]:
    for kind in ("http", "stdio"):
        for era, other in (("modern", "legacy"), ("legacy", "modern")):
            bridged, same = (rows.find("toolway", f"{kind} {server}", "echo", era) for server in (other, era))
            target = f"{era} clients, {kind} server: {other} against {era}"
            yield ratio(target, 0.6, bridged, same, (16, 64))


def _library(rows: Rows) -> Iterator[Verdict]:
    for kind, wanted in (("stdio", 10.0), ("http", 30.0)):
        for loop in ("uvloop", "asyncio"):
            hub, sdk = (rows.find(caller, kind, f"library, {loop}", "any") for caller in ("hub", "sdk"))
            target = f"Hub.call_tool against the SDK's Client.call_tool, {kind} server, {loop}"
            yield ratio(target, wanted, hub, sdk, (64,))


def _growth(rows: Rows) -> Iterator[Verdict]:
    few, many = "10 http", "1000 http"
    for where in ("first", "last", "spread"):
        small, large = (rows.find("toolway", behind, f"echo, {where}") for behind in (few, many))
        yield ratio(f"1,000 HTTP servers against 10, calls: {where}", 0.95, large, small, (16,))
    found = [rows.get("toolway", behind, "memory", "modern", 16) for behind in (few, many)]
    each = (found[1]["mb"] - found[0]["mb"]) * 1000 / 990 if found[0] and found[1] else None
    yield at_most("memory of an idle HTTP server with 10 tools", each, 64.0, "kB")
    walked = rows.get("toolway", many, "list, all pages", "modern", 1)
    encoding = rows.get("encoding", many, "list, first page", "modern", 1)
    for which in ("first", "last"):
        page = rows.get("toolway", many, f"list, {which} page", "modern", 16)
        target = f"tools/list of 10,000 tools, {which} page: CPU against encoding it"
        share = page["cpu_us"] / encoding["cpu_us"] if page and page.get("cpu_us") and encoding else None
        yield at_most(target, share, 0.5, "of it")
    whole = None if walked is None else walked["items"] == 10_000
    text = "–" if walked is None else f"{walked['items']:,.0f} in {walked['seconds']:.3f} s"
    yield Verdict("tools/list of 10,000 tools, all pages", "10,000 tools", text, whole)


def _cold(rows: Rows) -> Iterator[Verdict]:
    alone = rows.get("toolway", "stdio", "cold start", "modern", 1)
    for behind, name in (("18 stdio", "as fast"), ("18 slow stdio", "made with the SDK")):
        among = rows.get("toolway", behind, "cold start", "modern", 1)
        later = among["seconds"] - alone["seconds"] if among and alone else None
        yield at_most(f"first result, cold, with 17 other stdio servers {name}, added to alone", later, 0.3, "s")
    for caller in ("toolway", "hub"):
        found = rows.get(caller, "18 stdio", "kept list", "modern", 1)
        milliseconds = found["seconds"] * 1000 if found and found["items"] == 360 else None
        yield at_most(f"list of 18 stdio servers from the stored catalog, {caller}", milliseconds, 50.0, "ms")


def _options(rows: Rows) -> Iterator[Verdict]:
    for name, wanted, on, off, connections in (
        ("metrics and dashboard on, against off", 0.92, "default settings", "bare", (16, 64)),
        ("traces of 1 %, against none", 0.9, "metrics + traces of 1 %", "metrics", (16, 64)),
        ("audit log on, every call unsafe, against off", 0.7, "default settings + audit", "default settings", (64,)),
        (
            "2 workers on two cores with the load generator and the server, against 1",
            1.5,
            "2 workers",
            "1 process",
            (64,),
        ),
    ):
        ours, theirs = (rows.find("toolway", "options", f"echo, {work}") for work in (on, off))
        yield ratio(name, wanted, ours, theirs, connections)
    hub, libraries, start = (
        rows.get("toolway", "options", work, "modern", 1)
        for work in (IMPORT_HUB, LIBRARIES, "start to the first answer")
    )
    share = hub["seconds"] / libraries["seconds"] if hub and libraries else None
    yield at_most(f"`{IMPORT_HUB}`, against `{LIBRARIES}`", share, 1.6, "of it")
    yield at_most("`toolway serve`, start to the first answer", start["seconds"] if start else None, 0.5, "s")


# ---- kinds of verdicts ----


def ratio(target: str, wanted: float, own: Find, other: Find, connections: Sequence[int]) -> Verdict:
    """Compare two peers by rate and CPU time; all ratios must be at least `wanted`."""
    texts, values = [], []
    for n in connections:
        ours, theirs = own(n), other(n)
        if not ours or not theirs or not ours.get("rate"):
            continue
        if theirs.get("rate") == 0 and not theirs["errors"]:
            texts.append(f"× {n}: the other peer finished none in time")
            continue
        if not theirs.get("rate"):
            continue
        pair = [ours["rate"] / theirs["rate"]]
        if ours.get("cpu_us") and theirs.get("cpu_us"):
            pair.append(theirs["cpu_us"] / ours["cpu_us"])
        values += pair
        texts.append(
            f"× {n}: " + ", ".join(f"{value:.3g} {by}" for value, by in zip(pair, ("calls/s", "CPU"), strict=False))
        )
    complete = len(texts) == len(connections)
    reached = all(value >= wanted for value in values) if complete else None
    return Verdict(target, f"≥ {wanted:g}", "; ".join(texts) or "–", reached)


def at_most(target: str, value: float | None, limit: float, unit: str) -> Verdict:
    """Compare a value with its upper limit."""
    wanted = f"≤ {limit:g} {unit}"
    return (
        Verdict(target, wanted, "–", None) if value is None else Verdict(target, wanted, f"{value:.3g}", value <= limit)
    )


def _added(target: str, key: str, limit: float, own: Row | None, direct: Row | None) -> Verdict:
    value = own[key] - direct[key] if own and direct and own.get(key) and direct.get(key) else None
    return at_most(target, value, limit, "ms")


# ---- output ----

_RESULTS = {True: "reached", False: "**not reached**", None: "not measured"}


def table(result: Result) -> str:
    lines = ["| target | wanted | measured | |", "| --- | --- | --- | --- |"]
    lines += [f"| {one.target} | {one.wanted} | {one.measured} | {_RESULTS[one.reached]} |" for one in verdicts(result)]
    return "\n".join(lines)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "bench" / "results" / "latest.json"
    result = json.loads(path.read_text())
    print(table(result))
    found = [one.reached for one in verdicts(result)]
    print(f"\n{found.count(True)} reached, {found.count(False)} not reached, {found.count(None)} not measured")


if __name__ == "__main__":
    main()
