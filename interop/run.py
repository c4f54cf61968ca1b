"""Put the whole corpus behind one Hub and compare every answer with what the servers say directly.

python interop/run.py --installed DIR [--only-callable] [--servers FILE] [--jobs 2]
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

from toolway import Hub, Server, Timeout, ToolwayError

READY_SECONDS = 120.0
CALL_SECONDS = 60.0


@dataclass
class Heard:
    """What the hub gave of one server."""

    era: str = "-"
    seconds: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""

    @property
    def ready(self) -> bool:
        return self.era != "-"

    @property
    def called(self) -> bool:
        return isinstance(self.answer.get("call"), dict) and not self.answer["call"].get("isError")


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} is not here, so there is no corpus to compare with")
        return 0
    packages = corpus.read_packages(options.servers, only_callable=options.only_callable)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(packages, installed=options.installed, work=Path(work))
        _reset(servers)
        heard, rss = asyncio.run(_ask_hub(servers))
        _reset(servers)
        with ThreadPoolExecutor(options.jobs) as pool:
            differences = list(pool.map(lambda server: difference(server, heard[server.name]), servers))
    return _report(servers, heard, differences, rss)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only-callable", action="store_true", help="only the servers with a call to make")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="servers to ask directly at once")
    return parser.parse_args()


def _reset(servers: list[CorpusServer]) -> None:
    for server in servers:
        corpus.make_work(server.work)


async def _ask_hub(servers: list[CorpusServer]) -> tuple[dict[str, Heard], float]:
    """Everything of every server, all at once through one hub, and the hub's size meanwhile in MB."""
    begun = time.monotonic()
    hub = Hub({server.name: _settings(server) for server in servers}, catalog_dir=None)
    async with hub:
        print(f"hub entered in {time.monotonic() - begun:.2f} s", flush=True)
        heard = await asyncio.gather(*(hear(hub, server, begun) for server in servers))
        rss = _rss_mb()
    print(f"hub closed after {time.monotonic() - begun:.1f} s", flush=True)
    return {server.name: one for server, one in zip(servers, heard, strict=True)}, rss


def _settings(server: CorpusServer) -> Server:
    # All start at once on however few cores there are, so each is granted the time of all.
    timeout = Timeout(start=READY_SECONDS)
    return Server(command=server.command, args=server.args, env=server.env, cwd=str(server.work), timeout=timeout)


async def hear(hub: Hub, server: CorpusServer, begun: float) -> Heard:
    heard = Heard()
    try:
        await hub.wait_ready(server.name, timeout=READY_SECONDS)
    except ToolwayError as error:
        heard.trouble = str(error)
        return heard
    heard.seconds = time.monotonic() - begun
    heard.era = hub.status()[server.name].era or "?"
    lists: dict[str, Callable[..., Awaitable[list[Any]]]] = {
        "tools": hub.list_tools,
        "prompts": hub.list_prompts,
        "resources": hub.list_resources,
        "templates": hub.list_resource_templates,
    }
    for key, list_items in lists.items():
        heard.answer[key] = await _raws(list_items, server.name)
    heard.answer["call"] = await _call(hub, server)
    return heard


async def _raws(list_items: Callable[..., Awaitable[list[Any]]], name: str) -> list[Any] | str:
    """The raw items, or the text of the error."""
    try:
        return [item.raw for item in await list_items(server=name)]
    except ToolwayError as error:
        return str(error)


async def _call(hub: Hub, server: CorpusServer) -> dict[str, Any] | str | None:
    """The raw result, or the text of the error, or None where there is nothing to call."""
    if server.tool is None:
        return None
    try:
        reply = await hub.call_tool(f"{server.name}.{server.tool}", server.arguments, timeout=CALL_SECONDS)
    except ToolwayError as error:
        return str(error)
    return reply.raw


def difference(server: CorpusServer, heard: Heard) -> str | None:
    """Where the hub's answers differ from the server's own, or None."""
    if not heard.ready:
        return heard.trouble
    try:
        said = direct.ask(server, heard.era)
    except direct.DirectError as error:
        return f"directly: {error}"
    ours = dict(heard.answer)
    for key in said["refused"]:
        # The server promised this list and then would not give it: nothing, or an error, is right.
        ours[key] = [] if isinstance(ours[key], str) else ours[key]
    path = first_difference(masked(server.name, ours), masked(server.name, said))
    if path is None:
        return None
    raised = [f"{key}: {ours[key]}" for key in COMPARED if isinstance(ours[key], str)]
    return "; ".join([path, *raised])


def _report(servers: list[CorpusServer], heard: dict[str, Heard], differences: list[str | None], rss: float) -> int:
    print(f"{'server':30} {'era':9} {'start':>6} {'tools':>5} {'prompts':>7} {'resources':>9}  call  equal")
    for server, difference in zip(servers, differences, strict=True):
        print(_line(server, heard[server.name], difference))
    callable_ones = [heard[server.name] for server in servers if server.tool]
    ready = sum(one.ready for one in heard.values())
    calls = sum(one.called for one in callable_ones)
    equal = differences.count(None)
    print(
        f"{ready}/{len(servers)} ready, {calls}/{len(callable_ones)} calls, "
        f"{equal}/{len(servers)} equal, hub RSS {rss:.0f} MB"
    )
    return 0 if (ready, calls, equal) == (len(servers), len(callable_ones), len(servers)) else 1


def _line(server: CorpusServer, heard: Heard, difference: str | None) -> str:
    tools, prompts, resources = (_count(heard.answer.get(key)) for key in ("tools", "prompts", "resources"))
    call = "-" if server.tool is None else "ok" if heard.called else "NO"
    equal = "yes" if difference is None else f"NO: {difference}"
    # Worth a look, not a failure: a new version may have moved, or a slow start was taken for the older era.
    era = f" (expected {server.era})" if heard.ready and heard.era != server.era else ""
    return (
        f"{server.name:30} {heard.era:9} {heard.seconds:5.1f}s {tools:>5} {prompts:>7} {resources:>9}  "
        f"{call:4}  {equal}{era}"
    )


def _count(items: Any) -> str:
    return str(len(items)) if isinstance(items, list) else "-"


def _rss_mb() -> float:
    """This process's resident memory; nan where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return float("nan")
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    sys.exit(main())
