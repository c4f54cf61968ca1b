"""Start an attack on memory or processes in the sandbox `strict`, and print what it got and what counts as JSON.

python limits_probe.py fork|memory|memory-of-two PROCESSES BYTES. Every loop is bounded: it ends without a limit, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from toolway.config.schema import SandboxGrants
from toolway.upstream.process import bubblewrap, limits
from toolway.upstream.process.pipes import read_all
from toolway.upstream.process.spawner import Spawner

FORK = """
import os, signal, sys
children, reason = [], ""
for _ in range(200):
    try:
        pid = os.fork()
    except OSError as exc:
        reason = exc.strerror
        break
    if pid == 0:
        signal.pause()
    children.append(pid)
print(len(children), reason, flush=True)
for pid in children:
    os.kill(pid, signal.SIGKILL)
"""
MEMORY = """
import sys
held = []
try:
    for _ in range(64):
        held.append(bytearray(b"x") * (16 << 20))
except MemoryError:
    pass
print(len(held) * 16, "MiB", flush=True)
"""
MEMORY_OF_TWO = """
import os, sys
reader, writer = os.pipe()
if os.fork() == 0:
    held = bytearray(b"x") * (96 << 20)
    os.write(writer, b"1")
    os.read(reader, 1)
    os._exit(0)
os.read(reader, 1)
held = bytearray(b"x") * (96 << 20)
print("192 MiB in two processes", flush=True)
"""


async def main() -> None:
    kind, processes, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    program = {"fork": FORK, "memory": MEMORY, "memory-of-two": MEMORY_OF_TWO}[kind]
    grants = SandboxGrants(max_processes=processes, max_memory_bytes=memory)
    spawner = Spawner(None, [])
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    process = await spawner.start([sys.executable, "-I", "-S", "-c", program], env, None, "strict", grants)
    async with asyncio.timeout(60):
        code = await process.exited
    got, errors = [(await read_all(pipe, 4000)).decode() for pipe in (process.stdout, process.stderr)]
    await spawner.close()
    planned = limits.plan_limits("strict", grants, bubblewrap.find_program())
    print(json.dumps({"got": got.strip(), "errors": errors, "code": code, "by": planned.processes_by}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
