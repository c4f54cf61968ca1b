"""Regression check for every push: fails if a change makes a call more expensive.

    python -m bench.quick             compare with bench/accepted.json; exit code 1 if a call has become more expensive
    python -m bench.quick --accept    accept the measured figures: an improvement, or a cost that is worth it

Compared are ratios of CPU time, not seconds: Toolway to the bare pass-through, to the SDK client, or to itself in
another mode. A ratio above 1 means that the first is better. The cheapest of three turns counts, because disturbances
only add time. Needs a C compiler, no peers, and about a minute.
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
from bench.measure import gateway, measure, servers, wait_until_ready
from bench.peers import get_peer
from bench.plan import MANY, QUICK_PACE, Case, ServerGroup

ACCEPTED = ROOT / "bench" / "accepted.json"
#: Part of an accepted ratio that must remain. The cheapest of three turns varies by about 10 % on a shared machine,
#: so a loss is measured twice before it counts.
TOLERANCE = 0.85

Measurement: TypeAlias = tuple[str, str, str]  # peer, servers, workload
Costs: TypeAlias = dict[Measurement, float]

_HTTP, _STDIO, _MANY, _LEGACY = (
    ServerGroup("http"),
    ServerGroup("stdio"),
    ServerGroup("http", MANY),
    ServerGroup("http", era="legacy"),
)
_CASES = {
    "echo × 16": Case("echo", "modern", 16),
    "echo × 64": Case("echo", "modern", 64),
    "big × 16": Case("big", "modern", 16),
    "legacy echo × 16": Case("echo", "legacy", 16),
    "list × 16": Case("list", "modern", 16),
}
_PLANNED: dict[ServerGroup, dict[str, tuple[str, ...]]] = {
    _HTTP: {
        "bare": ("echo × 16", "echo × 64", "big × 16"),
        "toolway": ("echo × 16", "echo × 64", "big × 16", "legacy echo × 16"),
    },
    _STDIO: {"bare": ("echo × 16",), "toolway": ("echo × 16",)},
    _MANY: {"bare": ("list × 16",), "toolway": ("list × 16",)},
    _LEGACY: {"toolway": ("echo × 16",)},
}


@dataclass(frozen=True)
class RatioCheck:
    name: str
    own: Measurement
    other: Measurement

    def ratio(self, costs: Costs) -> float:
        return costs[self.other] / costs[self.own]


def _compare_with(other: str, behind: str, work: str, name: str) -> RatioCheck:
    return RatioCheck(f"{name}, to {other}", ("toolway", behind, work), (other, behind, work))


_MODERN = ("toolway", "http", "echo × 16")

CHECKS = (
    *(_compare_with("bare", "http", work, f"{work}, HTTP") for work in _PLANNED[_HTTP]["bare"]),
    _compare_with("bare", "stdio", "echo × 16", "echo × 16, stdio"),
    _compare_with("bare", "18 http", "list × 16", "list × 16 of 18 × 20 tools"),
    RatioCheck("legacy to modern clients", ("toolway", "http", "legacy echo × 16"), _MODERN),
    RatioCheck("bridge to no bridge", ("toolway", "http legacy", "echo × 16"), _MODERN),
    *(RatioCheck(f"hub to SDK client, {kind}", ("hub", kind, "library"), ("sdk", kind, "library")) for kind in KINDS),
)


def measure_costs() -> Costs:
    """Return the CPU-µs of each measurement, the minimum of all turns.

    Raises `RuntimeError` if a result is wrong, or if every turn of a measurement was too short to measure.
    """
    costs: Costs = {}
    unmeasured: set[Measurement] = set()
    for measurement, cost in (*_gateways(), *_libraries()):
        if cost:  # the system counts CPU time in steps of 10 ms, so a turn on a busy machine may have none
            costs[measurement] = min(cost, costs.get(measurement, cost))
        else:
            unmeasured.add(measurement)
    if unmeasured - costs.keys():
        raise RuntimeError(f"no CPU time was measured: {', '.join(map(str, unmeasured - costs.keys()))}; run it again")
    return costs


def _gateways() -> Iterator[tuple[Measurement, float]]:
    for behind, planned in _PLANNED.items():
        with servers(behind) as upstreams, contextlib.ExitStack() as stack:
            ready = {name: stack.enter_context(gateway(get_peer(name), upstreams)) for name in planned}
            for one in ready.values():
                wait_until_ready(one, Case("echo", "modern", 1))
            for _ in range(QUICK_PACE.turns):
                for work in dict.fromkeys(work for works in planned.values() for work in works):
                    for name, one in ready.items():
                        if work in planned[name]:
                            figures = measure(one, _CASES[work], QUICK_PACE)
                            _require_correct(name, work, figures)
                            yield (name, str(behind), work), figures["cpu_us"]


def _libraries() -> Iterator[tuple[Measurement, float]]:
    for row in library(QUICK_PACE, ("uvloop",)):
        _require_correct(row["peer"], row["work"], row)
        yield (row["peer"], row["behind"], "library"), row["cpu_us"]


def _require_correct(peer: str, work: str, figures: dict[str, object]) -> None:
    if figures["errors"] or not figures.get("rate"):
        raise RuntimeError(f"{peer}, {work}: {figures.get('failed') or figures.get('first_error') or 'no result'}")


@dataclass(frozen=True)
class Finding:
    name: str
    ratio: float
    accepted: float | None

    @property
    def regressed(self) -> bool:
        return self.accepted is not None and self.ratio < TOLERANCE * self.accepted

    def __str__(self) -> str:
        before = "new" if self.accepted is None else f"accepted {self.accepted:.3g}"
        return f"{self.name:40} {self.ratio:7.3g}   {before}{'   MORE EXPENSIVE' if self.regressed else ''}"


def compare(costs: Costs, accepted: dict[str, float]) -> list[Finding]:
    return [Finding(check.name, check.ratio(costs), accepted.get(check.name)) for check in CHECKS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    build_tools()
    machine.leave_gateway_core()
    costs = measure_costs()
    for (peer, behind, work), cost in costs.items():
        print(f"{peer:8} {behind:16} {work:22} {cost:8.1f} CPU-µs")
    accepted = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    findings = compare(costs, accepted)
    if any(one.regressed for one in findings) and not options.accept:
        print("measuring again, because load from other processes has the same effect")
        findings = [
            max(pair, key=lambda one: one.ratio)
            for pair in zip(findings, compare(measure_costs(), accepted), strict=True)
        ]
    print("", *findings, f"{time.monotonic() - began:.0f} s", sep="\n")
    if options.accept:
        ACCEPTED.write_text(json.dumps({one.name: float(f"{one.ratio:.3g}") for one in findings}, indent=1) + "\n")
    elif regressions := [one.name for one in findings if one.regressed]:
        print(
            f"\nA call costs more than before: {'; '.join(regressions)}.\n"
            "Profile the last change (python -m bench.profiling). To accept the cost: python -m bench.quick --accept",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
