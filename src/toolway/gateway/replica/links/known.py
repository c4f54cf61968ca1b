"""What the owner of a server has told everybody about it, so that the others need not ask the server themselves."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway.events import Kind
from toolway.model import Era, Json
from toolway.protocol.eras import LISTS, PREFERRED, tells_of_lists
from toolway.upstream.link import Request, RpcError

_KIND_OF: Final[dict[str, Kind]] = {method: kind for kind, (_, method, _) in LISTS.items()}


class About(msgspec.Struct, frozen=True):
    """What a server said about itself to its owner."""

    era: Era
    capabilities: Json
    server_info: Json
    instructions: str


class Knowledge(Protocol):
    def about(self, server: str) -> About | None: ...

    def listed(self, server: str, kind: Kind) -> list[Json] | None:
        """The items of a list, as they are; None where it is not known."""
        ...


def is_known(request: Request) -> bool:
    """Whether its owner tells everybody what this asks for."""
    return request.method == "server/discover" or request.method in _KIND_OF or _is_about_lists(request)


def _is_about_lists(request: Request) -> bool:
    return request.method == "subscriptions/listen" and tells_of_lists(request.params.get("notifications"))


def answer(knowledge: Knowledge, server: str, request: Request) -> Json | None:
    """The result of a request that needs nobody's answer; None for one that does. Raises `RpcError` for a subscription
    to lists: of their changes the owner tells."""
    method = request.method
    if method == "tools/call":
        return None
    if method == "server/discover":
        about = knowledge.about(server)
        return _discovered(about) if about is not None else None
    if method in _KIND_OF:
        items = knowledge.listed(server, _KIND_OF[method])
        return {LISTS[_KIND_OF[method]][2]: items, "resultType": "complete"} if items is not None else None
    if _is_about_lists(request):
        raise RpcError(METHOD_NOT_FOUND, "lists are told of by the owner")
    return None


def _discovered(about: About) -> Json:
    return {
        "resultType": "complete",
        "supportedVersions": [PREFERRED],
        "capabilities": about.capabilities,
        "instructions": about.instructions,
        "_meta": {SERVER_INFO_META_KEY: about.server_info},
    }
