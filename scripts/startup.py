"""How quick the command line is: `toolway --help` beside `import typer`, and `toolway tools` from the disk catalog.

    python scripts/startup.py [--rounds N] [--corpus FILE]

All are run in turn, so that whatever else the machine does costs each the same; medians are compared. The catalog is
made of as many servers as the corpus of real servers has, each with as many tools as its real one. A server that is
started leaves a file, and then the measurement has failed. Exit code 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from toolway.catalog.store import Store
from toolway.config.formats import read
from toolway.sources import identity

HELP_LIMIT = 2.5  # times `import typer`
TOOLS_LIMIT = 0.5  # seconds
TOOLWAY = str(Path(sys.executable).with_name("toolway"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--corpus", type=Path, help="a JSON file with servers and their numbers of tools")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers, tools = make_catalog(folder, options.corpus)
        environ = surroundings(folder)
        imports = [sys.executable, "-c", "import typer"]
        times = in_turn([imports, [TOOLWAY, "--help"], [TOOLWAY, "tools"]], options.rounds, environ, folder)
        assert not (folder / "started").exists(), "a server was started"
    base, shown, listed = (statistics.median(wall for wall, _ in each) for each in times)
    cpu = [statistics.median(used for _, used in each) for each in times]
    about = f"{servers} servers, {tools} tools, none started (limit {TOOLS_LIMIT * 1000:.0f} ms)"
    print("                              clock   processor")
    print(f"python -c 'import typer'   {base * 1000:6.0f} ms   {cpu[0] * 1000:6.0f} ms")
    print(f"toolway --help             {shown * 1000:6.0f} ms   {cpu[1] * 1000:6.0f} ms   ", end="")
    print(f"{shown / base:.2f} × import typer (limit {HELP_LIMIT})")
    print(f"toolway tools              {listed * 1000:6.0f} ms   {cpu[2] * 1000:6.0f} ms   {about}")
    sys.exit(shown / base > HELP_LIMIT or listed > TOOLS_LIMIT)


def surroundings(folder: Path) -> dict[str, str]:
    """An environment with a home, a cache and a state of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLWAY_", "XDG_"))}
    return {
        **kept,
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TOOLWAY_CONFIG": str(folder / "mcp.json"),
    }


def in_turn(
    commands: list[list[str]], rounds: int, environ: dict[str, str], folder: Path
) -> list[list[tuple[float, float]]]:
    times: list[list[tuple[float, float]]] = [[] for _ in commands]
    for number in range(rounds + 1):
        for command, taken in zip(commands, times, strict=True):
            began, used = time.perf_counter(), _used()
            subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=True)
            if number:  # the first round only warms up
                taken.append((time.perf_counter() - began, _used() - used))
    return times


def _used() -> float:
    """Seconds of the processor that our children had: on a busy machine they are fewer than those of the clock."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


# -- the catalog ------------------------------------------------------------------------------------------------------


def make_catalog(folder: Path, corpus: Path | None) -> tuple[int, int]:
    """A file of servers and the lists of an earlier run. How many servers and tools there are."""
    numbers = _numbers(corpus)
    trap = {"command": sys.executable, "args": ["-c", f"open({str(folder / 'started')!r}, 'w')"]}
    entries = {name: {**trap, "args": [*trap["args"], name]} for name in numbers}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    store = Store(folder / "cache" / "toolway" / "catalog")
    for name, server in read(folder / "mcp.json").servers.items():
        tools = [_tool(number) for number in range(numbers[name])]
        store.save(name, identity(server), "modern", {"tools": tools, "prompts": [], "resources": [], "templates": []})
    return len(numbers), sum(numbers.values())


def _numbers(corpus: Path | None) -> dict[str, int]:
    """Names of servers and how many tools each has; without a corpus as many as the one that we know."""
    if corpus is None:
        return {f"server-{number}": 1 + (number * 7) % 33 for number in range(42)}
    found = json.loads(corpus.read_text())["servers"]
    return {f"server-{number}": int(server["tools"]) for number, server in enumerate(found)}


def _tool(number: int) -> dict[str, Any]:
    properties = {
        f"argument_{each}": {"type": "string", "description": "What is to be looked for, in plain words."}
        for each in range(5)
    }
    return {
        "name": f"find_something_{number}",
        "description": "Find something.\n\n" + "It looks everywhere and tells what it has found. " * 8,
        "inputSchema": {"type": "object", "properties": properties, "required": ["argument_0"]},
    }


if __name__ == "__main__":
    main()
