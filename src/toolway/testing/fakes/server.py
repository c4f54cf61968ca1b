"""One fake server without a transport: a request goes in, a response comes out, or steps that lead to one."""

from __future__ import annotations

import os
import threading

from toolway.testing.fakes import catalog
from toolway.testing.fakes.call import Call, Wait
from toolway.testing.fakes.wire import (
    CAPABILITIES_KEY,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    RpcError,
    Unanswered,
    failure,
    notification,
    object_of,
    response,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, Protocol

    from toolway.testing.fakes.call import Peer, Steps
    from toolway.testing.fakes.wire import Id, Json

    class Toolbox(Protocol):
        """The tools of a server: how they are listed, and how a call of one is run."""

        def definitions(self, server: Server) -> list[Json]: ...

        def run(self, server: Server, call: Call) -> Json | Steps: ...


ERAS = ("modern", "handshake", "both")
_CACHEABLE = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}
)


class Stats:
    """What the server saw, to assert on."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}  # by JSON-RPC method; over HTTP also GET and DELETE
        self.calls: dict[str, int] = {}  # by tool
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

    def count(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1

    def as_json(self) -> Json:
        return {**vars(self), "initialize": self.initialize, "discover": self.discover}


class Server:
    """The state of one fake server and its answers."""

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
            raise ValueError(f"no era {era!r}: one of {', '.join(ERAS)}")
        self.info: Json = {"name": name, "version": "1.0", "title": "A fake server", **catalog.UNKNOWN}
        self.toolbox = toolbox
        self.era = era
        self.page = page  # tools per page; 0: all on one
        self.ttl = ttl  # milliseconds
        self.effects = effects  # a file
        self.extra_tools = [f"tool_{number:04}" for number in range(1, tools + 1)]
        self.malformed_tools: list[Json] = []
        self.children: list[int] = []
        self.stats = Stats()
        self.peers: set[Peer] = set()  # those of the handshake era
        self.listens: dict[Call, Json] = {}
        self.exit: Callable[[int], NoReturn] = os._exit  # how it crashes
        self._lock = threading.Lock()

    def handle(self, message: Json, peer: Peer, send: Callable[[Json], None]) -> Json | Steps:
        """Answer one request. Raises `Unanswered` where a real server would stay silent."""
        call = Call(message, peer, send)
        try:
            self._admit(call)
            outcome = self._answer(call)
        except _MISTAKES as error:
            return failure(call.id, _refusal(error))
        if isinstance(outcome, dict):
            return response(call.id, self._dress(call, outcome))
        return self._finish(call, outcome)

    def broadcast(self, method: str, wanted: str, times: int = 1) -> None:
        """Tell every client of the handshake era, and every listen that asked for `wanted`."""
        for peer in list(self.peers):
            for _ in range(times):
                peer.send(notification(method))
        for call, honoured in list(self.listens.items()):
            if honoured.get(wanted):
                for _ in range(times):
                    call.send(notification(method, {"_meta": {SUBSCRIPTION_KEY: call.id}}))

    def effect(self, call: Call) -> int:
        """Do the one thing that must not happen twice, durably. Returns how often it has happened."""
        entry = (str(call.arguments.get("call", call.id)), str(call.arguments.get("nonce", "")))
        with self._lock:
            if self.effects:
                _append(self.effects, "\t".join(entry) + "\n")
            self.stats.effects.append(entry)
            return len(self.stats.effects)

    def _admit(self, call: Call) -> None:
        """Refuse what the eras of this server do not allow. See the era rules of 2026-07-28."""
        if call.method == "initialize" and self.era != "modern":
            return
        if self.era == "handshake" or (not call.modern and call.peer.version is not None):
            call.modern = False
            self._admit_handshake(call)
        else:
            self._admit_modern(call)

    def _admit_handshake(self, call: Call) -> None:
        if call.method in ("server/discover", "subscriptions/listen"):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        if call.peer.version is None and call.method != "ping":
            raise Unanswered

    def _admit_modern(self, call: Call) -> None:
        if call.method == "initialize":
            raise self._unsupported(call.params.get("protocolVersion"))
        if call.method == "ping" and not call.modern and self.era == "both":
            return  # the handshake era may ping before it initializes
        for key in (VERSION_KEY, CAPABILITIES_KEY):
            if key not in call.meta:
                raise RpcError(INVALID_PARAMS, f"_meta lacks {key}")
        if call.meta[VERSION_KEY] not in MODERN_VERSIONS:
            raise self._unsupported(call.meta[VERSION_KEY])
        if call.method == "ping":
            raise RpcError(METHOD_NOT_FOUND, "Method not found: ping")

    def _unsupported(self, requested: Any) -> RpcError:
        data = {"supported": list(MODERN_VERSIONS), "requested": requested}
        return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)

    def _answer(self, call: Call) -> Json | Steps:
        if call.method == "tools/call":
            return self.toolbox.run(self, call)
        if call.method == "subscriptions/listen":
            return self._listen(call)
        if call.method not in _METHODS:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        return _METHODS[call.method](self, call)

    def _finish(self, call: Call, steps: Steps) -> Steps:
        try:
            result = yield from steps
        except _MISTAKES as error:
            return failure(call.id, _refusal(error))
        return response(call.id, self._dress(call, result))

    def _dress(self, call: Call, result: Json) -> Json:
        """Add what every modern result carries."""
        if not call.modern:
            return result
        dressed = {"resultType": "complete", **result}
        if call.method in _CACHEABLE:
            dressed.update(ttlMs=self.ttl, cacheScope="private")
        dressed["_meta"] = {**object_of(result.get("_meta")), SERVER_KEY: self.info}
        return dressed

    def _listen(self, call: Call) -> Steps:
        asked = object_of(call.params.get("notifications"))
        honoured = {key: True for key in ("toolsListChanged",) if asked.get(key) is True}
        tag = {"_meta": {SUBSCRIPTION_KEY: call.id}}
        self.listens[call] = honoured
        try:
            call.send(notification("notifications/subscriptions/acknowledged", {"notifications": honoured, **tag}))
            yield Wait(None)
        finally:
            del self.listens[call]
        return tag

    def _discover(self, call: Call) -> Json:
        return {
            "supportedVersions": list(MODERN_VERSIONS),
            "capabilities": catalog.capabilities(),
            "instructions": "Misbehaves on request.",
        }

    def _initialize(self, call: Call) -> Json:
        call.peer.version = catalog.negotiate(call.params.get("protocolVersion"))
        call.peer.capabilities = object_of(call.params.get("capabilities"))
        self.peers.add(call.peer)
        return {
            "protocolVersion": call.peer.version,
            "capabilities": catalog.capabilities(),
            "serverInfo": self.info,
            "instructions": "Misbehaves on request.",
        }

    def _list_tools(self, call: Call) -> Json:
        definitions = self.toolbox.definitions(self)
        if not self.page:
            return {"tools": definitions}
        cursor = call.params.get("cursor", "0")
        if not (isinstance(cursor, str) and cursor.isdecimal()):
            raise RpcError(INVALID_PARAMS, f"no page {cursor!r}")
        end = int(cursor) + self.page
        page: Json = {"tools": definitions[int(cursor) : end]}
        if end < len(definitions):
            page["nextCursor"] = str(end)
        return page


# Arguments are not checked; whoever gives wrong ones meets the exception they lead to.
_MISTAKES = (RpcError, AttributeError, KeyError, TypeError, ValueError)


def _refusal(error: Exception) -> RpcError:
    return error if isinstance(error, RpcError) else RpcError(INVALID_PARAMS, f"bad arguments: {error!r}")


def _append(path: str, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


_METHODS: dict[str, Callable[[Server, Call], Json]] = {
    "initialize": Server._initialize,
    "server/discover": Server._discover,
    "ping": lambda server, call: {},
    "tools/list": Server._list_tools,
    "prompts/list": lambda server, call: {"prompts": catalog.PROMPTS},
    "prompts/get": lambda server, call: catalog.get_prompt(call),
    "resources/list": lambda server, call: {"resources": catalog.RESOURCES},
    "resources/templates/list": lambda server, call: {"resourceTemplates": catalog.TEMPLATES},
    "resources/read": lambda server, call: catalog.read_resource(call),
    "completion/complete": lambda server, call: catalog.complete(call),
}
