"""One gateway process before 10, 100 and 1,000 HTTP servers with 10 tools each: what a call, a list and a server cost.

All three run side by side and take turns. A call goes to the first server of the file, to the last, or each connection
to another one. The list of 10,000 tools is walked page by page, and its first and its last page are asked for under
load.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator

import msgspec

from bench import wire
from bench.asking import pages, tool_names
from bench.journal import Row
from bench.launch import Server
from bench.measure import Gateway, NotReadyError, gateway, idle_memory, measure, servers
from bench.peers import by_name
from bench.plan import Behind, Case, Pace

SIZES = (10, 100, 1000)
TOOLS = 10
LISTED_SECONDS = 120.0
CONNECTIONS = 16
_ECHO = Case("echo", "modern", CONNECTIONS)


def growth(pace: Pace, sizes: tuple[int, ...] = SIZES) -> Iterator[Row]:
    with servers(Behind("http", sizes[-1], tools=TOOLS)) as there, contextlib.ExitStack() as stack:
        gateways: dict[int, Gateway] = {}
        for size in sizes:
            one = gateways[size] = stack.enter_context(gateway(by_name("toolway"), there[:size]))
            yield {**_place(size, "all listed"), "seconds": wait_listed(one, size * TOOLS)}
            yield {**_place(size, "memory"), "mb": idle_memory(one, Case("list", "modern", 1))}
        for turn in range(pace.turns):
            for where in ("first", "last", "spread"):
                for size, one in gateways.items():
                    at = _targets(there[:size], where)
                    yield {**_place(size, f"echo, {where}", turn), **measure(one, _ECHO, pace, at)}
            yield from _lists(gateways[sizes[-1]], sizes[-1], turn, pace)


def _place(size: int, work: str, turn: int = 0, connections: int = CONNECTIONS) -> Row:
    return {
        "peer": "toolway",
        "behind": f"{size} http",
        "work": work,
        "era": "modern",
        "connections": connections,
        "turn": turn,
    }


def _targets(there: tuple[Server, ...], where: str) -> tuple[str, ...]:
    """The servers that are called: one, or one for each connection, far apart."""
    if where != "spread":
        return (there[0 if where == "first" else -1].name,)
    step = max(len(there) // CONNECTIONS, 1)
    return tuple(one.name for one in there[::step][:CONNECTIONS])


def wait_listed(one: Gateway, wanted: int) -> float:
    """Seconds from the start of the program until it shows the tools of all servers."""
    end = time.monotonic() + LISTED_SECONDS
    names: list[str] = []
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            names = tool_names(pages(one.launch.door))
        if len(set(names)) == wanted:
            return time.monotonic() - one.begun
        time.sleep(0.1)
    raise NotReadyError(f"{len(names)} tools of {wanted} after {LISTED_SECONDS:g} s")


def _lists(one: Gateway, size: int, turn: int, pace: Pace) -> Iterator[Row]:
    door = one.launch.door
    listed = pages(door)
    yield {
        **_place(size, "list, all pages", turn, 1),
        "seconds": sum(page.seconds for page in listed),
        "items": len(set(tool_names(listed))),
        "mb": sum(page.size for page in listed) / 1e6,
    }
    yield _encoding(listed[0].result["tools"], size, turn)
    last: dict[str, object] = {"cursor": listed[-2].result["nextCursor"]} if len(listed) > 1 else {}
    for name, params in (("first", {}), ("last", last)):
        call = wire.request(door, "modern", "tools/list", params)
        figures = measure(one, Case("list", "modern", CONNECTIONS), pace, calls=[call])
        yield {**_place(size, f"list, {name} page", turn), **figures, "mb": figures.get("body", 0) / 1e6}


def _encoding(tools: list[object], size: int, turn: int) -> Row:
    """What it would cost to encode the first page for every client anew."""
    took = []
    for _ in range(20):
        began = time.perf_counter()
        msgspec.json.encode(tools)
        took.append(time.perf_counter() - began)
    return {**_place(size, "list, first page", turn, 1), "peer": "encoding", "cpu_us": statistics.median(took) * 1e6}
