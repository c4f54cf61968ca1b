"""Lock the corpus with `toolway trust lock`, then start and call every server in a network namespace without a route.

    python interop/locked.py --into DIR [--only-callable] [--servers FILE] [--min-age 0]

The trees are installed below DIR. Servers that an earlier run has locked there are not locked again. The second part
runs in a namespace made by `unshare`, and fails if it has a route.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import corpus
from corpus import Package

from toolway import Hub, Timeout, ToolwayError
from toolway.config.loader import load_file
from toolway.parts.lock.lock_file import read_lock
from toolway.parts.lock.start import tree_platform
from toolway.parts.lock.store import TreeStore
from toolway.parts.lock.tree import hash_tree

READY_SECONDS = 120.0
CALL_SECONDS = 60.0
SETUP_TOOLS = Path(__file__).resolve().parent.parent / ".uv" / "bin"  # of scripts/install


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to lock")
        return 0
    packages = corpus.read_packages(options.servers, only_callable=options.only_callable)
    into: Path = options.into.resolve() / "locked"
    if options.start:
        return _start(packages, into)
    into.mkdir(parents=True, exist_ok=True)
    (into / "home").mkdir(exist_ok=True)
    environment = _environment(into)
    entries = {package.name: _entry(package, into / "work" / package.name) for package in packages}
    (into / "mcp.json").write_text(json.dumps({"mcpServers": entries}, indent=2))
    config = ["-c", str(into / "mcp.json")]
    kept = read_lock(str(into / "toolway.lock")) or {}  # of a run that was ended
    wanted = [package.name for package in packages if package.name not in kept]
    command = [sys.executable, "-m", "toolway.cli", "trust", "lock", *wanted, "--min-age", options.min_age, *config]
    started = time.monotonic()
    if wanted:
        subprocess.run(command, env=environment, check=False)
    locked = read_lock(str(into / "toolway.lock")) or {}
    print(f"{len(locked)}/{len(packages)} locked in {time.monotonic() - started:.0f} s", flush=True)
    missing = [package.name for package in packages if package.name not in locked]
    if missing:
        print(f"not locked: {', '.join(missing)}")
    again = [sys.executable, __file__, *sys.argv[1:], "--start"]
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--net", *again], env=environment, check=False)
    return 1 if missing or done.returncode else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only-callable", action="store_true", help="only the servers with a call")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("--min-age", default="3d", metavar="TIME", help="least age of the packages; 0 accepts any")
    parser.add_argument("--start", action="store_true", help="only start what is locked; fails if there is a route")
    parser.add_argument("--locked", action="store_true", help=argparse.SUPPRESS)  # chooses this script in the Makefile
    return parser.parse_args()


def _environment(into: Path) -> dict[str, str]:
    """Return an environment with a home folder below DIR, and with uv if the setup installed it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "TOOLWAY_"))}
    return {**own, "HOME": str(into / "home"), "PATH": f"{SETUP_TOOLS}:{own.get('PATH', os.defpath)}"}


def _entry(package: Package, work: Path) -> dict[str, Any]:
    """Return the entry that a user would write, with npx or uvx."""
    if package.registry == "npm":
        flags = [f"--package={each}" for each in (package.package, *package.also_install)]
        command, words = "npx", ["-y", *flags, package.bin]
    else:
        more = [word for each in package.also_install for word in ("--with", each)]
        command, words = "uvx", ["--from", package.package, *more, package.bin]
    args = [*words, *corpus.fill(list(package.args), work)]
    return {"command": command, "args": args, "env": corpus.environment(package, work), "cwd": str(work)}


def _start(packages: list[Package], into: Path) -> int:
    """Start and call the locked servers, and print how many of them work."""
    if _has_route():
        print("this network namespace has a route", file=sys.stderr)
        return 2
    for package in packages:
        corpus.make_work(into / "work" / package.name)
    files, size, seconds = _hash_all(into)
    print(f"{files} files, {size / 1e6:.0f} MB of all trees hashed in {seconds:.2f} s")
    results = asyncio.run(_call_all(packages, into))
    for name, result in results.items():
        print(f"{name:32} {result}")
    ready = sum(result.startswith("ready") for result in results.values())
    called = sum(result.endswith("called") for result in results.values())
    callable_count = sum(package.tool is not None for package in packages)
    print(f"{ready}/{len(packages)} ready without a route, {called}/{callable_count} calls succeeded")
    return 0 if (ready, called) == (len(packages), callable_count) else 1


def _has_route() -> bool:
    """Return True if a packet could leave this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return False
    return True


def _hash_all(into: Path) -> tuple[int, int, float]:
    """Return files and bytes of all locked trees, and the time that a comparison of all takes."""
    store, files, size, seconds = TreeStore.open(os.environ), 0, 0, 0.0
    for entry in (read_lock(str(into / "toolway.lock")) or {}).values():
        platform = tree_platform(entry)
        if platform is not None:
            started = time.monotonic()
            found = hash_tree(os.fspath(store.folder(entry.trees[platform], platform)))
            seconds += time.monotonic() - started
            files, size = files + found.files, size + found.size
    return files, size, seconds


async def _call_all(packages: list[Package], into: Path) -> dict[str, str]:
    config = load_file(into / "mcp.json")
    async with Hub(config, timeout=Timeout(start=READY_SECONDS), catalog_storage=None, token_store=None) as hub:
        found = await asyncio.gather(*(_call(hub, package, into) for package in packages))
    return {package.name: result for package, result in zip(packages, found, strict=True)}


async def _call(hub: Hub, package: Package, into: Path) -> str:
    try:
        await hub.wait_ready(package.name, timeout=READY_SECONDS)
        tools = len(await hub.list_tools(server=package.name, wait=READY_SECONDS))
        if package.tool is None:
            return f"ready, {tools} tools"
        arguments = corpus.fill(package.arguments or {}, into / "work" / package.name)
        name = f"{package.name}.{package.tool}"
        result = await hub.call_tool(name, arguments, timeout=CALL_SECONDS, raise_on_error=False)
    except ToolwayError as error:
        return f"failed: {error}"[:300]
    return f"ready, {tools} tools, {'failed call' if result.is_error else 'called'}"


if __name__ == "__main__":
    sys.exit(main())
