"""Check that one gateway endpoint lists and calls the tools of the whole corpus.

The client has a few lines and shares no code with Toolway or the SDK.

    python interop/one_endpoint.py --installed DIR [--only-callable] [--servers FILE]
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import corpus
from corpus import CorpusServer
from gateway import Gateway, run_gateway

VERSION = "2026-07-28"
READY_SECONDS = 180.0
CALL_SECONDS = 60.0
POLL_INTERVAL_S = 1.0  # seconds


def main() -> int:
    options = _options()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to serve")
        return 0
    packages = corpus.read_packages(options.servers, only_callable=options.only_callable)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(packages, installed=options.installed, work=Path(work))
        for server in servers:
            corpus.make_work(server.work)
        started = time.monotonic()
        with run_gateway({"mcpServers": {server.name: entry_of(server) for server in servers}}, Path(work)) as gateway:
            print(f"serving after {time.monotonic() - started:.1f} s", flush=True)
            return _check_corpus(Client(gateway), gateway, servers, started)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only-callable", action="store_true", help="only the servers with a call")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    return parser.parse_args()


def entry_of(server: CorpusServer) -> dict[str, Any]:
    # All start at the same time on few cores, so each may use the total time.
    return {
        "command": server.command,
        "args": list(server.args),
        "env": server.env,
        "cwd": str(server.work),
        "startTimeout": READY_SECONDS * 1000,
    }


class Client:
    """Minimal client of the modern era: one connection per request."""

    def __init__(self, gateway: Gateway) -> None:
        self._address = urlsplit(gateway.url)
        self._token = gateway.token

    def request(self, method: str, name: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a request and return its result. Raises `ValueError` for an error response."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "plain", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
        }
        if name is not None:
            headers["Mcp-Name"] = name
            params["name"] = name
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})
        connection = http.client.HTTPConnection(self._address.netloc, timeout=CALL_SECONDS)
        try:
            connection.request("POST", self._address.path, body.encode(), headers)
            response = _last_message(connection.getresponse())
        finally:
            connection.close()
        if "error" in response:
            raise ValueError(f"{response['error']['code']}: {response['error']['message']}")
        result: dict[str, Any] = response["result"]
        return result

    def tools(self) -> list[str]:
        names: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.request("tools/list", **cursor)
            names += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                return names
            cursor = {"cursor": page["nextCursor"]}


def _last_message(response: http.client.HTTPResponse) -> dict[str, Any]:
    text = response.read().decode()
    if response.getheader("Content-Type", "").startswith("text/event-stream"):
        text = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")][-1]
    message: dict[str, Any] = json.loads(text)
    return message


def _check_corpus(client: Client, gateway: Gateway, servers: list[CorpusServer], started: float) -> int:
    expected = {server.name: server.tools for server in servers}
    names = client.tools()
    while _incomplete(names, expected) and time.monotonic() - started < READY_SECONDS:
        time.sleep(POLL_INTERVAL_S)
        names = client.tools()
    print(f"{len(names)} tools listed after {time.monotonic() - started:.1f} s, {sum(expected.values())} expected")
    missing = _incomplete(names, expected)
    for name, count in expected.items():
        # Some servers have more tools for clients that handle server requests, as clients of a gateway may.
        if _listed(names, name) != count:
            print(f"  {name}: {_listed(names, name)} tools, {count} expected")
    callable_ones = [server for server in servers if server.tool]
    called = sum(_call(client, server) for server in callable_ones)
    print(f"{called}/{len(callable_ones)} calls, gateway RSS {gateway.rss_mb:.0f} MB")
    return 0 if called == len(callable_ones) and not missing else 1


def _incomplete(names: list[str], expected: dict[str, int]) -> list[str]:
    return [name for name, count in expected.items() if _listed(names, name) < count]


def _listed(names: list[str], server: str) -> int:
    return sum(name.startswith(f"{server}__") for name in names)


def _call(client: Client, server: CorpusServer) -> bool:
    try:
        result = client.request("tools/call", f"{server.name}__{server.tool}", arguments=server.arguments or {})
    except (OSError, ValueError) as error:
        print(f"  {server.name}.{server.tool}: {error}")
        return False
    if result.get("isError"):
        print(f"  {server.name}.{server.tool}: {json.dumps(result)[:300]}")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
