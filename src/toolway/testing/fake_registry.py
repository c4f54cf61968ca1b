"""Fake MCP registry on loopback, with API v0.1: lists with pages and search, versions, and faults.

with FakeRegistry() as registry:
    registry.add(npm_server("io.github.acme/weather", "1.2.0"))
    …  # "toolway": {"registries": [registry.url]}

python -m toolway.testing.fake_registry --port 8702
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

_META_KEY: Final = "io.modelcontextprotocol.registry/official"
_DEFAULT_PAGE_SIZE: Final = 30


def npm_server(name: str, version: str, **more: Any) -> dict[str, Any]:
    """Return a `server.json` with an npm package that needs a key, and a remote. `more` replaces its fields."""
    short = name.rpartition("/")[2]
    key = {"name": "API_KEY", "isRequired": True, "isSecret": True, "description": "API key"}
    package = {
        "registryType": "npm",
        "identifier": f"@acme/{short}",
        "version": version,
        "transport": {"type": "stdio"},
        "environmentVariables": [key],
    }
    remote = {"type": "streamable-http", "url": f"https://{short}.example.com/mcp"}
    document = {"name": name, "description": f"About {short}", "version": version}
    return {**document, "packages": [package], "remotes": [remote], **more}


class FakeRegistry:
    """Registry on a free port, or on `port`. `requests` has the path of each request."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[str] = []
        self.status = 200  # of all answers
        self.headers: dict[str, str] = {}  # of all answers
        self.body: bytes | None = None  # of all answers; None: as the API says
        self._records: dict[str, dict[str, dict[str, Any]]] = {}  # name → version → record
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = registry._answer(self.path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **registry.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore a client that closed its connection before the end of an answer."""

        self._server = Server(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeRegistry:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, document: dict[str, Any], status: str = "active", message: str = "") -> None:
        """Publish a version, which becomes the latest one of its server."""
        facts = {"status": status, "statusMessage": message, "publishedAt": "2026-10-01T00:00:00Z"}
        versions = self._records.setdefault(str(document["name"]), {})
        versions.pop(str(document["version"]), None)
        versions[str(document["version"])] = {"server": document, "_meta": {_META_KEY: facts}}

    def remove(self, name: str, version: str) -> None:
        """Make a version disappear."""
        del self._records[name][version]

    def _answer(self, path: str) -> tuple[int, bytes]:
        self.requests.append(path)
        if self.status != 200 or self.body is not None:
            return self.status, self.body or b'{"error": "fault"}'
        parts = urlsplit(path)
        words = [unquote(word) for word in parts.path.split("/")[1:]]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if words == ["v0.1", "servers"]:
            found: dict[str, Any] | None = self._list(query)
        elif words[:2] == ["v0.1", "servers"] and words[3:4] == ["versions"]:
            found = self._find(words[2], words[4] if len(words) == 5 else "")
        else:
            found = None
        return (404, b'{"error": "Server not found"}') if found is None else (200, json.dumps(found).encode())

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        text, only_latest = query.get("search", "").lower(), query.get("version") == "latest"
        found = [
            record
            for name, versions in sorted(self._records.items())
            if text in name.lower()
            for record in (self._with_latest(versions)[-1:] if only_latest else self._with_latest(versions))
        ]
        start, size = int(query.get("cursor") or 0), int(query.get("limit") or _DEFAULT_PAGE_SIZE)
        shown = found[start : start + size]
        more = {"nextCursor": str(start + size)} if start + size < len(found) else {}
        return {"servers": shown, "metadata": {"count": len(shown), **more}}

    def _find(self, name: str, version: str) -> dict[str, Any] | None:
        records = self._with_latest(self._records.get(name, {}))
        if not records:
            return None
        if not version:
            return {"servers": records, "metadata": {"count": len(records)}}
        return next((each for each in reversed(records) if version in ("latest", each["server"]["version"])), None)

    def _with_latest(self, versions: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the records of a server, oldest first, each with whether it is the latest one."""
        last = len(versions) - 1
        return [
            {**record, "_meta": {_META_KEY: {**record["_meta"][_META_KEY], "isLatest": number == last}}}
            for number, record in enumerate(versions.values())
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    with FakeRegistry(parser.parse_args().port) as registry:
        registry.add(npm_server("io.github.acme/weather", "1.2.0"))
        registry.add(npm_server("com.acme/notes", "0.9.0"), "deprecated", "use io.github.acme/notes")
        sys.stdout.write(f"{registry.url}\n")
        sys.stdout.flush()
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
