"""From a client's request to the hub and back: names, handles and rounds are translated, the rest passes as it is.

This is the only place where the two eras of clients meet the two eras of servers:

    modern client, modern server      `input_required` passes through; its state is sealed for this client
    modern client, older server       the server's question parks the call; the client's retry goes on with it
    older client, modern server       the session answers `input_required` by asking the client, and retries
    older client, older server        the server's question becomes our question to the client
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from mcp_types.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND

from toolway._version import __version__
from toolway.catalog.index import Item, Tool
from toolway.errors import CallError, ProtocolError
from toolway.events import Kind
from toolway.gateway import failures
from toolway.gateway.codes import PASS_KEY, TIMEOUT_KEY
from toolway.gateway.failures import Failure
from toolway.gateway.parking import LONGEST, Deaf, Ear, Leg, Parking, lacks
from toolway.gateway.principals import Principal
from toolway.gateway.rates import Rate, Rates
from toolway.gateway.refusals import Throttled
from toolway.gateway.sealed import Sealer
from toolway.gateway.visit import Visit, can_answer, meta_of
from toolway.hub import Hub
from toolway.model import Call, Json, Reply
from toolway.protocol.eras import LISTS
from toolway.protocol.wire import AsItCame, encode

SERVER_INFO: Final[Json] = {"name": "toolway", "version": __version__}
KEY_KEY: Final = "toolway/idempotencyKey"
LIST_TTL: Final = 60_000  # milliseconds a client may keep a list; it hears of changes if it listens
SOON_TTL: Final = 1000  # the same for a list in which a server is missing that has not answered yet
START_TIME: Final = 10.0  # seconds after our own start, or a change of servers, in which a list waits for new ones
STATE: Final = "state"  # the kind of our sealed request states
TASK: Final = "task"
TASK_TIME: Final = 30 * 86_400.0
_OURS: Final = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        LOG_LEVEL_META_KEY,
        "progressToken",
        TIMEOUT_KEY,
        KEY_KEY,
        PASS_KEY,
    }
)
_MODERN_ONLY: Final = frozenset({"resultType", "ttlMs", "cacheScope"})  # in results
_KIND_OF: Final[Mapping[str, Kind]] = {method: kind for kind, (_, method, _) in LISTS.items()}
_TASKS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})


Owner = Callable[[], tuple[str, ...]]
Result = Json | AsItCame  # what a server said and we have no need to change passes as it came


class Relay:
    def __init__(self, hub: Hub, sealer: Sealer, parking: Parking, rates: Rates) -> None:
        self._hub = hub
        self._rates = rates
        self._throttled = Throttled(hub.emit)
        self._sealer = sealer
        self._parking = parking
        self._settled_at = 0.0
        self._run = secrets.token_hex(4)  # begins the ids of our calls
        self._calls = itertools.count(1)
        self.expect_lists()
        self.elsewhere: Callable[[str], bool] = lambda server: False  # whether another node calls a server for us
        self.ending = False  # whoever is cancelled now still gets an answer

    def expect_lists(self) -> None:
        """Servers have been started: for a while, lists wait for them."""
        self._settled_at = asyncio.get_running_loop().time() + START_TIME

    def answer(self, visit: Visit, method: str, params: Json) -> Coroutine[Any, Any, Result]:
        """The result of a request that every era knows. Raises `Failure`."""
        if method == "tools/call":
            return self._call_tool(visit, params)
        if method in _KIND_OF:
            return self._list(visit, _KIND_OF[method], params)
        if method == "resources/read":
            return self._read(visit, params)
        if method == "prompts/get":
            return self._prompt(visit, params)
        if method == "completion/complete":
            return self._complete(visit, params)
        if method in _TASKS and visit.era == "modern":
            return self._task(visit, method, params)
        raise Failure(METHOD_NOT_FOUND, f"there is no method {method!r}")

    # -- lists --------------------------------------------------------------------------------------------------------

    async def _list(self, visit: Visit, kind: Kind, params: Json) -> Result:
        complete = await self._wait_for_lists(visit, kind)

        def whole(items: msgspec.Raw, cursor: str | None) -> Json:
            result: Json = {LISTS[kind][2]: items}
            if cursor is not None:
                result["nextCursor"] = cursor
            if visit.era == "modern":
                result |= {"ttlMs": LIST_TTL if complete else SOON_TTL, "cacheScope": "private"}
            return self._finished(visit, result)

        try:
            return AsItCame(visit.view.encoded(kind, params.get("cursor"), (visit.era, complete), whole), b"}")
        except ValueError as exc:
            raise Failure(INVALID_PARAMS, f"the cursor cannot be used: {exc}") from None

    async def _wait_for_lists(self, visit: Visit, kind: Kind) -> bool:
        """Give servers that have only just been started the time to say what they have; whether all have."""
        if visit.view.complete(kind):
            return True
        left = self._settled_at - asyncio.get_running_loop().time()
        if left > 0:
            await self._hub.wait_listed(visit.view.missing(kind), kind, left)
        return visit.view.complete(kind)

    async def _find(self, visit: Visit, kind: Kind, name: object) -> Item | None:
        """What a client calls by this name; a server that is still starting may be the one that has it."""
        found = visit.view.find(kind, name)
        if found is None:
            owner = visit.view.owner(name)
            if owner is None:
                await self._wait_for_lists(visit, kind)
            else:
                await self._wait_for(owner, kind)  # and for no other: it may be the only one that is well
            found = visit.view.find(kind, name)
        return found

    async def _wait_for(self, server: str, kind: Kind) -> None:
        if self._hub.catalog.listed(server, kind):
            return
        left = self._settled_at - asyncio.get_running_loop().time()
        if self.elsewhere(server):
            left = START_TIME  # its owner may have only just begun with it
        if left > 0:
            await self._hub.wait_listed([server], kind, left, urgent=True)

    def _finished(self, visit: Visit, result: Json) -> Json:
        """A complete result as the client's era writes it."""
        if visit.era == "modern":
            if "resultType" not in result:
                result = {**result, "resultType": "complete"}
            meta = result.get("_meta")
            if not isinstance(meta, dict) or SERVER_INFO_META_KEY not in meta:
                result = {**result, "_meta": {**(meta or {}), SERVER_INFO_META_KEY: SERVER_INFO}}
            return result
        return {key: value for key, value in result.items() if key not in _MODERN_ONLY}

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call_tool(self, visit: Visit, params: Json) -> Coroutine[Any, Any, Result]:
        tool = visit.view.find("tools", params.get("name"))
        if tool is None:
            return self._call_later(visit, params)
        return self._call_found(visit, params, tool)

    async def _call_later(self, visit: Visit, params: Json) -> Result:
        """A server that is still starting may be the one that has the tool. The time that takes is the call's."""
        granted = _seconds(meta_of(params).get(TIMEOUT_KEY))
        clock = asyncio.get_running_loop().time
        began = clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(granted):
                await self._find(visit, "tools", params.get("name"))
        if granted is not None:
            left = max(0.0, granted - (clock() - began))
            params = {**params, "_meta": {**meta_of(params), TIMEOUT_KEY: left * 1000}}
        return await self._call_found(visit, params, visit.view.find("tools", params.get("name")))

    def _call_found(self, visit: Visit, params: Json, tool: Item | None) -> Coroutine[Any, Any, Result]:
        arguments = params.get("arguments", {})
        if not isinstance(tool, Tool):
            raise Failure(INVALID_PARAMS, f"Unknown tool: {_short(params.get('name'))}", {"executed": "no"})
        if arguments is not None and not isinstance(arguments, dict):
            raise Failure(INVALID_PARAMS, "arguments must be an object")
        if visit.headers is not None and tool.mirrors:
            _check_mirrored(tool, arguments or {}, visit.headers)
        visit.asked = params["name"]
        sent = {**params, "name": tool.key, "arguments": arguments or {}}
        return self._pass_on(visit, "tools/call", sent, tool.server, tool.key, as_it_came=True)

    async def _read(self, visit: Visit, params: Json) -> Json:
        uri = params.get("uri")
        await self._wait_for_lists(visit, "templates")
        found = visit.view.server_of_uri(uri) if isinstance(uri, str) else None
        if found is None:
            raise Failure(INVALID_PARAMS, f"Unknown resource: {_short(uri)}", {"uri": uri})
        server, inner = found
        result = await self._send(visit, "resources/read", {**params, "uri": inner}, server, inner)
        if visit.era == "modern" and result.get("resultType") == "complete":
            result = {"ttlMs": 0, "cacheScope": "private", **result}
        return result

    async def _prompt(self, visit: Visit, params: Json) -> Json:
        prompt = await self._find(visit, "prompts", params.get("name"))
        if prompt is None:
            raise Failure(INVALID_PARAMS, f"Unknown prompt: {_short(params.get('name'))}")
        return await self._send(visit, "prompts/get", {**params, "name": prompt.key}, prompt.server, prompt.key)

    async def _complete(self, visit: Visit, params: Json) -> Json:
        ref = params.get("ref")
        ref = ref if isinstance(ref, dict) else {}
        if ref.get("type") == "ref/prompt":
            prompt = await self._find(visit, "prompts", ref.get("name"))
            if prompt is None:
                raise Failure(INVALID_PARAMS, f"Unknown prompt: {_short(ref.get('name'))}")
            server, name, ref = prompt.server, prompt.key, {**ref, "name": prompt.key}
        else:
            uri = ref.get("uri")
            template = visit.view.find("templates", uri)
            found = (template.server, template.key) if template is not None else visit.view.server_of_uri(str(uri))
            if found is None:
                raise Failure(INVALID_PARAMS, f"Unknown resource: {_short(uri)}")
            server, name = found
            ref = {**ref, "uri": name}
        return await self._send(visit, "completion/complete", {**params, "ref": ref}, server, name)

    async def _send(self, visit: Visit, method: str, params: Json, server: str, name: str) -> Json:
        """One call through the hub; its result as a value."""
        found = await self._pass_on(visit, method, params, server, name, as_it_came=False)
        assert isinstance(found, dict)
        return found

    async def _pass_on(
        self, visit: Visit, method: str, params: Json, server: str, name: str, *, as_it_came: bool
    ) -> Result:
        """One call through the hub, in the way that fits the eras of both ends. Raises `Failure`."""
        parks = visit.era == "modern" and self._hub.era(server) != "modern"

        def owner() -> tuple[str, ...]:
            return _owner(visit, method, server, params)

        asked = params
        if "requestState" in params:
            kind, value = self._opened(params["requestState"], owner())
            if kind == "parked" and (value in self._parking or not self.elsewhere(server)):
                return await self._go_on(visit, value, owner, params)
            # What another node calls for us it has sealed, too: it reads the state as it is.
            asked = {**params, "requestState": value} if not self.elsewhere(server) else params
            parks = False  # only a modern server gives a state, wherever it is now
        if visit.principal.rate is not None:
            self._spend(visit.principal, visit.principal.rate)
        call, ear = self._call(visit, method, asked, server, name, parks=parks, as_it_came=as_it_came)
        if parks:
            assert ear is not None
            if visit.askable or "inputResponses" in asked or self._hub.era(server) is None:
                return await self._begin_leg(visit, call, ear, owner)
            deaf = Deaf()
            call = msgspec.structs.replace(call, asks=deaf)
        else:
            deaf = None
        try:
            reply = await self._hub.request(call)
        except CallError as exc:
            if deaf is not None and deaf.missing and isinstance(exc, ProtocolError):
                raise lacks(deaf.missing, exc.evidence) from None
            raise failures.of_error(exc, call.id, visit.era) from None
        except asyncio.CancelledError:
            if self.ending:
                raise failures.of_ended(call) from None
            raise
        if deaf is not None and deaf.missing and reply.is_error:
            raise lacks(deaf.missing, reply.text)
        return self._of_reply(visit, reply, owner)

    def _spend(self, principal: Principal, rate: Rate) -> None:
        """What this call costs its principal. Raises `Failure` where it has called too often."""
        wait = self._rates.take(principal.id, rate)
        if wait > 0:
            self._throttled.add(principal.id, rate)
            raise failures.of_rate(rate, wait)

    def _call(
        self, visit: Visit, method: str, params: Json, server: str, name: str, *, parks: bool, as_it_came: bool
    ) -> tuple[Call, Ear | None]:
        """The call, and where what belongs to it is told, if anybody wants to hear of it."""
        meta = meta_of(params)
        asked = params.copy()
        asked.pop("_meta", None)
        if not meta.keys() <= _OURS:
            asked["_meta"] = {key: value for key, value in meta.items() if key not in _OURS}
        key, ear, forwarded = meta.get(KEY_KEY, visit.key), None, visit.forwarded
        hears_log = visit.log_level is not None or visit.wants_log
        if parks or hears_log or "progressToken" in meta:
            ear = Ear(visit, meta)
        call = Call(
            f"{server}.{name}" if method == "tools/call" else name,
            method,
            asked,
            server,
            name,
            _seconds(meta[TIMEOUT_KEY]) if TIMEOUT_KEY in meta else None,
            # Whoever is asked in mid-call comes back with another request, which may want to hear of progress too.
            on_progress=ear.progress if ear and ("progressToken" in meta or (parks and visit.askable)) else None,
            on_notice=ear.notice if ear and hears_log else None,
            log_level=visit.log_level,
            key=key if isinstance(key, str) else None,
            caller=visit.principal.caller,
            asks=visit.asks,
            capabilities=visit.capabilities,
            hands_back=visit.era == "modern",
            attempt=self._hub.new_attempt(keeps_bytes=as_it_came, brought=forwarded is not None),
            id=f"{self._run}{next(self._calls):x}" if forwarded is None or not forwarded.call else forwarded.call,
            retries=None if forwarded is None else 0,  # whoever brought it decides whether it is tried again
            origin=visit,
            brought=forwarded is not None,
        )
        return call, ear

    def _of_reply(self, visit: Visit, reply: Reply, owner: Owner) -> Result:
        result = reply.raw
        kind = result.get("resultType", "complete")
        if kind == "complete" and reply.encoded is not None:
            passed = _as_it_came(visit, result, reply.encoded)
            if passed is not None:
                return passed
        elif kind == "input_required" and visit.era == "modern":
            state = result.get("requestState")
            if isinstance(state, str) and not self._is_sealed(state, owner()):
                result = {**result, "requestState": self._sealed("upstream", state, owner())}
        elif kind == "task":
            result = {**result, "taskId": self._wrapped(visit, reply.server, result.get("taskId"))}
        return self._finished(visit, result)

    # -- rounds -------------------------------------------------------------------------------------------------------

    async def _begin_leg(self, visit: Visit, call: Call, ear: Ear, owner: Owner) -> Result:
        """Call a server that may ask back while it works, or, as long as its era is not known, in its answer."""
        leg = Leg(ear, visit.capabilities, can_answer, call.params.get("inputResponses"))
        params = call.params
        if self._hub.era(call.server) == "handshake":
            params = {key: value for key, value in params.items() if key != "inputResponses"}
        call = msgspec.structs.replace(call, asks=leg, params=params)
        leg.begin(call, self._hub.request(call))
        return await self._leg(visit, leg, owner)

    async def _leg(self, visit: Visit, leg: Leg, owner: Owner) -> Result:
        """Until the server has answered or has asked something."""
        try:
            found = await leg.next()
        except CallError as exc:
            raise failures.of_error(exc, leg.call.id, visit.era) from None
        except asyncio.CancelledError:
            if self.ending:
                raise failures.of_ended(leg.call) from None
            raise
        if isinstance(found, Reply):
            return self._of_reply(visit, found, owner)
        id_ = self._parking.park(leg, owner())
        state = self._sealed("parked", id_, owner())
        return self._finished(visit, {"resultType": "input_required", "inputRequests": found, "requestState": state})

    async def _go_on(self, visit: Visit, id_: str, owner: Owner, params: Json) -> Result:
        leg = self._parking.fetch(id_, owner())
        if leg is None:
            raise Failure(INVALID_PARAMS, "no call waits for this requestState", {"executed": "unknown"})
        leg.ear.turn_to(visit, meta_of(params))
        leg.take(params.get("inputResponses"))
        return await self._leg(visit, leg, owner)

    def _sealed(self, kind: str, value: str, owner: tuple[str, ...]) -> str:
        return self._sealer.seal(STATE, [kind, value, owner], LONGEST)

    def _is_sealed(self, state: str, owner: tuple[str, ...]) -> bool:
        """Whether another node has done it, for this very client and call: whichever it comes back to opens it once."""
        found = self._sealer.open(STATE, state)
        return found is not None and tuple(found[2]) == owner

    def _opened(self, state: object, owner: tuple[str, ...]) -> tuple[str, str]:
        found = self._sealer.open(STATE, state) if isinstance(state, str) else None
        if found is None or tuple(found[2]) != owner:
            raise Failure(INVALID_PARAMS, "the requestState is not one of this call, or has expired")
        return found[0], found[1]

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _wrapped(self, visit: Visit, server: str, task: object) -> str:
        if isinstance(task, str):
            found = self._sealer.open(TASK, task)
            if found is not None and found[2:] == [visit.principal.id, visit.endpoint]:
                return task  # another node has done it, for this very client
        return self._sealer.seal(TASK, [server, task, visit.principal.id, visit.endpoint], TASK_TIME)

    async def _task(self, visit: Visit, method: str, params: Json) -> Json:
        wrapped = params.get("taskId")
        server, inner = self.task(visit, wrapped)
        result = await self._send(visit, method, {**params, "taskId": inner}, server, inner)
        return {**result, "taskId": wrapped} if "taskId" in result else result

    def task(self, visit: Visit, wrapped: object) -> tuple[str, str]:
        """The server and its own name of a task that this principal was given here, or at another node. Raises
        `Failure`."""
        found = self._sealer.open(TASK, wrapped) if isinstance(wrapped, str) else None
        looked_at = visit.forwarded is not None and not visit.forwarded.call  # by a node, which listens for its clients
        if found is None or (found[2:] != [visit.principal.id, visit.endpoint] and not looked_at):
            raise Failure(INVALID_PARAMS, "Unknown task")
        server: str = found[0]
        return server, str(wrapped) if self.elsewhere(server) else found[1]


def _owner(visit: Visit, method: str, server: str, params: Json) -> tuple[str, ...]:
    """What a request state is bound to: who, where, what, and with which arguments."""
    asked = {k: v for k, v in params.items() if k not in ("_meta", "requestState", "inputResponses")}
    digest = hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()
    return (visit.principal.id, visit.endpoint, server, method, digest)


_SIGNATURE: Final = encode({SERVER_INFO_META_KEY: SERVER_INFO})
_SIGNED: Final = b',"_meta":' + _SIGNATURE + b"}}"
_COMPLETED: Final = b',"resultType":"complete"' + _SIGNED


def _as_it_came(visit: Visit, result: Json, encoded: memoryview) -> AsItCame | None:
    """The bytes of a complete result, with what the client's era wants added at their end; None where more than that
    has to be changed."""
    if visit.era == "handshake":
        return AsItCame(encoded, b"}") if _MODERN_ONLY.isdisjoint(result) else None
    if "_meta" not in result and result:
        return AsItCame(encoded[:-1], _SIGNED if "resultType" in result else _COMPLETED)
    signed = isinstance(result.get("_meta"), dict) and SERVER_INFO_META_KEY in result["_meta"]
    return AsItCame(encoded, b"}") if signed and "resultType" in result else None


def _check_mirrored(tool: Tool, arguments: Json, headers: Mapping[str, str]) -> None:
    rejection = validate_mcp_param_headers(tool.input_schema, arguments, headers)
    if rejection is not None:
        raise Failure(rejection.code, rejection.message, rejection.data)


def _seconds(milliseconds: Any) -> float | None:
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    return max(0.0, milliseconds / 1000)


def _short(value: object) -> str:
    return str(value)[:200]
