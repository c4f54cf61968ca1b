"""The real npx and uvx, and a registry that records what they ask for.

What is rejected never starts the runner. What is accepted makes it fetch the pinned package from the configured
registry, and nothing else; all words after the package are arguments of the package.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.attacks.test_admission import INDEX
from tests.doctor.http_servers import Answer, Request, serving
from tests.gateway.edge_lab import Edge, edge
from toolway.config.settings import parse_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.attack("B3"), pytest.mark.attack("H4")]

ROOT: Final = Path(__file__).resolve().parents[2]
UVX: Final = shutil.which("uvx") or shutil.which("uvx", path=str(ROOT / ".uv/bin"))  # of scripts/install
NODE_SERVER: Final = """#!/usr/bin/env node
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const {id, method} = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: {protocolVersion: "2025-06-18", capabilities: {tools: {}}, serverInfo: {name: "acme", version: "1"}},
    "tools/list": {tools: [{name: "words", inputSchema: {type: "object"}}]},
    "tools/call": {content: [{type: "text", text: JSON.stringify(process.argv.slice(2))}]},
  };
  const said = results[method] ? {result: results[method]} : {error: {code: -32601, message: "no such method"}};
  console.log(JSON.stringify({jsonrpc: "2.0", id, ...said}));
});
"""
PYTHON_SERVER: Final = """import json, sys
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
            "tools/call": {"content": [{"type": "text", "text": json.dumps(sys.argv[1:])}]},
        }
        said = {"error": {"code": -32601, "message": "no such method"}}
        if message["method"] in results:
            said = {"result": results[message["method"]]}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
"""


def npm_package(version: str) -> bytes:
    manifest = {"name": "acme-tiny", "version": version, "bin": {"acme-tiny": "index.js"}}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in (("package/package.json", json.dumps(manifest)), ("package/index.js", NODE_SERVER)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)  # the same bytes for each request


def wheel(version: str) -> bytes:
    info = f"acme_tiny-{version}.dist-info"
    files = {
        "acme_tiny.py": PYTHON_SERVER,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: acme-tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nacme-tiny = acme_tiny:main\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text.encode())}\n")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": "".join(rows) + f"{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return packed.getvalue()


@dataclass
class Registry:
    """npm registry and PyPI index with two versions of one package, and a record of every request."""

    port: int = 0
    paths: list[str] = field(default_factory=list)
    versions: tuple[str, ...] = ("1.0.0", "2.0.0")

    def answer(self, request: Request) -> Answer:
        self.paths.append(request.path)
        npm = {version: npm_package(version) for version in self.versions}
        if request.path == "/acme-tiny":
            listed = {version: self._npm_version(version, data) for version, data in npm.items()}
            document = {"name": "acme-tiny", "dist-tags": {"latest": "2.0.0"}, "versions": listed}
            return Answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})
        if request.path == "/simple/acme-tiny/":
            names = [f"acme_tiny-{version}-py3-none-any.whl" for version in self.versions]
            page = "<!DOCTYPE html>" + "".join(f'<a href="/wheels/{name}">{name}</a>' for name in names)
            return Answer(200, page.encode(), {"Content-Type": "text/html"})
        for version in self.versions:
            if request.path == f"/acme-tiny-{version}.tgz":
                return Answer(200, npm[version], {"Content-Type": "application/octet-stream"})
            if request.path == f"/wheels/acme_tiny-{version}-py3-none-any.whl":
                return Answer(200, wheel(version), {"Content-Type": "application/octet-stream"})
        return Answer(404, b"{}", {"Content-Type": "application/json"})

    def _npm_version(self, version: str, data: bytes) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self.port}/acme-tiny-{version}.tgz"
        dist = {"tarball": address, "shasum": hashlib.sha1(data).hexdigest()}
        return {"name": "acme-tiny", "version": version, "bin": {"acme-tiny": "index.js"}, "dist": dist}


@asynccontextmanager
async def registry() -> AsyncIterator[Registry]:
    found = Registry()
    async with serving(found.answer) as port:
        found.port = port
        yield found


@dataclass
class Lab:
    """A gateway whose machine is configured for one registry, and a registry of the attacker."""

    gateway: Edge
    registry: Registry
    attacker: Registry

    async def put(self, *words: str, **more: Any) -> int:
        entry = {"command": words[0], "args": list(words[1:]), "startTimeout": "60s", **more}
        return (await self.gateway.ask("PUT", "/admin/servers/x", json.dumps(entry).encode())).status

    async def words(self) -> list[str]:
        """The arguments that the package was started with."""
        await self.gateway.hub.servers.wait_ready("x", timeout=60)
        await self.gateway.hub.lists.waits.wait_known(["x"], "tools", 60)
        answer = await self.gateway.call("x__words")
        assert "result" in answer, answer
        found: list[str] = json.loads(answer["result"]["content"][0]["text"])
        return found


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    async with registry() as configured, registry() as attacker:
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, str(tmp_path / name))
            (tmp_path / name).mkdir(exist_ok=True)
        address = f"http://127.0.0.1:{configured.port}"
        npmrc = f"registry={address}\nupdate-notifier=false\nfetch-retries=0\naudit=false\nfund=false\n"
        (tmp_path / "HOME/.npmrc").write_text(npmrc)
        settings = f'python-downloads = "never"\n[[index]]\nurl = "{address}/simple"\ndefault = true\n'
        for folder in (tmp_path / "HOME/.config/uv", tmp_path / "XDG_CONFIG_HOME/uv"):
            folder.mkdir(parents=True)
            (folder / "uv.toml").write_text(settings)
        if UVX is not None:
            monkeypatch.setenv("PATH", f"{Path(UVX).parent}:{Path(sys.executable).parent}", prepend=":")
        policy = parse_gateway({"gateway": {"allowedCommands": ["npx", "uvx"]}}, {}).admission
        async with edge(tmp_path, servers={}, admission=lambda: policy) as gateway:
            yield Lab(gateway, configured, attacker)


@pytest.mark.skipif(shutil.which("npx") is None, reason="npx is not installed")
async def test_npx_fetches_and_runs_only_the_listed_package(lab: Lab, tmp_path: Path) -> None:
    evil = f"http://127.0.0.1:{lab.attacker.port}/"
    marker = tmp_path / "marker"
    for words in (
        ("npx", "-y", f"--registry={evil}", "acme-tiny@1.0.0"),
        ("npx", "--prefix", "acme-tiny@1.0.0", "-c", f"touch {marker}"),
        ("npx", "-y", "acme-tiny"),
        ("npx", "-y", "acme-tiny@2"),
        ("npx", "-y", f"{evil}acme-tiny-1.0.0.tgz"),
    ):
        assert await lab.put(*words) == 422, words
    assert await lab.put("npx", "-y", "acme-tiny@1.0.0", env={"npm_config_registry": evil}) == 422
    assert (lab.registry.paths, lab.attacker.paths, marker.exists()) == ([], [], False)

    after = [f"--registry={evil}", "-c", f"touch {marker}", "--", "--package=evil@1.0.0", "$(id)"]
    assert await lab.put("npx", "-q", "--yes", "acme-tiny@1.0.0", *after) == 200
    assert await lab.words() == after
    assert set(lab.registry.paths) == {"/acme-tiny", "/acme-tiny-1.0.0.tgz"}
    assert (lab.attacker.paths, marker.exists()) == ([], False)


@pytest.mark.skipif(UVX is None, reason="uvx is not installed (the package uv of PyPI, or make setup)")
async def test_uvx_fetches_and_runs_only_the_listed_package(lab: Lab, tmp_path: Path) -> None:
    evil = f"http://127.0.0.1:{lab.attacker.port}/simple"
    marker = tmp_path / "marker"
    for words in (
        ("uvx", f"{INDEX}={evil}", "acme-tiny==1.0.0"),
        ("uvx", "--python-preference", "acme-tiny==1.0.0", "--from", "acme-tiny", "acme-tiny"),
        ("uvx", "acme-tiny"),
        ("uvx", "acme-tiny==1.*"),
        ("uvx", "python@3.12.1", "-c", f"open({str(marker)!r}, 'w')"),
    ):
        assert await lab.put(*words) == 422, words
    assert await lab.put("uvx", "acme-tiny==1.0.0", env={"UV_INDEX_URL": evil}) == 422
    assert (lab.registry.paths, lab.attacker.paths, marker.exists()) == ([], [], False)

    after = [f"{INDEX}={evil}", "--from", "evil", "--", "--with=evil"]
    for number, package in enumerate(("acme-tiny==1.0.0", "acme-tiny@1.0.0")):
        assert await lab.put("uvx", "-q", package, *after) == 200
        assert await lab.words() == after
        assert number or set(lab.registry.paths) == {"/simple/acme-tiny/", "/wheels/acme_tiny-1.0.0-py3-none-any.whl"}
    assert (lab.attacker.paths, marker.exists()) == ([], False)
    assert not any("2.0.0" in path for path in lab.registry.paths)
