"""Whether a URL that refused a handshake may be of HTTP+SSE, the transport before Streamable HTTP. Pure.

By the rule of the protocol: a POST that is refused with a status such as 400, 404 or 405 is followed by a GET, which
brings the address for messages where the server is that old. Refusals that say something about who asks or when, and
failures, say nothing about what a server speaks.
"""

from __future__ import annotations

from typing import Final

from toolway.config.spec import Server
from toolway.upstream.link import Fault, RpcError

FIND_TIME: Final = 5.0  # seconds for the stream to begin; one that stays silent is of the newer transport
OLD: Final = "E-HTTP-OLD"  # a POST was answered as only the older transport begins
OLD_AND_WRONG: Final = "E-SSE-ENDPOINT"  # its stream begins as it should, with an address that must not be used
# HTTP refusals that say something about who asks or when, not about what the server speaks.
NOT_ABOUT_THE_ERA: Final = frozenset({401, 403, 407, 408, 421, 425, 429})
_NO_SUCH_METHOD: Final = 501


def may_be_older(server: Server, exc: Fault | RpcError) -> bool:
    """Whether the server behind a URL is to be asked for a stream, after what it made of a handshake."""
    if server.transport != "http" or server.era == "modern":
        return False
    if isinstance(exc, Fault) and exc.code in (OLD, "E-HTTP-CONTENT"):
        return True  # whatever it answered with, it was no MCP message
    status = exc.status
    if status is None or status in NOT_ABOUT_THE_ERA:
        return False
    return 400 <= status < 500 or status == _NO_SUCH_METHOD
