"""npm registry and PyPI index on loopback, with small packages that are servers, and a record of every request."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

OLD: Final = "2025-01-01T00:00:00.000Z"
NODE_SERVER: Final = """#!/usr/bin/env node
const helper = require("acme-helper");
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const {id, method} = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: {protocolVersion: "2025-06-18", capabilities: {tools: {}}, serverInfo: {name: "acme", version: "1"}},
    "tools/list": {tools: [{name: "words", description: "VERSION", inputSchema: {type: "object"}}]},
    "tools/call": {content: [{type: "text", text: JSON.stringify([helper, ...process.argv.slice(2)])}]},
  };
  const said = results[method] ? {result: results[method]} : {error: {code: -32601, message: "no such method"}};
  console.log(JSON.stringify({jsonrpc: "2.0", id, ...said}));
});
"""
PYTHON_SERVER: Final = """import json, sys
from acme_helper import NAME
def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "acme", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "words", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": json.dumps([NAME, *sys.argv[1:]])}]},
        }
        said = {"error": {"code": -32601, "message": "no such method"}}
        if message["method"] in results:
            said = {"result": results[message["method"]]}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
"""


def npm_package(name: str, version: str) -> tuple[dict[str, Any], bytes]:
    """Return the manifest of a package and its archive. An install script would write a file."""
    manifest: dict[str, Any] = {"name": name, "version": version, "scripts": {"postinstall": "touch /tmp/never-run"}}
    text = f"module.exports = 'help {version}';"
    if name == "acme-tiny":
        manifest |= {"bin": {"acme-tiny": "index.js"}, "dependencies": {"acme-helper": "^1.0.0"}}
        text = NODE_SERVER.replace("VERSION", version)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file, content in (("package/package.json", json.dumps(manifest)), ("package/index.js", text)):
            entry = tarfile.TarInfo(file)
            entry.size, entry.mode = len(content.encode()), 0o644
            archive.addfile(entry, io.BytesIO(content.encode()))
    return {**manifest, "hasInstallScript": True}, gzip.compress(packed.getvalue(), mtime=0)


def wheel(name: str, version: str) -> bytes:
    """Return a wheel: `acme-tiny` with a program, `acme-helper` without."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    is_server = name == "acme-tiny"
    needs = "Requires-Dist: acme-helper>=1\n" if is_server else ""
    files = {
        f"{module}.py": PYTHON_SERVER if is_server else f"NAME = 'help {version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if is_server:
        files[f"{info}/entry_points.txt"] = "[console_scripts]\nacme-tiny = acme_tiny:main\n"
    rows = []
    for file, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{file},sha256={digest},{len(text.encode())}\n")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": "".join(rows) + f"{info}/RECORD,,\n"}.items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return packed.getvalue()


@dataclass
class Registry:
    """Packages by name: their versions and the time of publication of each; None publishes no time."""

    port: int = 0
    paths: list[str] = field(default_factory=list)
    versions: dict[str, dict[str, str | None]] = field(
        default_factory=lambda: {"acme-tiny": {"1.0.0": OLD}, "acme-helper": {"1.0.0": OLD}}
    )
    without_wheel: set[str] = field(default_factory=set)  # packages that have only source code
    tampered: set[str] = field(default_factory=set)  # file names whose content is not the published one

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return variables that make npm, pip and uv use this registry, and nothing else."""
        simple = f"{self.url}/simple/"
        return {
            "npm_config_registry": self.url,
            "npm_config_fetch_retries": "0",
            "PIP_INDEX_URL": simple,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_CACHE_DIR": "1",
            "UV_DEFAULT_INDEX": simple,
            "UV_NO_CACHE": "1",
        }

    def answer(self, path: str) -> tuple[int, str, bytes]:
        self.paths.append(path)
        name = path.strip("/").removeprefix("simple/")
        if name in self.versions and path.startswith("/simple/"):
            return 200, "application/vnd.pypi.simple.v1+json", json.dumps(self._simple(name)).encode()
        if name in self.versions:
            return 200, "application/json", json.dumps(self._document(name)).encode()
        for each, versions in self.versions.items():
            for version in versions:
                for file, data in (
                    (f"{each}-{version}.tgz", npm_package(each, version)[1]),
                    (f"{each.replace('-', '_')}-{version}-py3-none-any.whl", wheel(each, version)),
                ):
                    if path == f"/files/{file}":
                        return 200, "application/octet-stream", data + b"\0" * (file in self.tampered)
        return 404, "application/json", b"{}"

    def _document(self, name: str) -> dict[str, Any]:
        listed = {}
        for version in self.versions[name]:
            manifest, data = npm_package(name, version)
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
            dist = {"tarball": f"{self.url}/files/{name}-{version}.tgz", "integrity": integrity}
            listed[version] = {**manifest, "dist": dist}
        times = {version: time for version, time in self.versions[name].items() if time is not None}
        newest = list(self.versions[name])[-1]
        return {
            "name": name,
            "dist-tags": {"latest": newest},
            "versions": listed,
            **({"time": {"created": OLD, "modified": OLD, **times}} if times else {}),
        }

    def _simple(self, name: str) -> dict[str, Any]:
        files = []
        for version, time in self.versions[name].items():
            ending = ".tar.gz" if name in self.without_wheel else "-py3-none-any.whl"
            file = f"{name.replace('-', '_')}-{version}{ending}"
            digest = hashlib.sha256(wheel(name, version)).hexdigest()
            entry = {"filename": file, "url": f"{self.url}/files/{file}", "hashes": {"sha256": digest}}
            files.append({**entry, **({"upload-time": time} if time is not None else {})})
        return {"meta": {"api-version": "1.1"}, "name": name, "files": files}


@contextmanager
def serving() -> Iterator[Registry]:
    """Serve a registry on loopback, in a thread."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, kind, body = registry.answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
