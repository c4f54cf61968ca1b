"""What a cluster costs: a call through a replica that does not own its server, and replicas beside a gateway alone.

Measured side by side in turns, with the load generator of the benchmark; of all turns the median counts.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import machine, wire
from bench.install import TOOLS, build_tools
from tests.faults.cluster.cluster import Cluster, cluster
from tests.faults.cluster.replica import TOKEN
from tests.faults.cluster.runs import Report
from tests.gateway.program import program

GOAL: Final = 0.6  # of the calls a second at the owner, through another
PER_CORE: Final = 0.95  # of what one does alone; two turns of the same differ by as much
WARM: Final = 0.3  # seconds before each measurement
WIDTHS: Final = (1, 16, 64)  # calls at once
LOAD, UPSTREAM = TOOLS / "load", TOOLS / "upstream"


@dataclass(frozen=True)
class Figure:
    rate: float  # calls a second
    p50: float  # ms
    p99: float
    cpu: float  # CPU-µs of the gateways for one call

    def __str__(self) -> str:
        return f"{self.rate:6.0f}/s  p50 {self.p50:6.2f} ms  p99 {self.p99:6.2f} ms  {self.cpu:5.0f} CPU-µs"


def median(some: Sequence[Figure]) -> Figure:
    return Figure(*(statistics.median(getattr(each, name) for each in some) for name in ("rate", "p50", "p99", "cpu")))


async def hop(folder: Path, turns: int, seconds: float) -> Report:
    """A stdio server, called at its owner and through another replica."""
    build_tools()
    entry = {"command": str(UPSTREAM), "args": ["stdio", "--era", "modern", "--tools", "20"]}
    async with cluster(folder, 0, apart=False, more={"h": entry}) as made:
        found: dict[tuple[str, int], list[Figure]] = {}
        while min((len(some) for some in found.values()), default=0) < turns or len(found) < 2 * len(WIDTHS):
            for width in WIDTHS:
                for (who, _), figure in (await _hop_turn(made, width, seconds)).items():
                    found.setdefault((who, width), []).append(figure)
    return _hop_report({key: median(some) for key, some in found.items()})


async def _hop_turn(made: Cluster, width: int, seconds: float) -> dict[tuple[str, int], Figure]:
    """At the owner, and through another; nothing, where the server has moved meanwhile."""
    owner = made.owner("h")
    if owner is None:
        await asyncio.sleep(1)
        return {}
    other = next(replica for replica in made.replicas if replica is not owner)
    found = {
        (who, width): await _measure([(entry.port, TOKEN)], made, width, seconds)
        for who, entry in (("owner", owner), ("other", other))
    }
    return found if made.owner("h") is owner else {}


def _hop_report(found: dict[tuple[str, int], Figure]) -> Report:
    report = Report("the way to the owner")
    for width in WIDTHS:
        at, by = found["owner", width], found["other", width]
        report.facts[f"{width} at once, at the owner"] = at
        report.facts[f"{width} at once, through another"] = f"{by}  {by.rate / at.rate:.2f} of it"
        if by.rate < GOAL * at.rate:
            report.wrong.append(f"hop: {width} at once: {by.rate / at.rate:.2f} of the owner's calls, {GOAL:g} wanted")
    return report


async def stateless(folder: Path, turns: int, seconds: float) -> Report:
    """HTTP servers of the modern era, before one gateway alone and before three replicas at once."""
    build_tools()
    async with _upstream() as url:
        entries = {"h": {"url": url}}
        async with (
            cluster(folder, 0, apart=False, more=entries) as made,
            program(folder / "alone", entries) as alone,
        ):
            found: dict[str, list[Figure]] = {"alone": [], "three": []}
            for _ in range(turns):
                doors = [(replica.port, TOKEN) for replica in made.replicas]
                found["alone"].append(await _measure([(alone.port, alone.token)], alone.pid, 16, seconds))
                found["three"].append(await _measure(doors, made, 16, seconds))
    alone_is, three_are = median(found["alone"]), median(found["three"])
    share = alone_is.cpu / three_are.cpu
    report = Report("stateless servers")
    report.facts |= {"one alone": alone_is, "three": three_are, "calls per core": f"{share:.2f} of one alone"}
    if share < PER_CORE:
        report.wrong.append(f"per core: three replicas serve {share:.2f} of what one does alone")
    return report


async def _measure(doors: Sequence[tuple[int, str]], who: Cluster | int, width: int, seconds: float) -> Figure:
    """So many calls at once at each door."""
    await asyncio.gather(*(_load(port, token, width, WARM) for port, token in doors))
    before = _cpu(who)
    answers = await asyncio.gather(*(_load(port, token, width, seconds) for port, token in doors))
    spent = _cpu(who) - before
    for answer in answers:
        assert answer["calls"] and not answer["errors"], answer
    calls = sum(answer["calls"] for answer in answers)
    return Figure(
        sum(answer["rate"] for answer in answers),
        statistics.mean(answer["p50"] for answer in answers),
        max(answer["p99"] for answer in answers),
        spent * 1e6 / calls,
    )


def _cpu(who: Cluster | int) -> float:
    pids = [who] if isinstance(who, int) else [replica.pid for replica in who.replicas]
    return sum(machine.used(pid, UPSTREAM).cpu for pid in pids)


async def _load(port: int, token: str, width: int, seconds: float) -> dict[str, Any]:
    door = wire.Door(port, headers={"Authorization": f"Bearer {token}"})
    with tempfile.NamedTemporaryFile() as call:
        call.write(wire.call(door, "modern", "h__echo"))
        call.flush()
        words = ["--port", str(port), "--connections", str(width), "--call", call.name, "--warm", "0"]
        words += ["--seconds", str(seconds), "--expect", wire.expected("echo")]
        process = await asyncio.create_subprocess_exec(str(LOAD), *words, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


@asynccontextmanager
async def _upstream() -> AsyncIterator[str]:
    port = machine.free_port()
    words = [str(UPSTREAM), "http", str(port), "--ports", "1", "--era", "modern", "--tools", "20"]
    process = await asyncio.create_subprocess_exec(*words)
    try:
        await asyncio.sleep(0.2)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()
