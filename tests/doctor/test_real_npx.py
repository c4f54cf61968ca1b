"""The real npx, with our own registry that is slow, or does not have the package."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.doctor_lab import Lab
from tests.doctor.http_servers import Answer, Request, serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npx") is None, reason="Node.js is not installed"),
]
SLOW = 6.0  # seconds for the package
SERVER = """#!/usr/bin/env node
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const {id, method} = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: {protocolVersion: "2025-06-18", capabilities: {tools: {}}, serverInfo: {name: "acme", version: "1"}},
    "tools/list": {tools: [{name: "hello", inputSchema: {type: "object"}}]},
  };
  const said = results[method] ? {result: results[method]} : {error: {code: -32601, message: "no such method"}};
  console.log(JSON.stringify({jsonrpc: "2.0", id, ...said}));
});
"""


def package() -> bytes:
    manifest = {"name": "acme-slow", "version": "1.0.0", "bin": {"acme-slow": "index.js"}}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in (("package/package.json", json.dumps(manifest)), ("package/index.js", SERVER)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue())


@asynccontextmanager
async def registry() -> AsyncIterator[int]:
    """Has one package, and takes its time to give it."""
    tarball = package()
    ports: list[int] = []

    async def slow(answer: Answer) -> Answer:
        await asyncio.sleep(SLOW)
        return answer

    def site(request: Request) -> Any:
        if request.path == "/acme-slow":
            dist = {
                "tarball": f"http://127.0.0.1:{ports[0]}/acme-slow.tgz",
                "shasum": hashlib.sha1(tarball).hexdigest(),
            }
            version = {"name": "acme-slow", "version": "1.0.0", "bin": {"acme-slow": "index.js"}, "dist": dist}
            document = {"name": "acme-slow", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
            return Answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})
        if request.path == "/acme-slow.tgz":
            return slow(Answer(200, tarball, {"Content-Type": "application/octet-stream"}))
        return Answer(404, b'{"error": "not found"}', {"Content-Type": "application/json"})

    async with serving(site) as port:
        ports.append(port)
        yield port


def entry(lab: Lab, port: int, name: str, limit: str) -> dict[str, Any]:
    env = {"npm_config_registry": f"http://127.0.0.1:{port}", "npm_config_cache": str(lab.folder / "npm")}
    env |= {"npm_config_update_notifier": "false", "npm_config_fetch_retries": "0"}
    return {"command": shutil.which("npx"), "args": ["-y", name], "env": env, "startTimeout": limit}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


async def test_download_time_is_reported_and_next_start_is_quick(lab: Lab) -> None:
    async with registry() as port:
        lab.servers(acme=entry(lab, port, "acme-slow@1.0.0", "5s"))
        check = await lab.finds("npx took", "s to download the package; the start timeout is 5.0 s")
        assert float(check.message.split("took ")[1].split(" s")[0]) >= SLOW
        assert "the package is cached now" in check.detail
        lab.edit('"5s"', '"60s"')
        await lab.is_well()


async def test_nonexistent_package_is_named(lab: Lab) -> None:
    async with registry() as port:
        lab.servers(acme=entry(lab, port, "acme-nope", "60s"))
        check = await lab.finds("the npm package acme-nope does not exist, or is private")
        assert check.copy == "npm view acme-nope"
        lab.edit("acme-nope", "acme-slow")
        await lab.is_well()
