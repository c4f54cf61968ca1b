"""Start time of `toolway --help` next to `import typer`, and of `toolway tools`.

    python scripts/startup.py [--rounds N] [--corpus FILE]

All commands run in turn, so other load on the machine affects each equally. Medians are compared.
`toolway tools` reads a stored catalog, which has as many servers as the corpus of real servers, each with as many tools
as its real counterpart. A server that is started leaves a file, and the measurement fails. Exit code 1 if a limit is
exceeded.
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

from toolway.config.loader import load_file
from toolway.hub.source import default_catalog_storage, server_fingerprint

HELP_LIMIT = 2.5  # times `import typer`
TOOLS_LIMIT = 0.5  # seconds
TOOLWAY = str(Path(sys.executable).with_name("toolway"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--corpus", type=Path, help="JSON file with servers and their numbers of tools")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers, tools = make_catalog(folder, options.corpus)
        environ = make_environment(folder)
        imports = [sys.executable, "-c", "import typer"]
        times = run_in_turn([imports, [TOOLWAY, "--help"], [TOOLWAY, "tools"]], options.rounds, environ, folder)
        assert not (folder / "started").exists(), "a server was started"
    base, shown, listed = (statistics.median(wall for wall, _ in each) for each in times)
    cpu = [statistics.median(used for _, used in each) for each in times]
    note = f"{servers} servers, {tools} tools, none started (limit {TOOLS_LIMIT * 1000:.0f} ms)"
    print("                              clock   processor")
    print(f"python -c 'import typer'   {base * 1000:6.0f} ms   {cpu[0] * 1000:6.0f} ms")
    print(f"toolway --help             {shown * 1000:6.0f} ms   {cpu[1] * 1000:6.0f} ms   ", end="")
    print(f"{shown / base:.2f} × import typer (limit {HELP_LIMIT})")
    print(f"toolway tools              {listed * 1000:6.0f} ms   {cpu[2] * 1000:6.0f} ms   {note}")
    sys.exit(shown / base > HELP_LIMIT or listed > TOOLS_LIMIT)


def make_environment(folder: Path) -> dict[str, str]:
    """Return an environment with a separate home, cache and state folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLWAY_", "XDG_"))}
    return {
        **inherited,
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TOOLWAY_CONFIG": str(folder / "mcp.json"),
    }


def run_in_turn(
    commands: list[list[str]], rounds: int, environ: dict[str, str], folder: Path
) -> list[list[tuple[float, float]]]:
    times: list[list[tuple[float, float]]] = [[] for _ in commands]
    for number in range(rounds + 1):
        for command, taken in zip(commands, times, strict=True):
            began, used = time.perf_counter(), _children_cpu()
            subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=True)
            if number:  # the first round is warm-up
                taken.append((time.perf_counter() - began, _children_cpu() - used))
    return times


def _children_cpu() -> float:
    """Return the CPU seconds of all child processes, which do not include waiting on a busy machine."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


# -- the catalog ------------------------------------------------------------------------------------------------------


def make_catalog(folder: Path, corpus: Path | None) -> tuple[int, int]:
    """Write a config file and the stored lists of its servers; return the numbers of servers and tools."""
    tool_counts = _tool_counts(corpus)
    trap = {"command": sys.executable, "args": ["-c", f"open({str(folder / 'started')!r}, 'w')"]}
    entries = {name: {**trap, "args": [*trap["args"], name]} for name in tool_counts}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    store = default_catalog_storage(make_environment(folder))
    assert store is not None
    for name, server in load_file(folder / "mcp.json").servers.items():
        tools = [_tool(number) for number in range(tool_counts[name])]
        store.save(
            name,
            server_fingerprint(server),
            "modern",
            {"tools": tools, "prompts": [], "resources": [], "templates": []},
        )
    return len(tool_counts), sum(tool_counts.values())


def _tool_counts(corpus: Path | None) -> dict[str, int]:
    """Return the number of tools per server; without a corpus, numbers like in the known corpus."""
    if corpus is None:
        return {f"server-{number}": 1 + (number * 7) % 33 for number in range(42)}
    found = json.loads(corpus.read_text())["servers"]
    return {f"server-{number}": int(server["tools"]) for number, server in enumerate(found)}


def _tool(number: int) -> dict[str, Any]:
    properties = {
        f"argument_{each}": {"type": "string", "description": "The text to search for, in plain words."}
        for each in range(5)
    }
    return {
        "name": f"find_something_{number}",
        "description": "Find something.\n\n" + "Searches everywhere and returns what it has found. " * 8,
        "inputSchema": {"type": "object", "properties": properties, "required": ["argument_0"]},
    }


if __name__ == "__main__":
    main()
