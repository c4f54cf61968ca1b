"""A server on its own host: a network namespace, reached by a cable that can be pulled."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

_numbers = itertools.count(1)
_SERVE = """
import asyncio, sys
from toolway.testing import FakeHttp

async def main(host, era, effects):
    kind = {"transport": "sse"} if era == "sse" else {"era": era}
    async with FakeHttp(host=host, effects=effects, **kind) as fake:
        print(fake.port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class FarHost:
    def __init__(self, name: str, host: str, path: str) -> None:
        self._path = path
        self.port = 0
        self._name = name
        self._host = host

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}{self._path}"

    def pull_the_cable(self) -> None:
        """From now on nothing arrives, without any notice."""
        _ip("netns", "exec", self._name, "ip", "link", "set", "far", "down")

    def plug_it_in(self) -> None:
        _ip("netns", "exec", self._name, "ip", "link", "set", "far", "up")


@asynccontextmanager
async def far_away(era: str, effects: str = "") -> AsyncIterator[FarHost]:
    """Skips the test where namespaces cannot be made."""
    number = next(_numbers)
    name, near = f"toolway-{os.getpid()}-{number}", f"tw{os.getpid() % 100000}n{number}"
    net = f"198.18.{os.getpid() % 250}.{4 * number % 252}"  # set aside for tests of networks
    here, there = (str(ip_address(net) + offset) for offset in (1, 2))
    _make(name, near, here, there)
    command = ["netns", "exec", name, sys.executable, "-c", _SERVE, there, era, effects]
    server = await asyncio.create_subprocess_exec("ip", *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        host = FarHost(name, there, "/sse" if era == "sse" else "/mcp")
        host.port = int(await asyncio.wait_for(server.stdout.readline(), 10))
        yield host
    finally:
        if server.returncode is None:
            server.kill()
        await server.communicate()
        _ip("link", "delete", near)
        _ip("netns", "delete", name)


def _make(name: str, near: str, here: str, there: str) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here")
    if subprocess.run(
        ["ip", "link", "add", near, "type", "veth", "peer", "name", "far", "netns", name], capture_output=True
    ).returncode:
        _ip("netns", "delete", name)
        pytest.skip("network namespaces cannot be joined here")
    _ip("addr", "add", f"{here}/30", "dev", near)
    _ip("link", "set", near, "up")
    _ip("netns", "exec", name, "ip", "addr", "add", f"{there}/30", "dev", "far")
    _ip("netns", "exec", name, "ip", "link", "set", "far", "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
