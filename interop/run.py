"""Run the whole corpus behind one Hub and compare every result with the servers' direct responses.

python interop/run.py --installed DIR [--only-callable] [--servers FILE] [--jobs 2] [--sandbox guard|strict]
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import corpus
import direct
from compare import COMPARED, first_difference, masked
from corpus import CorpusServer

from toolway import Hub, SandboxGrants, Server, Timeout, ToolwayError
from toolway.config.schema import Sandbox

READY_SECONDS = 120.0
CALL_SECONDS = 60.0


@dataclass
class HubResults:
    """Results that the hub returned for one server."""

    era: str = "-"
    seconds: float = 0.0
    responses: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def ready(self) -> bool:
        return self.era != "-"

    @property
    def called(self) -> bool:
        return isinstance(self.responses.get("call"), dict) and not self.responses["call"].get("isError")


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to compare with")
        return 0
    packages = corpus.read_packages(options.servers, only_callable=options.only_callable)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(packages, installed=options.installed, work=Path(work))
        _reset(servers)
        results, rss = asyncio.run(_query_all(servers, options.sandbox))
        _reset(servers)
        with ThreadPoolExecutor(options.jobs) as pool:
            differences = list(pool.map(lambda server: difference(server, results[server.name]), servers))
    return _report(servers, results, differences, rss)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only-callable", action="store_true", help="only the servers with a call")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="servers to query directly in parallel")
    parser.add_argument("--sandbox", choices=("off", "guard", "strict"), default="off", help="of all servers")
    return parser.parse_args()


def _reset(servers: list[CorpusServer]) -> None:
    for server in servers:
        corpus.make_work(server.work)


async def _query_all(servers: list[CorpusServer], sandbox: Sandbox) -> tuple[dict[str, HubResults], float]:
    """Query all servers concurrently through one hub; return the results and the hub's memory in MB."""
    started = time.monotonic()
    hub = Hub({server.name: _settings(server, sandbox) for server in servers}, catalog_storage=None)
    async with hub:
        print(f"hub entered in {time.monotonic() - started:.2f} s", flush=True)
        results = await asyncio.gather(*(query_hub(hub, server, started) for server in servers))
        rss = _rss_mb()
    print(f"hub closed after {time.monotonic() - started:.1f} s", flush=True)
    return {server.name: one for server, one in zip(servers, results, strict=True)}, rss


def _settings(server: CorpusServer, sandbox: Sandbox) -> Server:
    # All start at the same time on few cores, so each may use the total time.
    timeout = Timeout(start=READY_SECONDS)
    grants = SandboxGrants(write=(str(server.work),))
    return Server(
        command=server.command,
        args=server.args,
        env=server.env,
        cwd=str(server.work),
        timeout=timeout,
        sandbox=sandbox,
        grants=grants,
    )


async def query_hub(hub: Hub, server: CorpusServer, started: float) -> HubResults:
    results = HubResults()
    try:
        await hub.wait_ready(server.name, timeout=READY_SECONDS)
    except ToolwayError as error:
        results.problem = str(error)
        return results
    results.seconds = time.monotonic() - started
    results.era = hub.status()[server.name].era or "?"
    lists: dict[str, Callable[..., Awaitable[list[Any]]]] = {
        "tools": hub.list_tools,
        "prompts": hub.list_prompts,
        "resources": hub.list_resources,
        "templates": hub.list_resource_templates,
    }
    for key, list_items in lists.items():
        results.responses[key] = await _raw_items(list_items, server.name)
    results.responses["call"] = await _call(hub, server)
    return results


async def _raw_items(list_items: Callable[..., Awaitable[list[Any]]], name: str) -> list[Any] | str:
    """Return the raw items, or the text of the error."""
    try:
        return [item.raw for item in await list_items(server=name)]
    except ToolwayError as error:
        return str(error)


async def _call(hub: Hub, server: CorpusServer) -> dict[str, Any] | str | None:
    """Return the raw result, the text of the error, or None if the server has no call."""
    if server.tool is None:
        return None
    try:
        name = f"{server.name}.{server.tool}"
        result = await hub.call_tool(name, server.arguments, timeout=CALL_SECONDS, raise_on_error=False)
    except ToolwayError as error:
        return str(error)
    return result.raw


def difference(server: CorpusServer, results: HubResults) -> str | None:
    """Return the first difference between the results of the hub and of the server, or None."""
    if not results.ready:
        return results.problem
    try:
        expected = direct.query(server, results.era)
    except direct.DirectError as error:
        return f"directly: {error}"
    found = dict(results.responses)
    for key in expected["refused"]:
        # The server announced this list and then returned an error: an empty list and an error are both correct.
        found[key] = [] if isinstance(found[key], str) else found[key]
    path = first_difference(masked(server.name, found), masked(server.name, expected))
    if path is None:
        return None
    raised = [f"{key}: {found[key]}" for key in COMPARED if isinstance(found[key], str)]
    return "; ".join([path, *raised])


def _report(
    servers: list[CorpusServer], results: dict[str, HubResults], differences: list[str | None], rss: float
) -> int:
    print(f"{'server':30} {'era':9} {'start':>6} {'tools':>5} {'prompts':>7} {'resources':>9}  call  equal")
    for server, difference in zip(servers, differences, strict=True):
        print(_line(server, results[server.name], difference))
    callable_ones = [results[server.name] for server in servers if server.tool]
    ready = sum(one.ready for one in results.values())
    calls = sum(one.called for one in callable_ones)
    equal = differences.count(None)
    print(
        f"{ready}/{len(servers)} ready, {calls}/{len(callable_ones)} calls, "
        f"{equal}/{len(servers)} equal, hub RSS {rss:.0f} MB"
    )
    return 0 if (ready, calls, equal) == (len(servers), len(callable_ones), len(servers)) else 1


def _line(server: CorpusServer, results: HubResults, difference: str | None) -> str:
    tools, prompts, resources = (_count(results.responses.get(key)) for key in ("tools", "prompts", "resources"))
    call = "-" if server.tool is None else "ok" if results.called else "NO"
    equal = "yes" if difference is None else f"NO: {difference}"
    # Worth checking, but not a failure: a new version may have changed its era, or a slow start was detected as legacy.
    era = f" (expected {server.era})" if results.ready and results.era != server.era else ""
    return (
        f"{server.name:30} {results.era:9} {results.seconds:5.1f}s {tools:>5} {prompts:>7} {resources:>9}  "
        f"{call:4}  {equal}{era}"
    )


def _count(items: Any) -> str:
    return str(len(items)) if isinstance(items, list) else "-"


def _rss_mb() -> float:
    """Return this process's resident memory in MB, or nan without /proc."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return float("nan")
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    sys.exit(main())
