"""What a cluster costs: a call through a replica that does not own its server, and replicas next to a single gateway.

Measured side by side in turns, with the load generator of the benchmark; of all turns the median counts.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import machine, wire
from bench.install import TOOLS, build_tools
from tests.faults.cluster.cluster import Cluster, cluster
from tests.faults.cluster.node_process import TOKEN
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
    """At the owner, and through another; nothing if the server has moved."""
    owner = made.owner("h")
    if owner is None:
        await asyncio.sleep(1)
        return {}
    other = next(replica for replica in made.replicas if replica is not owner)
    replicas = {replica: _Gateway(replica.port, TOKEN, replica.pid) for replica in made.replicas}
    found = {
        (who, width): await _measure([replicas[entry]], list(replicas.values()), width, seconds)
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
    """HTTP servers of the modern era, before one gateway alone and before three replicas at once. Next to it what says
    where a difference comes from: one of the replicas while the others rest, and three gateways of no cluster."""
    build_tools()
    async with AsyncExitStack() as stack:
        entries = {"h": {"url": await stack.enter_async_context(_upstream())}}
        made = await stack.enter_async_context(cluster(folder, 0, apart=False, more=entries))
        apart = [
            await stack.enter_async_context(program(folder / f"apart-{n}", entries)) for n in range(len(made.replicas))
        ]
        replicas = [_Gateway(replica.port, TOKEN, replica.pid) for replica in made.replicas]
        others = [_Gateway(each.port, each.token, each.pid) for each in apart]
        groups = {
            "one alone": others[:1],
            "one replica, the others at rest": replicas[:1],
            "three gateways of no cluster": others,
            "three replicas": replicas,
        }
        found: dict[str, list[Figure]] = {name: [] for name in groups}
        for _ in range(turns):
            for name, some in groups.items():
                found[name].append(await _measure(some, some, 16, seconds))
    return _stateless_report({name: median(some) for name, some in found.items()})


def _stateless_report(found: dict[str, Figure]) -> Report:
    report = Report("stateless servers")
    alone = found["one alone"]
    for name, figure in found.items():
        report.facts[name] = f"{figure}  {alone.cpu / figure.cpu:.2f} of one alone, per core"
    share = alone.cpu / found["three replicas"].cpu
    if share < PER_CORE:
        report.wrong.append(f"per core: three replicas serve {share:.2f} of what one does alone")
    return report


@dataclass(frozen=True)
class _Gateway:
    port: int
    token: str
    pid: int


async def _measure(doors: Sequence[_Gateway], busy: Sequence[_Gateway], width: int, seconds: float) -> Figure:
    """So many calls at once at each endpoint, and what the gateways that are busy with them spend."""
    await asyncio.gather(*(_load(endpoint, width, WARM) for endpoint in doors))
    before = _cpu(busy)
    answers = await asyncio.gather(*(_load(endpoint, width, seconds) for endpoint in doors))
    spent = _cpu(busy) - before
    for answer in answers:
        assert answer["calls"] and not answer["errors"], answer
    calls = sum(answer["calls"] for answer in answers)
    return Figure(
        sum(answer["rate"] for answer in answers),
        statistics.mean(answer["p50"] for answer in answers),
        max(answer["p99"] for answer in answers),
        spent * 1e6 / calls,
    )


def _cpu(busy: Sequence[_Gateway]) -> float:
    return sum(machine.measure_usage(gateway.pid, UPSTREAM).cpu for gateway in busy)


async def _load(gateway: _Gateway, width: int, seconds: float) -> dict[str, Any]:
    endpoint = wire.Endpoint(gateway.port, headers={"Authorization": f"Bearer {gateway.token}"})
    with tempfile.NamedTemporaryFile() as call:
        call.write(wire.call(endpoint, "modern", "h__echo"))
        call.flush()
        words = ["--port", str(gateway.port), "--connections", str(width), "--call", call.name, "--warm", "0"]
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
