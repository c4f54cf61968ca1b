"""A guard for every push: did a change make a call dearer? Needs a C compiler and no peer; takes a minute or so.

    python -m bench.quick             compare with bench/accepted.json; ends with 1 when something has become dearer
    python -m bench.quick --accept    write what is measured now there: an improvement, or a price that is worth it

Compared are ratios of CPU time, not seconds: to our bare pass-through, to the SDK's client, or of one of our ways to
another; a ratio says how many times as good the first is. Of three turns the cheapest counts, because what disturbs a
machine only adds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from bench import machine
from bench.install import ROOT, build_tools
from bench.library import KINDS, library
from bench.measure import gateway, measure, servers, wait_until_good
from bench.peers import by_name
from bench.plan import MANY, QUICK, Behind, Case

ACCEPTED = ROOT / "bench" / "accepted.json"
#: How much of an accepted ratio must be left: the cheapest of three turns differs by a tenth or so on a shared machine.
TOLERANCE = 0.75

Spot: TypeAlias = tuple[str, str, str]  # who, before what, which work
Costs: TypeAlias = dict[Spot, float]

_HTTP, _STDIO, _MANY, _OLD = Behind("http"), Behind("stdio"), Behind("http", MANY), Behind("http", era="handshake")
_CASES = {
    "echo × 16": Case("echo", "modern", 16),
    "echo × 64": Case("echo", "modern", 64),
    "big × 16": Case("big", "modern", 16),
    "handshake echo × 16": Case("echo", "handshake", 16),
    "list × 16": Case("list", "modern", 16),
}
_ASKED: dict[Behind, dict[str, tuple[str, ...]]] = {
    _HTTP: {
        "bare": ("echo × 16", "echo × 64", "big × 16"),
        "toolway": ("echo × 16", "echo × 64", "big × 16", "handshake echo × 16"),
    },
    _STDIO: {"bare": ("echo × 16",), "toolway": ("echo × 16",)},
    _MANY: {"bare": ("list × 16",), "toolway": ("list × 16",)},
    _OLD: {"toolway": ("echo × 16",)},
}


@dataclass(frozen=True)
class Guard:
    name: str
    own: Spot
    other: Spot

    def ratio(self, costs: Costs) -> float:
        return costs[self.other] / costs[self.own]


def _to(other: str, behind: str, work: str, name: str) -> Guard:
    return Guard(f"{name}, to {other}", ("toolway", behind, work), (other, behind, work))


_MODERN = ("toolway", "http", "echo × 16")

GUARDS = (
    *(_to("bare", "http", work, f"{work}, HTTP") for work in _ASKED[_HTTP]["bare"]),
    _to("bare", "stdio", "echo × 16", "echo × 16, stdio"),
    _to("bare", "18 http", "list × 16", "list × 16 of 18 × 20 tools"),
    Guard("handshake to modern clients", ("toolway", "http", "handshake echo × 16"), _MODERN),
    Guard("bridge to no bridge", ("toolway", "http handshake", "echo × 16"), _MODERN),
    *(Guard(f"hub to SDK client, {kind}", ("hub", kind, "library"), ("sdk", kind, "library")) for kind in KINDS),
)


def measured() -> Costs:
    """CPU-µs of each spot, the least of all turns. Raises `RuntimeError` where an answer was wrong."""
    costs: Costs = {}
    for spot, cost in (*_gateways(), *_callers()):
        costs[spot] = min(cost, costs.get(spot, cost))
    return costs


def _gateways() -> Iterator[tuple[Spot, float]]:
    for behind, asked in _ASKED.items():
        with servers(behind) as there, contextlib.ExitStack() as stack:
            ready = {name: stack.enter_context(gateway(by_name(name), there)) for name in asked}
            for one in ready.values():
                wait_until_good(one, Case("echo", "modern", 1))
            for _ in range(QUICK.turns):
                for work in dict.fromkeys(work for works in asked.values() for work in works):
                    for name, one in ready.items():
                        if work in asked[name]:
                            figures = measure(one, _CASES[work], QUICK)
                            _must_be_good(name, work, figures)
                            yield (name, str(behind), work), figures["cpu_us"]


def _callers() -> Iterator[tuple[Spot, float]]:
    for row in library(QUICK, ("uvloop",)):
        _must_be_good(row["peer"], row["work"], row)
        yield (row["peer"], row["behind"], "library"), row["cpu_us"]


def _must_be_good(who: str, work: str, figures: dict[str, object]) -> None:
    if figures["errors"] or not figures.get("rate"):
        raise RuntimeError(f"{who}, {work}: {figures.get('failed') or figures.get('first_error') or 'no answer'}")


@dataclass(frozen=True)
class Finding:
    name: str
    ratio: float
    accepted: float | None

    @property
    def fell(self) -> bool:
        return self.accepted is not None and self.ratio < TOLERANCE * self.accepted

    def __str__(self) -> str:
        before = "new" if self.accepted is None else f"accepted {self.accepted:.3g}"
        return f"{self.name:40} {self.ratio:7.3g}   {before}{'   DEARER' if self.fell else ''}"


def compare(costs: Costs, accepted: dict[str, float]) -> list[Finding]:
    return [Finding(guard.name, guard.ratio(costs), accepted.get(guard.name)) for guard in GUARDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    build_tools()
    machine.stand_aside()
    costs = measured()
    for (who, behind, work), cost in costs.items():
        print(f"{who:8} {behind:16} {work:22} {cost:8.1f} CPU-µs")
    accepted = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    findings = compare(costs, accepted)
    if any(one.fell for one in findings) and not options.accept:
        print("once more, since a neighbour on the machine makes calls dearer too")
        findings = [
            max(pair, key=lambda one: one.ratio) for pair in zip(findings, compare(measured(), accepted), strict=True)
        ]
    print("", *findings, f"{time.monotonic() - began:.0f} s", sep="\n")
    if options.accept:
        ACCEPTED.write_text(json.dumps({one.name: float(f"{one.ratio:.3g}") for one in findings}, indent=1) + "\n")
    elif fallen := [one.name for one in findings if one.fell]:
        print(
            f"\nA call costs more than it did: {'; '.join(fallen)}.\n"
            "Look at the last change with a profile; if the price is worth it: python -m bench.quick --accept",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
