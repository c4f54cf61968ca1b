"""Check real servers over HTTP+SSE, the transport of 2024-11-05, with only their URL configured.

The hub must detect the transport, and every result must equal the one over stdio.

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
from run import HubResults, difference, query_hub

from toolway import Hub, Server, Timeout

LISTEN_SECONDS = 90.0  # until a server listens, even on few cores
READY_SECONDS = 60.0


class SseOptions(NamedTuple):
    """Arguments and environment that make a server use HTTP+SSE; {port} is replaced."""

    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    path: str = "/sse"
    host: str = "127.0.0.1"


SSE_SERVERS = {
    "server-everything": SseOptions(("sse",), (("PORT", "{port}"),)),
    "mcp-server-chart": SseOptions(("--transport", "sse", "--port", "{port}")),
    "mcp-mermaid": SseOptions(("--transport", "sse", "--port", "{port}")),
    "duckduckgo-mcp-server": SseOptions(("--transport", "sse", "--port", "{port}")),
    "wikipedia-mcp": SseOptions(("--transport", "sse", "--port", "{port}")),
    "playwright-mcp": SseOptions(("--port", "{port}"), host="localhost"),  # rejects other host names
}


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to query")
        return 0
    chosen = [
        package for package in corpus.read_packages(options.servers) if package.name in (options.names or SSE_SERVERS)
    ]
    installed = [package for package in chosen if package.folder(options.installed).is_dir()]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(installed, installed=options.installed, work=Path(work))
        wrong = [name for server in servers if not _check_server(server) for name in (server.name,)]
    print(f"{len(servers) - len(wrong)}/{len(servers)} equal over HTTP+SSE and stdio")
    return 1 if wrong or not servers else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME")
    return parser.parse_args()


def _check_server(server: CorpusServer) -> bool:
    corpus.make_work(server.work)
    with _run_server(server) as url:
        results, status = asyncio.run(_query(server, url))
    corpus.make_work(server.work)
    found = difference(server, results)
    tools = len(results.responses["tools"]) if isinstance(results.responses.get("tools"), list) else 0
    call = "-" if server.tool is None else "ok" if results.called else "NO"
    print(f"{server.name:24} {tools:>3} tools  call {call:3} {found or 'equal':20} {status}", flush=True)
    return found is None and (server.tool is None or results.called)


@contextlib.contextmanager
def _run_server(server: CorpusServer) -> Iterator[str]:
    """Start the server in its own process group and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = SSE_SERVERS[server.name]
    plain = [arg for arg in server.args if arg != "stdio"]
    args = [arg.replace("{port}", port) for arg in (*plain, *options.args)]
    env = {**os.environ, **server.env, **{name: value.replace("{port}", port) for name, value in options.env}}
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
        yield _wait_listening(process, options.host, int(port)) + options.path
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_listening(process: subprocess.Popen[bytes], host: str, port: int) -> str:
    """Return the base URL when the server listens, or after the time limit."""
    deadline = time.monotonic() + LISTEN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            break
        time.sleep(0.2)
    return f"http://{host}:{port}"


async def _query(server: CorpusServer, url: str) -> tuple[HubResults, str]:
    entry = Server(url=url, timeout=Timeout(start=READY_SECONDS))
    async with Hub({server.name: entry}, catalog_storage=None) as hub:
        results = await query_hub(hub, server, time.monotonic())
        status = hub.status()[server.name]
        if results.ready and status.transport != "sse":
            results.problem, results.era = f"connected over {status.transport}", "-"
        return results, status.why


if __name__ == "__main__":
    sys.exit(main())
