"""Real servers that also speak HTTP+SSE, the transport of 2024-11-05, each by its address alone: that it is one is
found out, and every answer equals what the server says over stdio.

    python interop/sse.py --installed DIR [--servers FILE] [NAME ...]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import corpus
from corpus import CorpusServer
from run import Heard, difference, hear

from toolway import Hub, Server, Timeout

LISTEN_SECONDS = 90.0  # until a server listens, on however few cores
READY_SECONDS = 60.0


class Old(NamedTuple):
    """How a server is told to speak HTTP+SSE; {port} is filled in."""

    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    path: str = "/sse"
    host: str = "127.0.0.1"


OLD = {
    "server-everything": Old(("sse",), (("PORT", "{port}"),)),
    "mcp-server-chart": Old(("--transport", "sse", "--port", "{port}")),
    "mcp-mermaid": Old(("--transport", "sse", "--port", "{port}")),
    "duckduckgo-mcp-server": Old(("--transport", "sse", "--port", "{port}")),
    "wikipedia-mcp": Old(("--transport", "sse", "--port", "{port}")),
    "playwright-mcp": Old(("--port", "{port}"), host="localhost"),  # it answers to no other name
}


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} is not here, so there is no corpus to ask")
        return 0
    chosen = [package for package in corpus.read_packages(options.servers) if package.name in (options.names or OLD)]
    there = [package for package in chosen if package.folder(options.installed).is_dir()]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(there, installed=options.installed, work=Path(work))
        wrong = [name for server in servers if not _compared(server) for name in (server.name,)]
    print(f"{len(servers) - len(wrong)}/{len(servers)} equal over HTTP+SSE and stdio")
    return 1 if wrong or not servers else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME")
    return parser.parse_args()


def _compared(server: CorpusServer) -> bool:
    corpus.make_work(server.work)
    with _listening(server) as url:
        heard, status = asyncio.run(_ask(server, url))
    corpus.make_work(server.work)
    found = difference(server, heard)
    tools = len(heard.answer["tools"]) if isinstance(heard.answer.get("tools"), list) else 0
    call = "-" if server.tool is None else "ok" if heard.called else "NO"
    print(f"{server.name:24} {tools:>3} tools  call {call:3} {found or 'equal':20} {status}", flush=True)
    return found is None and (server.tool is None or heard.called)


@contextlib.contextmanager
def _listening(server: CorpusServer) -> Iterator[str]:
    """The address of the server, in a process group of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    old = OLD[server.name]
    plain = [arg for arg in server.args if arg != "stdio"]
    args = [arg.replace("{port}", port) for arg in (*plain, *old.args)]
    env = {**os.environ, **server.env, **{name: value.replace("{port}", port) for name, value in old.env}}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [server.command, *args],
        env=env,
        cwd=server.work,
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        yield _address(process, old.host, int(port)) + old.path
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(process: subprocess.Popen[bytes], host: str, port: int) -> str:
    """Returns when the server listens, or after a while in which it does not."""
    deadline = time.monotonic() + LISTEN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            break
        time.sleep(0.2)
    return f"http://{host}:{port}"


async def _ask(server: CorpusServer, url: str) -> tuple[Heard, str]:
    entry = Server(url=url, timeout=Timeout(start=READY_SECONDS))
    async with Hub({server.name: entry}, catalog_dir=None) as hub:
        heard = await hear(hub, server, time.monotonic())
        status = hub.status()[server.name]
        if heard.ready and status.transport != "sse":
            heard.trouble, heard.era = f"it was reached by {status.transport}", "-"
        return heard, status.why


if __name__ == "__main__":
    sys.exit(main())
