"""Calls through all replicas with one budget for all callers: more than it allows, at once, at every replica."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.faults.cluster.cluster import Cluster, cluster
from tests.faults.cluster.node_process import TOKEN, Replica
from tests.faults.cluster.runs import Report
from tests.gateway.edge_lab import TYPES, message_of, modern
from tests.http.raw_client import Raw, connected

SERVERS: Final = 3
MOST_OVER: Final = 1.02


async def run(folder: Path, calls: int, clients: int) -> Report:
    """Make twice as many calls as the daily budget allows, through three replicas."""
    budget = max(1, calls // 2)
    report = Report(f"{calls} calls through three replicas with a budget of {budget}")
    settings = {"budgets": {"*": {"*": f"{budget}/month"}}}
    async with cluster(folder, SERVERS, apart=False, settings=settings) as made:
        began = time.monotonic()
        work = [_call(made, made.replicas[number % 3], calls // clients, number) for number in range(clients)]
        for outcome in await asyncio.gather(*work):
            report.outcomes += outcome
        report.facts |= {"calls": sum(report.outcomes.values()), "executed": report.outcomes["executed"]}
        report.facts |= {"budget": budget, "seconds": round(time.monotonic() - began, 1)}
        shown = await _shown(made.replicas[0])
        report.facts["counted"] = shown["used"]
    if report.outcomes["executed"] > MOST_OVER * budget:
        report.wrong.append(f"over: {report.outcomes['executed']} calls of {budget}")
    if report.outcomes["executed"] + report.outcomes["no answer"] < 0.98 * budget:
        report.wrong.append(f"under: {report.outcomes['executed']} calls of {budget}")
    return report


async def _call(made: Cluster, replica: Replica, calls: int, number: int) -> Counter[str]:
    found: Counter[str] = Counter()
    while found.total() < calls:
        async with connected(replica.port) as client:
            with suppress(TimeoutError):  # of a busy machine: on with another connection
                while found.total() < calls:
                    server = made.servers[(number + found.total()) % len(made.servers)]
                    found["no answer"] += 1
                    outcome = await _once(client, replica, f"{server}__echo")
                    found["no answer"] -= 1
                    found[outcome] += 1
    return +found


async def _once(client: Raw, replica: Replica, tool: str) -> str:
    body, fields = modern("tools/call", {"name": tool, "arguments": {"text": "x"}})
    data = json.dumps(body).encode()
    answer = message_of(await client.ask(_head(replica, "POST", "/mcp", len(data), fields) + data))
    if "result" in answer:
        return "executed"
    error = answer["error"]
    return str(error["data"].get("code", error["message"])) if isinstance(error.get("data"), dict) else error["message"]


async def _shown(replica: Replica) -> dict[str, int]:
    async with connected(replica.port) as client:
        answer = await client.ask(_head(replica, "GET", "/admin/budgets", 0, {}))
    found: dict[str, int] = message_of(answer)["budgets"][0]
    return found


def _head(replica: Replica, method: str, path: str, size: int, fields: dict[str, str]) -> bytes:
    lines = {"Host": f"127.0.0.1:{replica.port}", "Authorization": f"Bearer {TOKEN}", **TYPES, **fields}
    lines["Content-Length"] = str(size)
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode()
