"""Calls as the people who look after a gateway see them: the last ones, one of them whole, and one made by hand."""

from __future__ import annotations

import secrets
from itertools import islice
from typing import Final
from urllib.parse import parse_qs

from toolway.errors import ConfigError, NotFound
from toolway.events import CallFinished
from toolway.gateway import shown
from toolway.gateway.call_filter import wanted
from toolway.gateway.principals import KnownKeys, Principal
from toolway.gateway.watch import Watch
from toolway.hub import Hub
from toolway.model import Call, Json

MOST: Final = 500  # in one answer
ALL: Final = 10_000  # more than is ever kept


class CallDesk:
    def __init__(self, hub: Hub, watch: Watch, keyring: KnownKeys | None) -> None:
        self._hub = hub
        self._watch = watch
        self._keyring = keyring

    def names(self) -> dict[str, str]:
        keys = self._keyring.all() if self._keyring is not None else ()
        return {key.principal().caller: key.name for key in keys}

    def newest(self, query: str) -> Json:
        """Newest first, those that the query wants."""
        fields = fields_of(query)
        fits, names = wanted(fields, self.names()), self.names()
        most = min(MOST, number_of(fields.get("limit", "100")))
        found = islice(filter(fits, self._watch.calls.newest(limit=ALL)), most)
        rows = [shown.call(fact, self._watch.masks.of(fact.server), names) for fact in found]
        return {"calls": rows, "count": self._watch.calls.count}

    def _find(self, id_: str) -> CallFinished:
        fact = self._watch.calls.find(id_)
        if fact is None:
            raise NotFound(f"there is no call {id_!r} any more", fix="see those that are remembered: toolway calls")
        return fact

    def whole(self, id_: str) -> Json:
        fact = self._find(id_)
        return shown.call_whole(fact, self._watch.masks.of(fact.server), self.names())

    async def replay(self, id_: str, body: Json, who: Principal) -> Json:
        """Make a call once more, with the same arguments. One that may change something wants to be confirmed."""
        fact = self._find(id_)
        if fact.method != "tools/call" or not isinstance(fact.params, dict):
            raise ConfigError("this call cannot be made again", evidence="its arguments are not remembered")
        if fact.effect == "unsafe" and body.get("confirm") is not True:
            raise ConfigError(
                f"{fact.server}.{fact.tool} may change something each time it is called",
                evidence="neither its settings nor its hints say that it may run again",
                fix="confirm that you mean it: toolway replay --yes",
                code="E-REPLAY",
            )
        return await self._ask(fact.server, fact.tool, fact.params.get("arguments") or {}, None, who)

    async def make(self, body: Json, who: Principal) -> Json:
        server, tool, arguments = body.get("server"), body.get("tool"), body.get("arguments", {})
        timeout = body.get("timeout")
        if not isinstance(server, str) or not isinstance(tool, str) or not isinstance(arguments, dict):
            raise ValueError("server and tool must be names, and arguments an object")
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= 900):
            raise ValueError("timeout must be seconds, at most 900")
        return await self._ask(server, tool, arguments, timeout, who)

    async def _ask(self, server: str, tool: str, arguments: Json, timeout: float | None, who: Principal) -> Json:
        name, id_ = f"{server}.{tool}", secrets.token_hex(8)
        params: Json = {"name": tool, "arguments": arguments}
        reply = await self._hub.request(Call(name, "tools/call", params, timeout=timeout, caller=who.caller, id=id_))
        return {"id": id_, "result": reply.raw, "seconds": reply.seconds, "attempts": reply.attempts}


def fields_of(query: str) -> dict[str, str]:
    """Raises `ValueError`."""
    return {key: values[-1] for key, values in parse_qs(query, max_num_fields=50).items()}


def number_of(text: str) -> int:
    """Raises `ValueError`."""
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise ValueError(f"{text[:20]!r} is no number")
    return int(text)
