"""`/mcp` for clients of 2026-07-28: every request stands for itself.

Headers route, the body is the truth: where the two differ, the request is refused before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from mcp.shared.inbound import (
    NAME_BEARING_METHODS,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
)
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from toolway.gateway.answers import Answer
from toolway.gateway.discovery import Discovery
from toolway.gateway.failures import Failure
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import EVENTS, JSON, Request
from toolway.gateway.listen import Listening
from toolway.gateway.principals import Principal
from toolway.gateway.relay import Relay, Result
from toolway.gateway.view import View
from toolway.gateway.visit import Forwarded, Tell, Visit
from toolway.model import Json
from toolway.protocol.eras import LOG_LEVELS
from toolway.protocol.wire import Message

VERSION: Final = "mcp-protocol-version"
_ROUTING: Final = frozenset({VERSION, "mcp-method", "mcp-name"})
_TASKS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
_NAMING: Final = {**NAME_BEARING_METHODS, **dict.fromkeys(_TASKS, "taskId")}  # the parameter that a header repeats
MODERN_META: Final = PROTOCOL_VERSION_META_KEY
# (server, parameters, what there is to see of it where that is known) → whose call it is
TakePass = Callable[[str, Json, View | None], tuple[Principal, View, Forwarded]]


def is_modern(request: Request, message: Message) -> bool:
    """Whether a request is one of the modern era: by its header, or by what its body claims."""
    version = request.headers.get(VERSION)
    if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return True
    meta = message.body.get("_meta") if isinstance(message.body, dict) and message.method else None
    return isinstance(meta, dict) and MODERN_META in meta and message.method != "initialize"


class Modern:
    def __init__(self, relay: Relay, discovery: Discovery, listening: Listening) -> None:
        self._relay = relay
        self._discovery = discovery
        self._listening = listening
        self.take_pass: TakePass | None = None  # in a cluster: who a node speaks for; raises `Failure`

    async def handle(
        self, exchange: Exchange, message: Message, principal: Principal, view: View, endpoint: str
    ) -> None:
        if message.kind == "notification":
            exchange.reply(202)
            return
        answer = Answer(exchange, message.id)
        try:
            if message.kind != "request":
                raise Failure(INVALID_REQUEST, "a modern client sends requests, not answers", status=400)
            visit = self._visit(exchange.request, message, principal, view, endpoint, answer.tell)
            if principal.node:
                self._forward(visit, message)
            if message.method == "subscriptions/listen":
                await self._listening.serve(visit, answer, message.body)
            elif message.method == "server/discover":
                answer.result(self._discovery.discover(visit.view))
            else:
                answer.result(await self._relay.answer(visit, message.method, message.body))
        except Failure as failure:
            if principal.node:
                failure.status = 200  # a status is for those who do not read what it says, and judge by it alone
            answer.failure(failure)
        finally:
            answer.stop()

    async def brought(self, server: str, message: Message, tell: Tell) -> Result:
        """The result of a request that another node brings without HTTP. Raises `Failure`."""
        assert self.take_pass is not None
        principal, view, forwarded = self.take_pass(server, message.body, None)
        meta = message.body["_meta"]  # the pass was in it
        version, capabilities = meta.get(PROTOCOL_VERSION_META_KEY), meta.get(CLIENT_CAPABILITIES_META_KEY)
        if version not in MODERN_PROTOCOL_VERSIONS or not isinstance(capabilities, dict):
            raise Failure(INVALID_REQUEST, "a node brings requests of the modern era", {"executed": "no"})
        level = meta.get(LOG_LEVEL_META_KEY)
        visit = Visit(
            principal,
            view,
            forwarded.endpoint,
            "modern",
            capabilities,
            tell,
            log_level=level if level in LOG_LEVELS else None,
            key=forwarded.key,
            request_id=message.id,
            version=version,
            forwarded=forwarded,
        )
        if message.method == "subscriptions/listen":
            assert message.id is not None
            await self._listening.stream(visit, message.id, message.body, tell)
            return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID_META_KEY: message.id}}
        if message.method == "server/discover":
            return self._discovery.discover(view)
        return await self._relay.answer(visit, message.method, message.body)

    def _forward(self, visit: Visit, message: Message) -> None:
        """Make it the visit of whoever a node speaks for. Raises `Failure`."""
        assert self.take_pass is not None and visit.view.alone is not None
        visit.principal, visit.view, forwarded = self.take_pass(visit.view.alone, message.body, visit.view)
        visit.forwarded, visit.endpoint, visit.key = forwarded, forwarded.endpoint, forwarded.key

    def _visit(
        self, request: Request, message: Message, principal: Principal, view: View, endpoint: str, tell: Tell
    ) -> Visit:
        """Who asks, and with what. Raises `Failure` for a request that disagrees with itself."""
        said: Said | None = request.notes.checked
        if said is None:
            said = request.notes.checked = _said(request)
        meta = message.body.get("_meta")
        if not said.is_of(message.method, message.body, meta):
            _disagrees(request, message)
        capabilities, level = meta[CLIENT_CAPABILITIES_META_KEY], meta.get(LOG_LEVEL_META_KEY)
        if not isinstance(capabilities, dict):
            raise Failure(INVALID_PARAMS, "the client capabilities must be an object")
        return Visit(
            principal,
            view,
            endpoint,
            "modern",
            capabilities,
            tell,
            None,
            level if level in LOG_LEVELS else None,
            said.mirrored,
            said.key,
            False,
            message.id,
            said.version or "",
        )


class Said(msgspec.Struct, frozen=True, gc=False):
    """What the head of a request says about its body."""

    version: str | None
    method: str | None
    name: str | None
    mirrored: dict[str, str]  # arguments
    key: str | None

    def is_of(self, method: str, params: Json, meta: Any) -> bool:
        """Whether it is true of this body, and nothing is missing in the body."""
        if not isinstance(meta, dict) or CLIENT_CAPABILITIES_META_KEY not in meta or self.method != method:
            return False
        if self.version != meta.get(PROTOCOL_VERSION_META_KEY) or self.version not in MODERN_PROTOCOL_VERSIONS:
            return False
        key = _NAMING.get(method)
        return key is None or params.get(key) == self.name


def _said(request: Request) -> Said:
    """Raises `Failure` for a head that is wrong whatever the body is."""
    headers = request.headers
    _check_accept(headers)
    mirrored = {k: v for k, v in headers.items() if k.startswith("mcp-param-")}
    twice = request.repeated & (_ROUTING | mirrored.keys())
    if twice:
        raise Failure(HEADER_MISMATCH, f"the {min(twice)} header stands more than once")
    name = decode_header_value(headers.get("mcp-name"))
    return Said(headers.get(VERSION), headers.get("mcp-method"), name, mirrored, headers.get("idempotency-key"))


def _disagrees(request: Request, message: Message) -> None:
    """The SDK's rules say in what a request disagrees with itself, if it does. Raises `Failure`."""
    headers = request.headers
    found = classify_inbound_request({"method": message.method, "params": message.body}, headers=headers)
    if isinstance(found, InboundLadderRejection):
        raise Failure(found.code, found.message, found.data)
    if message.method in _TASKS and decode_header_value(headers.get("mcp-name")) != message.body.get("taskId"):
        raise Failure(HEADER_MISMATCH, "the mcp-name header does not match the request's 'taskId'")


def _check_accept(headers: Mapping[str, str]) -> None:
    accept = headers.get("accept", "")
    if "*/*" not in accept and (JSON not in accept or EVENTS not in accept):
        raise Failure(INVALID_REQUEST, f"Accept must list {JSON} and {EVENTS}", status=406)
