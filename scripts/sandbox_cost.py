"""Start time of a server process in the sandboxes guard and strict, side by side with a start without one.

    python scripts/sandbox_cost.py [--rounds N]

The same program (`echo`) starts in turn without a sandbox, in `guard`, in `strict`, and in `strict` without bubblewrap,
so other load affects all of them equally. Times from the request to the first byte are compared: medians, and the
fastest tenth, which other load affects least. Exit code 1 if `guard` costs more than the limit by the latter.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any
from unittest import mock

from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process import bubblewrap, landlock
from toolway.upstream.process.limits import plan_limits
from toolway.upstream.process.pipes import read_all
from toolway.upstream.process.sandboxes import describe
from toolway.upstream.process.spawner import Spawner

LIMIT_MS = 10.0  # that `guard` may add to a start
PROGRAM = ["/bin/echo", "x"]


async def start_once(spawner: Spawner, sandbox: Sandbox) -> float:
    """Return the milliseconds from the request to the first byte of a program."""
    began = time.perf_counter()
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    process = await spawner.start(PROGRAM, env, None, sandbox)
    arrived: asyncio.Future[tuple[float, bytes]] = asyncio.get_running_loop().create_future()

    def on_data(data: bytes) -> None:
        if not arrived.done():
            arrived.set_result((time.perf_counter() - began, data))

    process.stdout.start(on_data)
    taken, data = await arrived
    assert data == b"x\n", await read_all(process.stderr, 1000)
    await process.exited
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()
    return taken * 1000


def quick(times: list[float]) -> float:
    """Return the time that a tenth of the starts need at most: other load on the machine affects it least."""
    return sorted(times)[len(times) // 10]


async def measure(rounds: int) -> int:
    program = bubblewrap.find_program()
    ways: list[tuple[str, Sandbox, Any]] = [("no sandbox", "off", program)]
    if program is not None:
        ways += [("guard", "guard", program), ("strict", "strict", program)]
    if landlock.abi_version() >= landlock.STRICT_ABI:
        ways.append(("strict without bubblewrap", "strict", None))
    times: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    spawner = Spawner(None, [])
    for number in range(rounds + 3):
        for name, sandbox, found in ways:
            with mock.patch.object(bubblewrap, "find_program", return_value=found):
                taken = await start_once(spawner, sandbox)
            if number >= 3:  # the first ones are warm-up
                times[name].append(taken)
    await spawner.close()
    plain, fastest = statistics.median(times["no sandbox"]), quick(times["no sandbox"])
    print(f"{'':28} {'median':>15}   {'fastest tenth':>17}")
    for name, each in times.items():
        median, tenth = statistics.median(each), quick(each)
        print(
            f"{name:28} {median:6.2f} {median - plain:+6.2f} ms   {tenth:6.2f} {tenth - fastest:+6.2f} ms   "
            f"{median / plain:.2f} × without"
        )
    if "guard" not in times:
        print("guard was not measured: bubblewrap is missing")
        return 0
    cost = quick(times["guard"]) - fastest
    print(f"guard adds {cost:.2f} ms to a start (limit {LIMIT_MS:.0f} ms)")
    return int(cost > LIMIT_MS)


def print_processor_time(rounds: int) -> None:
    """Print the processor time of the same command lines, started here: other load hardly affects it."""
    program = bubblewrap.find_program()
    if program is None:
        return
    env, grants = dict(os.environ), SandboxGrants()
    guard, strict = (plan_limits(each, grants, program) for each in ("guard", "strict"))
    commands = {
        "no sandbox": PROGRAM,
        "guard": bubblewrap.guard_command(program, PROGRAM, env, None, [], [], guard),
        "strict": bubblewrap.strict_command(program, PROGRAM, env, None, [], grants, "", strict),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            before = _children_ms()
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
            times[name].append(_children_ms() - before)
    medians = {name: statistics.median(each) for name, each in times.items()}
    plain = medians.pop("no sandbox")
    shown = ", ".join(f"{name} {median - plain:+.2f} ms" for name, median in medians.items())
    print(f"processor time: no sandbox {plain:.2f} ms, {shown}")


def _children_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    for line in describe("guard", SandboxGrants()):
        print(line)
    print_processor_time(rounds)
    return asyncio.run(measure(rounds))


if __name__ == "__main__":
    sys.exit(main())
