"""Cost of policies: a call whose decision is known, one whose arguments are read, and long lists for many groups.

    python -m bench.policy [--tools 10000] [--groups 20]

Prints CPU time per decision, and for lists the total time in threads and the event loop's delays during it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable

from toolway.catalog.catalog import Tool
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.engine import PolicyEngine
from toolway.parts.policy.entities import Caller

SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


def policy_text(groups: int, *, by_name: bool) -> str:
    """Return 50 rules or more: a permit for each group, and forbids; with `by_name`, each tool is decided alone."""
    rules = [f'permit (principal in Group::"g{n}", action, resource in Server::"s{n}");' for n in range(groups)]
    rules += [
        f'forbid (principal, action == Action::"call", resource == Tool::"s{n}.tool_1");' for n in range(50 - groups)
    ]
    large = "when { context.args.amount > 100 }"
    rules.append(f'forbid (principal, action == Action::"call", resource == Tool::"s0.transfer") {large};')
    if by_name:
        rules.append('permit (principal, action == Action::"call", resource) when { resource.name like "read_*" };')
    return "\n".join(rules)


def measure(work: Callable[[], object], count: int) -> float:
    """Return the CPU time of one run in microseconds: the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for _ in range(count):
            work()
        best = min(best, (time.process_time() - started) / count)
    return best * 1e6


def make_tool(number: int, groups: int) -> Tool:
    name = f"read_{number}" if number % 3 == 0 else f"tool_{number}"
    return Tool(f"s{number % (groups * 2)}", name, {"name": name, "inputSchema": {"type": "object"}})


async def measure_lists(tools: int, groups: int, *, by_name: bool) -> tuple[float, float, float]:
    """Return the seconds for all lists, those of CPU time, and the 99th percentile of the loop's delays in ms."""
    policy = AccessPolicy(PolicyEngine(policy_text(groups, by_name=by_name)))
    items = [("tools", make_tool(number, groups)) for number in range(tools)]
    delays: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.005)
            delays.append((time.perf_counter() - begun - 0.005) * 1000)

    watching = asyncio.create_task(watch())
    started, used = time.perf_counter(), time.process_time()
    for number in range(groups):
        permission = policy.permission_of(Caller(f"u{number}", groups=frozenset({f"g{number}"})))
        await permission.prepare(items)  # type: ignore[arg-type]
    seconds, used = time.perf_counter() - started, time.process_time() - used
    watching.cancel()
    return seconds, used, sorted(delays)[int(len(delays) * 0.99)] if delays else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=20)
    options = parser.parse_args()
    policy = AccessPolicy(PolicyEngine(policy_text(20, by_name=False)))
    permission = policy.permission_of(Caller("alice", groups=frozenset({"g0", "g1"})))
    known, asked = make_tool(1, 20), Tool("s0", "transfer", {"name": "transfer", "inputSchema": SCHEMA})
    assert permission.allows_call(asked, {"amount": 5}) and not permission.allows_call(asked, {"amount": 500})
    print(f"known decision       {measure(lambda: permission.allows_call(known, {}), 20_000):8.2f} µs")
    print(f"arguments are read   {measure(lambda: permission.allows_call(asked, {'amount': 5}), 1000):8.2f} µs")
    for by_name in (False, True):
        seconds, used, delay = asyncio.run(measure_lists(options.tools, options.groups, by_name=by_name))
        kind = "each tool apart" if by_name else "tools by server"
        times = f"{seconds:6.2f} s ({used:.2f} s of CPU), loop delay p99 {delay:5.1f} ms"
        print(f"{options.tools} tools, {options.groups} groups, {kind}: {times}")


if __name__ == "__main__":
    main()
