"""What the settings and the catalog say about a call: the questions that the stages ask."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from toolway.catalog.index import Catalog, Tool
from toolway.config.spec import Retry, Server, ToolRule
from toolway.model import Call, Effect, Reply, ToolRef
from toolway.resilience import effects

_NO_RULE: Final = ToolRule()
_REMOVED: Final = Server(command="")
_ANSWERS_TO_A_SERVER: Final = ("inputResponses", "requestState")  # a leg of a longer exchange is nobody else's


class Rules:
    def __init__(self, servers: Mapping[str, Server], catalog: Catalog) -> None:
        self._servers = servers
        self._catalog = catalog

    def effect(self, call: Call) -> Effect:
        """May the call be run again?"""
        if call.method != "tools/call":
            return effects.of_method(call.method)
        server, rule = self._server(call.server), self._rule(call)
        words = (call.repeatable, rule.repeatable, server.repeatable)
        tool = self._tool(call)
        return effects.of_tool(
            setting=rule.effect,
            annotations=tool.annotations if tool is not None else None,
            repeatable=next((word for word in words if word is not None), False),
            key_honoured=call.key is not None and server.key_meta is not None,
        )

    def timeout(self, call: Call) -> float:
        """Seconds for the call as a whole."""
        if call.timeout is not None:
            return call.timeout
        rule = self._rule(call).timeout
        return rule if rule is not None else self._server(call.server).timeout.total

    def queue(self, server: str) -> float:
        """Seconds a call may wait for a slot."""
        return self._server(server).timeout.queue

    def key_meta(self, server: str) -> str | None:
        """The `_meta` key under which the server itself honours idempotency keys."""
        return self._server(server).key_meta

    def supervised(self, server: str) -> bool:
        """Whether the server is a process of ours, or an object in it."""
        return self._server(server).transport != "http"

    def retry(self, call: Call) -> Retry:
        policy = self._server(call.server).retry
        return policy if call.retries is None else replace(policy, attempts=call.retries + 1)

    def definition(self, call: Call) -> str:
        """A hash of the tool's definition as it is known now; empty where it is not."""
        tool = self._tool(call)
        if tool is None:
            return ""
        return hashlib.sha256(msgspec.json.encode(tool.raw, order="deterministic")).hexdigest()

    def shared_identity(self, call: Call) -> Hashable | None:
        """What makes two reads the same read; None for a call that must be made by itself."""
        if call.effect is not Effect.READ or call.on_progress is not None or call.key is not None:
            return None
        if call.method == "tools/call" and not self._surely_read(call):
            return None
        if any(name in call.params for name in _ANSWERS_TO_A_SERVER):
            return None
        arguments = msgspec.json.encode(call.params, order="deterministic")
        return (call.caller, call.server, call.method, call.name, self.definition(call), arguments)

    def cache_identity(self, call: Call) -> Hashable | None:
        """The same, for calls whose answer may be kept."""
        if call.method == "tools/call" and not self._rule(call).cache:
            return None
        if call.method not in ("tools/call", "resources/read"):
            return None
        return self.shared_identity(call)

    def cache_seconds(self, call: Call, reply: Reply) -> float:
        """For how long an answer may be given again: as the operator says, or as the server says of a resource."""
        if call.method == "tools/call":
            return self._rule(call).cache
        ttl = reply.raw.get("ttlMs")
        return ttl / 1000 if isinstance(ttl, int | float) and ttl > 0 else 0.0

    def _server(self, name: str) -> Server:
        """The server's settings; the defaults for one that was removed while a call waited, which then hears so."""
        return self._servers.get(name, _REMOVED)

    def _surely_read(self, call: Call) -> bool:
        """A server's own hint is not enough; the operator's word, or trust in the server, is."""
        return self._rule(call).effect is Effect.READ or self._server(call.server).trusted

    def _rule(self, call: Call) -> ToolRule:
        return self._server(call.server).tools.get(call.name, _NO_RULE)

    def _tool(self, call: Call) -> Tool | None:
        return self._catalog.tool(ToolRef(call.server, call.name)) if call.method == "tools/call" else None
