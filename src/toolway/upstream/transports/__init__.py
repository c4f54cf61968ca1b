"""The ways to a server, one per file, all behind the seam of `upstream/link.py`."""

from __future__ import annotations

from collections.abc import Mapping

from toolway.config.spec import Server
from toolway.model import Authorizer
from toolway.upstream.link import Link
from toolway.upstream.process.spawn import Spawner


def link_for(
    server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None = None
) -> Link:
    """A new link of the kind that the server's entry asks for. Each kind is loaded only where it is used."""
    if server.command is not None:
        from toolway.upstream.transports.stdio.link import StdioLink

        return StdioLink(server, spawner, environ)
    if server.transport == "sse":
        from toolway.upstream.transports.sse.link import SseLink

        return SseLink(server, authorizer=authorizer)
    if server.openapi is not None:
        from toolway.upstream.transports.openapi.link import OpenApiLink

        return OpenApiLink(server, spawner, environ, authorizer)
    if server.url is not None:
        from toolway.upstream.transports.http.link import HttpLink

        return HttpLink(server, authorizer=authorizer)
    from toolway.upstream.transports.memory import MemoryLink

    return MemoryLink(server)
