"""Fake MCP server without a transport: turns a request into a response, or steps to one.

Most responses are available at once. A call that must wait or send a request to its client is a generator of steps
(`Wait`, `ServerRequest`). The transport performs each step, sends its result back into the generator, and closes the
generator of a cancelled call.
"""

from __future__ import annotations

import os
import threading

from toolway.testing.wire import (
    CAPABILITIES_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LEGACY_VERSIONS,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    RESOURCE_NOT_FOUND,
    SERVER_INFO_KEY,
    SUBSCRIPTION_KEY,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    RpcError,
    Unanswered,
    as_object,
    make_error_response,
    make_notification,
    make_response,
)

TYPE_CHECKING = False  # importing typing would take a third of the start

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, NoReturn, Protocol, TypeAlias

    from toolway.testing.wire import Id, Json

    Steps: TypeAlias = Generator["Wait | ServerRequest", Any, Json]

    class Toolbox(Protocol):
        """Interface of a fake server's tools: lists their definitions, and runs calls of them."""

        def definitions(self, server: FakeServer) -> list[Json]: ...

        def run(self, server: FakeServer, call: FakeCall) -> Json | Steps: ...


ERAS = ("modern", "legacy", "both", "bare")
_CACHEABLE_METHODS = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
)

#: Fields that no specification defines. Every definition has them, so a test detects a client that drops them.
UNKNOWN_FIELDS: Json = {"x-vendor": {"kept": True, "nothing": None, "deep": [None, {"nothing": None}]}}


class Stats:
    """Counters of the requests that a fake server received, for assertions in tests."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}  # JSON-RPC method -> count; over HTTP also GET and DELETE
        self.calls: dict[str, int] = {}  # tool -> count
        self.connections = 0
        self.cancelled: list[Id] = []
        self.resumes: list[str] = []  # the Last-Event-ID of each attempt to resume
        self.effects: list[tuple[str, str]] = []  # (call, nonce)

    @property
    def initialize(self) -> int:
        return self.requests.get("initialize", 0)

    @property
    def discover(self) -> int:
        return self.requests.get("server/discover", 0)

    def count_request(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1

    def to_json(self) -> Json:
        return {**vars(self), "initialize": self.initialize, "discover": self.discover}


class FakeServer:
    """State of a fake MCP server. Turns requests into responses, whatever the transport.

    Supports the legacy protocol (before 2026-07-28) and the modern one. In the era `bare` it has no handshake: it
    knows `tools/list` and `tools/call` only, answers notifications too, and its results have no `content`.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        /,
        *,
        name: str = "fake",
        era: str = "both",
        tools: int = 0,
        page: int = 0,
        ttl: int = 0,
        effects: str = "",
    ) -> None:
        if era not in ERAS:
            raise ValueError(f"unknown era {era!r}: must be one of {', '.join(ERAS)}")
        self.info: Json = {"name": name, "version": "1.0", "title": "A fake server", **UNKNOWN_FIELDS}
        self.toolbox = toolbox
        self.era = era
        self.page_size = page  # tools per page; 0: all on one
        self.ttl_ms = ttl  # milliseconds
        self.effects_path = effects  # path of the effects file
        self.extra_tools = [f"tool_{number:04}" for number in range(1, tools + 1)]
        self.malformed_tools: list[Json] = []
        self.child_pids: list[int] = []
        self.stats = Stats()
        self.peers: set[FakePeer] = set()  # legacy clients
        self.subscriptions: dict[FakeCall, Json] = {}
        self.exit: Callable[[int], NoReturn] = os._exit  # ends the server when a tool crashes it
        self._lock = threading.Lock()

    def handle(self, message: Json, peer: FakePeer, send: Callable[[Json], None]) -> Json | Steps:
        """Handle one JSON-RPC request of the client `peer`.

        Returns the response, or a generator of steps that ends with it. `send` sends messages during the call.
        Raises `Unanswered` if a real server would not respond.
        """
        call = FakeCall(message, peer, send)
        try:
            self._check_era(call)
            outcome = self._dispatch(call)
            if isinstance(outcome, dict):
                return make_response(call.id, self._adapt_result(call, outcome))
        except _REQUEST_ERRORS as error:
            return make_error_response(call.id, self._to_rpc_error(error))
        return self._run_steps(call, outcome)

    def broadcast(self, method: str, filter_key: str, times: int = 1) -> None:
        """Send the notification `method` to all legacy clients, and to modern subscriptions that ask for `filter_key`.

        `times` repeats the notification.
        """
        for peer in list(self.peers):
            for _ in range(times):
                peer.send(make_notification(method))
        for call, filters in list(self.subscriptions.items()):
            if filters.get(filter_key):
                for _ in range(times):
                    call.send(make_notification(method, {"_meta": {SUBSCRIPTION_KEY: call.id}}))

    def record_effect(self, call: FakeCall) -> int:
        """Execute the effect of a call that must not happen twice: add a line to the effects file.

        Return the number of effects of this server so far.
        """
        entry = (str(call.arguments.get("call", call.id)), str(call.arguments.get("nonce", "")))
        with self._lock:
            if self.effects_path:
                _append_durably(self.effects_path, "\t".join(entry) + "\n")
            self.stats.effects.append(entry)
            return len(self.stats.effects)

    def _check_era(self, call: FakeCall) -> None:
        """Raise `RpcError` for a request that the protocol versions of this server do not allow.

        A legacy server (before 2026-07-28) has no `server/discover`; a modern one has no `initialize`. Raises
        `Unanswered` for a legacy request before `initialize`.
        """
        if self.era == "bare":
            call.modern = False
            if call.method not in ("tools/list", "tools/call"):
                raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
            return
        if call.method == "initialize" and self.era != "modern":
            return
        if self.era == "legacy" or (not call.modern and call.peer.version is not None):
            call.modern = False
            self._check_legacy_request(call)
        else:
            self._check_modern_request(call)

    def _check_legacy_request(self, call: FakeCall) -> None:
        if call.method in ("server/discover", "subscriptions/listen"):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        if call.peer.version is None and call.method != "ping":
            raise Unanswered

    def _check_modern_request(self, call: FakeCall) -> None:
        if call.method == "initialize":
            raise self._unsupported_version(call.params.get("protocolVersion"))
        if call.method == "ping" and not call.modern and self.era == "both":
            return  # a legacy client may ping before it initializes
        for key in (VERSION_KEY, CAPABILITIES_KEY):
            if key not in call.meta:
                raise RpcError(INVALID_PARAMS, f"_meta lacks {key}")
        if call.meta[VERSION_KEY] not in MODERN_VERSIONS:
            raise self._unsupported_version(call.meta[VERSION_KEY])
        if call.method == "ping":
            raise RpcError(METHOD_NOT_FOUND, "Method not found: ping")

    def _unsupported_version(self, requested: Any) -> RpcError:
        data = {"supported": list(MODERN_VERSIONS), "requested": requested}
        return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)

    def _dispatch(self, call: FakeCall) -> Json | Steps:
        if call.method == "tools/call":
            return self.toolbox.run(self, call)
        if call.method == "subscriptions/listen":
            return self._listen(call)
        if call.method not in _HANDLER_BY_METHOD:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        return _HANDLER_BY_METHOD[call.method](self, call)

    def _run_steps(self, call: FakeCall, steps: Steps) -> Steps:
        try:
            return make_response(call.id, self._adapt_result(call, (yield from steps)))
        except _REQUEST_ERRORS as error:
            return make_error_response(call.id, self._to_rpc_error(error))

    def _to_rpc_error(self, error: Exception) -> RpcError:
        if self.era == "bare" and getattr(error, "code", 0) != METHOD_NOT_FOUND:
            return RpcError(INTERNAL_ERROR, f"Internal error: {error}")
        return error if isinstance(error, RpcError) else RpcError(INVALID_PARAMS, f"bad arguments: {error!r}")

    def _adapt_result(self, call: FakeCall, result: Json) -> Json:
        """Return a result in the form of the era: modern results have more fields, bare ones no content."""
        if self.era == "bare" and call.method == "tools/call":
            text = "".join(str(block.get("text", "")) for block in result["content"])
            if result.get("isError"):
                raise RpcError(INTERNAL_ERROR, text)
            return {"text": text, **as_object(result.get("structuredContent"))}
        if not call.modern:
            return result
        full_result = {"resultType": "complete", **result}
        if call.method in _CACHEABLE_METHODS:
            full_result.update(ttlMs=self.ttl_ms, cacheScope="private")
        full_result["_meta"] = {**as_object(result.get("_meta")), SERVER_INFO_KEY: self.info}
        return full_result

    def _listen(self, call: FakeCall) -> Steps:
        requested = as_object(call.params.get("notifications"))
        filters = {key: True for key in ("toolsListChanged",) if requested.get(key) is True}
        tag = {"_meta": {SUBSCRIPTION_KEY: call.id}}
        self.subscriptions[call] = filters
        try:
            call.send(make_notification("notifications/subscriptions/acknowledged", {"notifications": filters, **tag}))
            yield Wait(None)
        finally:
            del self.subscriptions[call]
        return tag

    def _discover(self, call: FakeCall) -> Json:
        return {
            "supportedVersions": list(MODERN_VERSIONS),
            "capabilities": server_capabilities(),
            "instructions": "Misbehaves on request.",
        }

    def _initialize(self, call: FakeCall) -> Json:
        call.peer.version = negotiate_legacy_version(call.params.get("protocolVersion"))
        call.peer.capabilities = as_object(call.params.get("capabilities"))
        self.peers.add(call.peer)
        return {
            "protocolVersion": call.peer.version,
            "capabilities": server_capabilities(),
            "serverInfo": self.info,
            "instructions": "Misbehaves on request.",
        }

    def _list_tools(self, call: FakeCall) -> Json:
        definitions = self.toolbox.definitions(self)
        if not self.page_size:
            return {"tools": definitions}
        cursor = call.params.get("cursor", "0")
        if not (isinstance(cursor, str) and cursor.isdecimal()):
            raise RpcError(INVALID_PARAMS, f"unknown cursor {cursor!r}")
        end = int(cursor) + self.page_size
        page: Json = {"tools": definitions[int(cursor) : end]}
        if end < len(definitions):
            page["nextCursor"] = str(end)
        return page


# Arguments are not validated. Wrong arguments raise one of these exceptions.
_REQUEST_ERRORS = (RpcError, AttributeError, KeyError, TypeError, ValueError)


def _append_durably(path: str, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


# -- one request and its client ----------------------------------------------------------------------------------------


class Wait:
    """Step of a call: wait for `seconds`. If None, wait until the client cancels the call."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds


class ServerRequest:
    """Step of a call: send a request to the client and receive its whole response.

    Only the legacy protocol (before 2026-07-28) allows it.
    """

    def __init__(self, method: str, params: Json) -> None:
        self.method = method
        self.params = params


class FakePeer:
    """One client of a fake server: the process behind a pipe, or an HTTP session.

    Transports override `send`.
    """

    def __init__(self) -> None:
        self.version: str | None = None  # set by `initialize`
        self.capabilities: Json = {}

    def send(self, message: Json) -> None:
        """Send the client a message that belongs to no call. The default drops the message."""


class FakeCall:
    """One JSON-RPC request to a fake server, with its client and the function that sends messages to the client."""

    def __init__(self, message: Json, peer: FakePeer, send: Callable[[Json], None]) -> None:
        self.id: Id = message["id"]
        self.method: str = message["method"]
        self.params = as_object(message.get("params"))
        self.meta = as_object(self.params.get("_meta"))
        self.arguments = as_object(self.params.get("arguments"))
        self.peer = peer
        self.send = send  # sends messages on this call's own stream
        self.modern = VERSION_KEY in self.meta

    @property
    def capabilities(self) -> Json:
        """Return the capabilities that the client declared, in this request or in `initialize`."""
        return as_object(self.meta.get(CAPABILITIES_KEY)) if self.modern else self.peer.capabilities

    def text_result(self, text: str, /, **data: Any) -> Json:
        """Return a tool result with `text` and the structured content `data`.

        The call's argument `nonce`, if any, is added to the structured content.
        """
        if "nonce" in self.arguments:
            data["nonce"] = self.arguments["nonce"]
        return {"content": [{"type": "text", "text": text}], "structuredContent": data, "isError": False}


# -- prompts, resources, resource templates and completions ------------------------------------------------------------

PROMPTS: list[Json] = [
    {
        "name": "greet",
        "title": "Greet someone",
        "description": "Greeting for a name, in a tone.",
        "arguments": [
            {"name": "name", "description": "Name to greet", "required": True},
            {"name": "tone", "description": "warm, cold or formal", "required": False},
        ],
        **UNKNOWN_FIELDS,
    }
]
RESOURCES: list[Json] = [
    {"uri": "fake://text", "name": "text", "mimeType": "text/plain", "size": 12, **UNKNOWN_FIELDS},
    {"uri": "fake://bytes", "name": "bytes", "mimeType": "application/octet-stream", **UNKNOWN_FIELDS},
]
RESOURCE_TEMPLATES: list[Json] = [
    {"uriTemplate": "fake://item/{id}", "name": "item", "description": "Item with the given id.", **UNKNOWN_FIELDS}
]
_RESOURCE_CONTENTS: dict[str, Json] = {
    "fake://text": {"uri": "fake://text", "mimeType": "text/plain", "text": "hello, world"},
    "fake://bytes": {"uri": "fake://bytes", "mimeType": "application/octet-stream", "blob": "AAEC/w=="},
}
_COMPLETIONS = {"name": ("ada", "alan", "grace"), "tone": ("cold", "formal", "warm"), "id": ("1", "10", "2")}


def get_prompt(call: FakeCall) -> Json:
    arguments = as_object(call.params.get("arguments"))
    if call.params.get("name") != "greet":
        raise RpcError(INVALID_PARAMS, f"unknown prompt {call.params.get('name')!r}")
    if "name" not in arguments:
        raise RpcError(INVALID_PARAMS, "prompt 'greet' lacks the argument 'name'")
    text = f"Greet {arguments['name']} in a {arguments.get('tone', 'warm')} tone."
    message = {"role": "user", "content": {"type": "text", "text": text, **UNKNOWN_FIELDS}}
    return {"description": "A greeting", "messages": [message]}


def read_resource(call: FakeCall) -> Json:
    uri = call.params.get("uri")
    if isinstance(uri, str) and uri.startswith("fake://item/"):
        item = uri.removeprefix("fake://item/")
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"item {item}", **UNKNOWN_FIELDS}]}
    if uri not in _RESOURCE_CONTENTS:
        # The modern era does not have this error code any more.
        code = INVALID_PARAMS if call.modern else RESOURCE_NOT_FOUND
        raise RpcError(code, "unknown resource", {"uri": uri})
    return {"contents": [{**_RESOURCE_CONTENTS[uri], **UNKNOWN_FIELDS}]}


def complete_argument(call: FakeCall) -> Json:
    argument = as_object(call.params.get("argument"))
    candidates = _COMPLETIONS.get(argument.get("name", ""), ())
    values = [value for value in candidates if value.startswith(argument.get("value", ""))]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def server_capabilities() -> Json:
    return {
        "tools": {"listChanged": True},
        "prompts": {},
        "resources": {},
        "completions": {},
        "experimental": {"x-vendor": {"nothing": None}},
    }


def negotiate_legacy_version(requested_version: object) -> str:
    """Return the legacy protocol version to use with a client that requests `requested_version`."""
    if isinstance(requested_version, str) and requested_version in LEGACY_VERSIONS:
        return requested_version
    return LEGACY_VERSIONS[-1]


_HANDLER_BY_METHOD: dict[str, Callable[[FakeServer, FakeCall], Json]] = {
    "initialize": FakeServer._initialize,
    "server/discover": FakeServer._discover,
    "ping": lambda server, call: {},
    "tools/list": FakeServer._list_tools,
    "prompts/list": lambda server, call: {"prompts": PROMPTS},
    "prompts/get": lambda server, call: get_prompt(call),
    "resources/list": lambda server, call: {"resources": RESOURCES},
    "resources/templates/list": lambda server, call: {"resourceTemplates": RESOURCE_TEMPLATES},
    "resources/read": lambda server, call: read_resource(call),
    "completion/complete": lambda server, call: complete_argument(call),
}
