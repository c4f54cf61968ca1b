"""The end of a login: how soon three whole gateways reject the tokens of a user, whichever of them ended the login."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from tests.faults.cluster.cluster import Cluster, cluster
from tests.faults.cluster.node_process import Replica
from tests.faults.cluster.runs import Report
from tests.gateway.load_clients import Failed, LoadClient, Lost, load_client
from tests.parts.identity.issuer import AUDIENCE, Issuer
from tests.parts.identity.test_process import published

LIMIT_S: Final = 1.0  # seconds until all gateways refuse
GIVE_UP_S: Final = 10.0


async def run(folder: Path, times: int) -> Report:
    """End the logins of one person after the other, at another gateway each time, while the person calls at all."""
    report = Report("a login is ended at one gateway, and refused at all")
    issuer = Issuer()
    async with published(issuer) as url:
        settings = {"gateway": {"login": {"issuer": url, "audience": AUDIENCE}}, "access": {"eng": ["*"]}}
        async with cluster(folder, 3, apart=False, settings=settings) as made:
            seconds = [await _end_once(made, issuer, number, report) for number in range(times)]
    report.facts = {
        "logins ended": times,
        "gateways": 3,
        "median until all refuse (s)": f"{sorted(seconds)[len(seconds) // 2]:.3f}",
        "longest (s)": f"{max(seconds):.3f}",
        "limit (s)": LIMIT_S,
    }
    return report


async def _end_once(made: Cluster, issuer: Issuer, number: int, report: Report) -> float:
    person = f"person-{number}"
    issuer.now = time.time()
    token = issuer.token(sub=person)
    clients = [load_client(("modern", "legacy")[number % 2], replica.port, token) for replica in made.replicas]
    tool = f"{made.servers[number % len(made.servers)]}__echo"
    for client in clients:
        assert (await client.call(tool, {"text": "x"})).raw["content"]
    told: Replica = made.replicas[number % len(made.replicas)]
    began = time.monotonic()
    status, _ = await told.request("DELETE", f"/admin/sessions/{person}")
    assert status == 200, status
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await asyncio.gather(*(_until_refused(client, tool) for client in clients))
    except TimeoutError:
        report.wrong.append(f"accepted: a token of {person} after {GIVE_UP_S:g} s")
    taken = time.monotonic() - began
    for client in clients:
        client.close()
    report.outcomes[f"ended at {told.name}"] += 1
    if taken > LIMIT_S:
        report.wrong.append(f"late: {person} was refused everywhere after {taken:.2f} s")
    return taken


async def _until_refused(client: LoadClient, tool: str) -> None:
    while True:
        try:
            await client.call(tool, {"text": "x"})
        except Lost:
            continue  # the end of a login aborts its calls
        except Failed as failed:
            if failed.status == 401:
                return
            raise
        await asyncio.sleep(0.005)
