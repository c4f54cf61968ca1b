"""What a hub still holds when nothing is running. It looks into private parts, because a leak shows nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

from toolway.hub.hub import Hub
from toolway.middleware.circuit_breaker import CircuitBreaker
from toolway.middleware.single_flight import InFlightCalls

T = TypeVar("T")


def held(hub: Hub) -> Iterator[str]:
    """Slots, places in line, retries, trials and flights that are not in use any more."""
    for name, slots in hub._core._upstreams.limiters.items():
        limits = hub._core.servers.entries[name].limits if name in hub._core.servers.entries else None
        if slots.queued or slots._queues or slots._in_use_by or (limits and slots._free != limits.max_concurrent):
            yield f"{name} has {slots._free} free slots, {slots._in_use_by} held, {slots.queued} waiting"
    yield from (
        f"{name} has {b.active} active retries" for name, b in hub._core._upstreams.retry_budgets.items() if b.active
    )
    for flights in _inside(hub._core.calls._chain, InFlightCalls, set()):
        yield from (f"a flight of {key} with {f.waiters} waiting" for key, f in flights._calls.items())
    yield from _trials(hub)
    for name, upstream in hub._core._upstreams.upstreams.items():
        if upstream.waiter_count:
            yield f"{upstream.waiter_count} wait for {name} to be ready"
        if upstream.session is not None and upstream.session.in_flight:
            yield f"the session of {name} counts {upstream.session.in_flight} calls in flight"


def _trials(hub: Hub) -> Iterator[str]:
    breakers: dict[Any, CircuitBreaker] = {**hub._core.servers.breakers._servers, **hub._core.servers.breakers._tools}
    yield from (f"the breaker of {key} waits for a trial that is over" for key, b in breakers.items() if b._trial)


def tasks() -> Iterator[str]:
    """Tasks other than the one that asks."""
    for task in sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=hash):
        coro = task.get_coro()
        yield f"a task in {getattr(coro, '__qualname__', coro)}"


def _inside(value: Any, kind: type[T], seen: set[int]) -> Iterator[T]:
    """All objects of `kind` that the functions of a pipeline keep."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, kind):
        yield value
    for cell in getattr(value, "__closure__", None) or ():
        yield from _inside(cell.cell_contents, kind, seen)
