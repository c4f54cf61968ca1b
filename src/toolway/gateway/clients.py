"""Who answers for a hub behind a gateway: nobody but the clients themselves.

A server of the handshake era is told at the start what may be asked. That is everything that clients can be asked at
all; a client that cannot is refused when it comes to it.
"""

from __future__ import annotations

from typing import Final

from toolway.model import Json

_EVERYTHING: Final[Json] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"context": {}, "tools": {}},
    "roots": {},
}


class OnlyClients:
    """The `Asks` of the hub: outside of a client's call there is nobody to ask."""

    @property
    def capabilities(self) -> Json:
        return _EVERYTHING

    async def answer(self, server: str, method: str, params: Json) -> Json:
        raise LookupError(method)
