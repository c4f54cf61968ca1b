"""Every kind of server entry has a transport, and its module is imported only when it is needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

from toolway.config.schema import CoreTransport, Server
from toolway.part_api import registry
from toolway.parts.openapi.settings import OpenApi
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.transports import TRANSPORTS, create_transport

pytestmark = pytest.mark.anyio

OWN_MODULE = "toolway.parts.openapi.transport"
ENTRIES: dict[str, dict[str, Any]] = {
    "stdio": {"command": "server"},
    "http": {"url": "http://127.0.0.1:9/mcp"},
    "sse": {"url": "http://127.0.0.1:9/sse", "sse": True},
    "websocket": {"url": "ws://127.0.0.1:9/mcp"},
    "openapi": {"transport_settings": OpenApi(url="http://127.0.0.1:9/openapi.json")},
    "memory": {"instance": object()},
}


def test_registry_has_every_kind_of_entry() -> None:
    assert set(TRANSPORTS) == set(get_args(CoreTransport))
    assert {*TRANSPORTS, *registry.transport_names()} == set(ENTRIES)


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.promise("A4")
async def test_each_entry_gets_its_transport(kind: str) -> None:
    server = Server(**ENTRIES[kind])
    assert server.transport == kind
    transport = create_transport(server, Spawner(), {})
    assert type(transport).__module__ == TRANSPORTS.get(kind, OWN_MODULE)
    await transport.close()


def test_registry_imports_no_transport() -> None:
    names = [*TRANSPORTS.values(), OWN_MODULE]
    script = f"import sys, toolway.upstream.transports\nassert not [name for name in {names!r} if name in sys.modules]"
    subprocess.run([sys.executable, "-c", script], check=True)
