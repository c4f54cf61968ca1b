"""A load on a cluster while something is done to it, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.faults.cluster.cluster import Cluster
from tests.faults.cluster.load import LIMIT, Load
from tests.faults.cluster.verdict import MOVES, Owners, effects_in, longest_gap, moves, two_owners, wrong_answers
from tests.long.server_set import table
from tests.timing import QUIET, within
from toolway.testing import History
from toolway.testing.history import find_violations

LATE: Final = 2.0  # seconds in which the last effects of calls that were cut off may still happen
COMPLAINTS: Final = ("Traceback (most recent call last)", "was never retrieved", "never awaited", "was destroyed but")

NEWLINE: Final = "\n"

Act = Callable[[Cluster], Awaitable[None]]


@dataclass
class Report:
    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = Counter(each.split()[0].rstrip(":") for each in self.wrong)
        broken = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        facts = {**self.facts, "promises broken": f"{len(self.wrong)} ({broken})" if broken else "0"}
        return "\n".join(
            [
                f"{self.name}",
                table(facts),
                "  outcomes",
                *_indented(self.outcomes),
                *[f"  ! {x}" for x in self.wrong[:15]],
            ]
        )


def _indented(outcomes: Counter[str]) -> Iterator[str]:
    return (f"  {count:8}  {name[:140]}" for name, count in outcomes.most_common(12))


async def under_load(
    cluster: Cluster, name: str, act: Act | None, calls: int, clients: int, seed: int = 1, limit: float = LIMIT
) -> Report:
    """So many calls at least, and more until `act` is over and every server has its owner again."""
    cluster.forget()
    marks = {replica.name: len(replica.log) for replica in cluster.replicas}
    history = History(cluster.effects)
    load = Load(cluster.replicas, cluster.servers, history, seed, limit)
    over = asyncio.Event()
    settled = 0.0

    async def strike() -> None:
        nonlocal settled
        try:
            if act is not None:
                await asyncio.sleep(1)
                await act(cluster)
                settled = await cluster.settle()
                await asyncio.sleep(1)
        finally:
            over.set()

    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.clients(clients, calls, over))
        tasks.create_task(strike())
    seconds = time.monotonic() - began
    if cluster.strikes:
        await asyncio.sleep(LATE)
    return _judged(cluster, name, load, history, seconds, marks)


def _judged(cluster: Cluster, name: str, load: Load, history: History, seconds: float, marks: dict[str, int]) -> Report:
    report = Report(name, outcomes=load.outcomes())
    effects, owners = effects_in(cluster.effects), Owners(cluster.watcher.tenures)
    report.wrong += [str(each) for each in find_violations(history) if QUIET or each.kind != "late"]
    report.wrong += wrong_answers(load.trips, cluster.strikes, owners, busy=not QUIET)
    report.wrong += two_owners(effects, cluster.pids(), owners)
    report.wrong += _complaints(cluster, marks)
    if load.sessions_lost:
        report.wrong.append(f"sessions: {load.sessions_lost} were not known at another replica")
    took = sorted(trip.ended - trip.began for trip in load.trips if trip.how == "ok")
    told = Counter(trip.executed for trip in load.trips)
    report.facts |= {
        "calls": f"{len(history.invocations)} in {seconds:.1f} s, {len(history.invocations) / seconds:.0f}/s",
        "p50, p99": f"{_at(took, 0.5) * 1000:.1f} ms, {_at(took, 0.99) * 1000:.1f} ms",
        "told": ", ".join(f"{count} {word}" for word, count in told.most_common()),
        "effects": len(effects),
        "of servers": len({effect.server for effect in effects}),
        "below gateways": len({effect.gateway for effect in effects}),
    }
    _times(cluster, load, report)
    return report


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _complaints(cluster: Cluster, marks: dict[str, int]) -> Iterator[str]:
    for replica in cluster.replicas:
        said = replica.log[marks[replica.name] :]
        for words in COMPLAINTS:
            if words in said:
                before, _, after = said.partition(words)
                lines = (line for line in after.splitlines()[1:] if line[:1] not in ("", " ", "|"))
                why = f"{before.rpartition(NEWLINE)[0].rpartition(NEWLINE)[2][:160]} … {next(lines, '')[:200]}"
                yield f"log: {replica.name} says {words!r} {said.count(words)} times, such as {why}"


def _timeline(cluster: Cluster, server: str) -> str:
    """Owners and strikes in order, in seconds since the first one."""
    strikes = [(strike.since, f"{strike.what} of {','.join(strike.replicas)}") for strike in cluster.strikes]
    owners = [(each.since, f"{each.node} for {each.until - each.since:.1f}") for each in cluster.watcher.tenures]
    own = [
        (at, what) for (at, what), each in zip(owners, cluster.watcher.tenures, strict=True) if each.server == server
    ]
    found = sorted([*strikes, *own])
    return "; ".join(f"{at - found[0][0]:.1f} {what}" for at, what in found)


def _times(cluster: Cluster, load: Load, report: Report) -> None:
    """How long struck servers had no owner, and how soon callers at other replicas got an error."""
    lease = [
        (seconds, server)
        for strike in cluster.strikes
        if strike.what in ("kill", "pause", "postgres")
        for server, seconds in moves(cluster.watcher.tenures, strike).items()
    ]
    if lease:
        longest, server = max(lease)
        report.facts["a server moved in"] = f"{longest:.1f} s at the longest, of {len(lease)}"
        if longest > within(MOVES):
            report.wrong.append(f"moved: {server} had no other owner for {longest:.1f} s: {_timeline(cluster, server)}")
    report.facts |= {what: f"{max(took):.1f} s at the longest, of {len(took)}" for what, took in cluster.took.items()}
    gap, server = longest_gap(cluster.watcher.tenures)
    if server:
        report.facts["without an owner for"] = f"{gap:.1f} s at the longest, {server}"
    under_way = [
        (trip, trip.ended - strike.since)
        for strike in cluster.strikes
        for trip in load.trips
        if trip.entry not in strike.replicas and trip.began < strike.since < trip.ended
    ]
    told = [seconds for trip, seconds in under_way if "the call may have run" in trip.how]
    if told:
        report.facts["others were told of a loss in"] = f"{max(told):.2f} s at the longest, of {len(told)}"
    waited = [trip for trip, _ in under_way if trip.executed == "unknown" and "timed out after" in trip.how]
    if waited:
        report.facts["others waited to their deadline"] = len(waited)
