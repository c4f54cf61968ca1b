"""What the settings and the catalog say about a call: the questions that the stages ask."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

import msgspec
from msgspec.structs import replace as with_facts

from toolway.catalog.index import Catalog, Tool
from toolway.config.spec import Retry, Server, ToolRule
from toolway.model import Call, Effect, Reply, ToolRef
from toolway.resilience import effects

MOST: Final = 10_000  # tools whose terms are remembered
_NO_RULE: Final = ToolRule()
_REMOVED: Final = Server(command="")
_ANSWERS_TO_A_SERVER: Final = ("inputResponses", "requestState")  # a leg of a longer exchange is nobody else's


class Terms:
    """What is settled about a tool before it is called: found out once, and again when its definition or the settings
    of its server change."""

    def __init__(self, server: Server, name: str, tool: Tool | None) -> None:
        self.server = server
        self.tool = tool
        self.rule = rule = server.tools.get(name, _NO_RULE)
        self.timeout = rule.timeout if rule.timeout is not None else server.timeout.total
        # A server's own hint is not enough; the operator's word, or trust in the server, is.
        self.surely_read = rule.effect is Effect.READ or server.trusted
        self.plain_effect = self.effect_of()

    def effect_of(self, *, repeatable: bool | None = None, keyed: bool = False) -> Effect:
        """What a call does of which its caller says this."""
        words = (repeatable, self.rule.repeatable, self.server.repeatable)
        return effects.of_tool(
            setting=self.rule.effect,
            annotations=self.tool.annotations if self.tool is not None else None,
            repeatable=next((word for word in words if word is not None), False),
            key_honoured=keyed and self.server.key_meta is not None,
        )

    @cached_property
    def definition(self) -> str:
        if self.tool is None:
            return ""
        return hashlib.sha256(msgspec.json.encode(self.tool.raw, order="deterministic")).hexdigest()


def _effect(call: Call, terms: Terms) -> Effect:
    if call.method != "tools/call":
        return effects.of_method(call.method)
    if call.repeatable is None and call.key is None:
        return terms.plain_effect
    return terms.effect_of(repeatable=call.repeatable, keyed=call.key is not None)


class Rules:
    def __init__(self, servers: Mapping[str, Server], catalog: Catalog) -> None:
        self._servers = servers
        self._catalog = catalog
        self._known: dict[tuple[str, str], Terms] = {}  # of listed tools

    def settle(self, call: Call, tool: Tool | None) -> Call:
        """The call with all that is known about it, so that no later question has to look it up."""
        terms = self._terms_of(call, tool)
        return with_facts(call, effect=_effect(call, terms), terms=terms)

    def effect(self, call: Call) -> Effect:
        """May the call be run again?"""
        return _effect(call, self._terms(call))

    def timeout(self, call: Call) -> float:
        """Seconds for the call as a whole."""
        return call.timeout if call.timeout is not None else self._terms(call).timeout

    def queue(self, server: str) -> float:
        """Seconds a call may wait for a slot."""
        return self._server(server).timeout.queue

    def key_meta(self, server: str) -> str | None:
        """The `_meta` key under which the server itself honours idempotency keys."""
        return self._server(server).key_meta

    def supervised(self, server: str) -> bool:
        """Whether the server is a process of ours, or an object in it."""
        return self._server(server).transport in ("stdio", "memory")

    def retry(self, call: Call) -> Retry:
        policy = self._terms(call).server.retry
        return policy if call.retries is None else replace(policy, attempts=call.retries + 1)

    def definition(self, call: Call) -> str:
        """A hash of the tool's definition as it is known now; empty where it is not."""
        return self._terms(call).definition

    def shared_identity(self, call: Call) -> Hashable | None:
        """What makes two reads the same read; None for a call that must be made by itself, as one must whose caller
        can be asked something."""
        return None if call.asks is not None or call.capabilities else self._identity(call)

    def _identity(self, call: Call) -> Hashable | None:
        if call.effect is not Effect.READ or call.on_progress is not None or call.key is not None:
            return None
        if call.method == "tools/call" and not self._terms(call).surely_read:
            return None
        if any(name in call.params for name in _ANSWERS_TO_A_SERVER):
            return None
        arguments = msgspec.json.encode([call.params, call.capabilities], order="deterministic")
        return (call.caller, call.server, call.method, call.name, self.definition(call), arguments)

    def cache_identity(self, call: Call) -> Hashable | None:
        """The same, for calls whose answer may be kept."""
        if call.method == "tools/call" and not self._terms(call).rule.cache:
            return None
        if call.method not in ("tools/call", "resources/read"):
            return None
        return self._identity(call)

    def cache_seconds(self, call: Call, reply: Reply) -> float:
        """For how long an answer may be given again: as the operator says, or as the server says of a resource. One
        that is a question, or for which somebody was asked, is nobody else's."""
        if call.attempt.was_asked or reply.raw.get("resultType", "complete") != "complete":
            return 0.0
        if call.method == "tools/call":
            return self._terms(call).rule.cache
        ttl = reply.raw.get("ttlMs")
        return ttl / 1000 if isinstance(ttl, int | float) and ttl > 0 else 0.0

    def _server(self, name: str) -> Server:
        """The server's settings; the defaults for one that was removed while a call waited, which then hears so."""
        return self._servers.get(name, _REMOVED)

    def _terms(self, call: Call) -> Terms:
        known: Terms | None = call.terms
        if known is not None:
            return known
        tool = self._catalog.tool(ToolRef(call.server, call.name)) if call.method == "tools/call" else None
        return self._terms_of(call, tool)

    def _terms_of(self, call: Call, tool: Tool | None) -> Terms:
        server = self._server(call.server)
        if tool is None:
            return Terms(server, call.name, None)
        key = (call.server, call.name)
        known = self._known.get(key)
        if known is None or known.tool is not tool or known.server is not server:
            if len(self._known) >= MOST:
                self._known.clear()  # they are soon found again
            known = self._known[key] = Terms(server, call.name, tool)
        return known
