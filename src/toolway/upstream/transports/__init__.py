"""Registry of transports: one kind per module, all with the `Transport` protocol.

To add a transport, write a module with a function `create(server, services)` and add one line to `TRANSPORTS`. The kind
of an entry is decided in one place: `Server.transport` in `config/schema.py`. Any other kind is a `ServerTransport` of
a part, or of another distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from toolway.config.schema import Server
from toolway.part_api import registry
from toolway.types import Authorizer
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.transport import CreateTransport, InProcessServer, Transport, TransportServices

#: Module by kind, imported on first use: a hub of programs loads no HTTP code, and so on.
TRANSPORTS: Final[Mapping[str, str]] = {
    "stdio": "toolway.upstream.transports.stdio",
    "http": "toolway.upstream.transports.streamable_http",
    "sse": "toolway.upstream.transports.legacy_sse",
    "websocket": "toolway.upstream.transports.websocket",
    "memory": "toolway.upstream.transports.memory",
}


def create_transport(
    server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None = None
) -> Transport:
    """Return a new, unopened transport of the kind that the server's entry asks for."""
    if isinstance(server.instance, InProcessServer):
        return server.instance.create_transport()
    services = TransportServices(spawner, environ, authorizer)
    if server.transport in TRANSPORTS:
        create: CreateTransport = import_module(TRANSPORTS[server.transport]).create
        return create(server, services)
    found = registry.transport(server.transport)
    assert found is not None, "Server has checked it"
    return found.create(server, services)
