"""Cost of a call, a list and a server in one gateway with 10, 100 and 1,000 HTTP servers.

Each server has 10 tools. The three gateways run at the same time and are measured in turns. Calls go to the first
server of the file, to the last one, or from each connection to a different one. All pages of the list of 10,000 tools
are requested once; its first and last page are requested under load.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator

import msgspec

from bench import wire
from bench.journal import Row
from bench.launch import Server
from bench.measure import Gateway, NotReadyError, gateway, idle_memory, measure, servers
from bench.peers import get_peer
from bench.plan import Case, Pace, ServerGroup
from bench.single_request import list_pages, tool_names

SIZES = (10, 100, 1000)
TOOLS = 10
LISTED_SECONDS = 120.0
CONNECTIONS = 16
_ECHO = Case("echo", "modern", CONNECTIONS)


def growth(pace: Pace, sizes: tuple[int, ...] = SIZES) -> Iterator[Row]:
    with servers(ServerGroup("http", sizes[-1], tools=TOOLS)) as upstreams, contextlib.ExitStack() as stack:
        gateways: dict[int, Gateway] = {}
        for size in sizes:
            one = gateways[size] = stack.enter_context(gateway(get_peer("toolway"), upstreams[:size]))
            yield {**_row(size, "all listed"), "seconds": wait_listed(one, size * TOOLS)}
            yield {**_row(size, "memory"), "mb": idle_memory(one, Case("list", "modern", 1))}
        for turn in range(pace.turns):
            for where in ("first", "last", "spread"):
                for size, one in gateways.items():
                    at = _targets(upstreams[:size], where)
                    yield {**_row(size, f"echo, {where}", turn), **measure(one, _ECHO, pace, at)}
            yield from _lists(gateways[sizes[-1]], sizes[-1], turn, pace)


def _row(size: int, work: str, turn: int = 0, connections: int = CONNECTIONS) -> Row:
    return {
        "peer": "toolway",
        "behind": f"{size} http",
        "work": work,
        "era": "modern",
        "connections": connections,
        "turn": turn,
    }


def _targets(upstreams: tuple[Server, ...], where: str) -> tuple[str, ...]:
    """Return the names of the servers to call: one, or one per connection at equal distances."""
    if where != "spread":
        return (upstreams[0 if where == "first" else -1].name,)
    step = max(len(upstreams) // CONNECTIONS, 1)
    return tuple(one.name for one in upstreams[::step][:CONNECTIONS])


def wait_listed(one: Gateway, wanted: int) -> float:
    """Return the seconds from the start of the gateway until it lists the tools of all servers."""
    end = time.monotonic() + LISTED_SECONDS
    names: list[str] = []
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            names = tool_names(list_pages(one.launch.endpoint))
        if len(set(names)) == wanted:
            return time.monotonic() - one.begun
        time.sleep(0.1)
    raise NotReadyError(f"{len(names)} tools of {wanted} after {LISTED_SECONDS:g} s")


def _lists(one: Gateway, size: int, turn: int, pace: Pace) -> Iterator[Row]:
    endpoint = one.launch.endpoint
    listed = list_pages(endpoint)
    yield {
        **_row(size, "list, all pages", turn, 1),
        "seconds": sum(page.seconds for page in listed),
        "items": len(set(tool_names(listed))),
        "mb": sum(page.size for page in listed) / 1e6,
    }
    yield _encoding(listed[0].result["tools"], size, turn)
    last: dict[str, object] = {"cursor": listed[-2].result["nextCursor"]} if len(listed) > 1 else {}
    for name, params in (("first", {}), ("last", last)):
        call = wire.request(endpoint, "modern", "tools/list", params)
        figures = measure(one, Case("list", "modern", CONNECTIONS), pace, calls=[call])
        yield {**_row(size, f"list, {name} page", turn), **figures, "mb": figures.get("body", 0) / 1e6}


def _encoding(tools: list[object], size: int, turn: int) -> Row:
    """Measure the cost of encoding the first page, which a gateway without a cache pays for every client."""
    took = []
    for _ in range(20):
        began = time.perf_counter()
        msgspec.json.encode(tools)
        took.append(time.perf_counter() - began)
    return {**_row(size, "list, first page", turn, 1), "peer": "encoding", "cpu_us": statistics.median(took) * 1e6}
