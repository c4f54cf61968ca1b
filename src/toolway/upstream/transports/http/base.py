"""What every request to a server begins with: our own headers, then those of its entry."""

from __future__ import annotations

from typing import Final, NamedTuple

from toolway._version import __version__
from toolway.config.spec import Server
from toolway.upstream.transports.http1.client import HeaderBlock, HttpLimits, header_block

SESSION: Final = "Mcp-Session-Id"
VERSION: Final = "MCP-Protocol-Version"
LAST_EVENT: Final = "Last-Event-ID"
# These travel with each request as it needs them; a configured one would contradict.
_OURS: Final = frozenset(
    name.lower()
    for name in ("Accept", "Accept-Encoding", "Content-Type", "Mcp-Method", "Mcp-Name", LAST_EVENT, SESSION, VERSION)
)


class Bases(NamedTuple):
    post: HeaderBlock
    get: HeaderBlock


def bases(server: Server) -> Bases:
    """The header lines of every POST and of every GET. Raises `ValueError`."""
    configured = {name.lower(): (name, value) for name, value in server.headers.items() if name.lower() not in _OURS}
    common = {"Accept-Encoding": "gzip, deflate" if server.limits.compression else "identity"}
    if "user-agent" not in configured:
        common["User-Agent"] = f"toolway/{__version__}"
    common.update(configured.values())
    post = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    return Bases(header_block({**post, **common}), header_block({"Accept": "text/event-stream", **common}))


def limits(server: Server) -> HttpLimits:
    timeout = server.timeout
    return HttpLimits(connect=timeout.connect, write=timeout.write, compression=server.limits.compression)
