"""What an endpoint says about itself: capabilities and instructions, merged from its servers."""

from __future__ import annotations

from typing import Final

from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from toolway.gateway.relay import SERVER_INFO
from toolway.gateway.view import View
from toolway.hub import Hub
from toolway.model import Json

DISCOVER_TTL: Final = 60_000  # milliseconds
MAX_INSTRUCTIONS: Final = 16 * 1024  # characters of all servers together
_TOLD: Final = {"listChanged": True}
#: What an endpoint of many servers offers: a server that comes later may need it.
_ALL: Final[Json] = {
    "tools": _TOLD,
    "prompts": _TOLD,
    "resources": {"subscribe": True, **_TOLD},
    "completions": {},
    "logging": {},
}


#: Tasks as 2025-11-25 tried them out: those of the extension have taken their place.
_NOT_PASSED_ON: Final = frozenset({"tasks"})


class Discovery:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def discover(self, view: View) -> Json:
        """The result of `server/discover`."""
        result: Json = {
            "resultType": "complete",
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            "capabilities": self._capabilities(view),
            "ttlMs": DISCOVER_TTL,
            "cacheScope": "private",
            "_meta": {SERVER_INFO_META_KEY: self._info(view)},
        }
        return self._with_instructions(result, view)

    def initialize(self, view: View, wanted: object) -> Json:
        """The result of `initialize` for a client that wants this version."""
        version = wanted if wanted in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        result: Json = {
            "protocolVersion": version,
            "capabilities": {k: v for k, v in self._capabilities(view).items() if k != "extensions"},
            "serverInfo": self._info(view),
        }
        return self._with_instructions(result, view)

    def _capabilities(self, view: View) -> Json:
        agreed = self._hub.agreement(view.alone) if view.alone is not None else None
        if agreed is None:
            extensions = self._extensions(view)
            return {**_ALL, "extensions": extensions} if extensions else _ALL
        # What the server can notice we pass on; that a list changed we notice ourselves.
        return {
            k: {**v, **_ALL.get(k, {})} if isinstance(v, dict) else v
            for k, v in agreed.capabilities.items()
            if k not in _NOT_PASSED_ON
        }

    def _extensions(self, view: View) -> Json:
        """What any of the servers can do beyond the protocol; of two that say it differently, the first is believed."""
        found: Json = {}
        for server in view.servers():
            agreed = self._hub.agreement(server)
            extensions = agreed.capabilities.get("extensions") if agreed is not None else None
            if isinstance(extensions, dict):
                found = {**extensions, **found}
        return found

    def _info(self, view: View) -> Json:
        agreed = self._hub.agreement(view.alone) if view.alone is not None else None
        return agreed.server_info if agreed is not None and "name" in agreed.server_info else SERVER_INFO

    def _with_instructions(self, result: Json, view: View) -> Json:
        parts = []
        for server in view.servers():
            agreed = self._hub.agreement(server)
            if agreed is not None and agreed.instructions:
                parts.append(agreed.instructions if view.alone else f"## {server}\n{agreed.instructions}")
        text = "\n\n".join(parts)[:MAX_INSTRUCTIONS]
        return {**result, "instructions": text} if text else result
