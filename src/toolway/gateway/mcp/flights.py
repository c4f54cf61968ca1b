"""Tool calls from HTTP clients and other nodes that run without a task, from request to response.

Such a call is a flight (hub/flight.py), which runs on the callbacks of the two connections. `ClientFlights.begin`
takes a request only if nothing about it is unusual. Otherwise it does nothing, and the router handles the request and
reports what is wrong with it. A modern client's `tools/list` is answered here too if the list is complete, because it
is already encoded.

A plan holds everything that one caller's calls to one tool share, determined once. A modern client repeats the tool's
name in the HTTP head, so there is one plan per head. A legacy client's head names only its session, so there is one
plan per head and tool.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from functools import partial
from typing import ClassVar, Final, NamedTuple, Protocol

import msgspec

from toolway.catalog.catalog import Tool
from toolway.gateway.authenticator import Authenticator
from toolway.gateway.legacy_schemas import adapt_result
from toolway.gateway.limits import BoundLimit
from toolway.gateway.mcp.call_reader import (
    PARAMS,
    CallReader,
    ClientCall,
    ClientMeta,
    ListReader,
    check_meta,
    read_session_call,
)
from toolway.gateway.mcp.context import ForwardedCall, RequestContext, client_request_id
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.errors import TIMEOUT_META_KEY
from toolway.gateway.mcp.legacy_http import SESSION_HEADER, VERSION_HEADER, LegacyHttpEndpoint
from toolway.gateway.mcp.legacy_session import ActiveRequest, LegacySession
from toolway.gateway.mcp.legacy_sessions import LegacySessions
from toolway.gateway.mcp.modern import ModernEndpoint, RoutingHeaders
from toolway.gateway.mcp.replay_buffer import ResumableResponse
from toolway.gateway.mcp.responses import RpcResult, finalize_raw_result, finalize_result
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.meta_tools import MetaToolSet
from toolway.gateway.principals import SEARCH_ENDPOINT, Principal
from toolway.gateway.router import MAX_LIGHT_BYTES, AuthenticatedRequest, Router
from toolway.gateway.tool_filter import ToolFilter
from toolway.http.exchange import JSON_TYPE, Exchange, HttpRequest
from toolway.hub.calls import HubCalls
from toolway.hub.flight import CallOrigin, Flight
from toolway.hub.plan import SWITCH, Plan
from toolway.hub.taken_over import TakenOverCall
from toolway.protocol import jsonrpc
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    HANDSHAKE_PROTOCOL_VERSIONS,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
)
from toolway.protocol.versions import DEFAULT_LOG_LEVEL
from toolway.types import Call, Era, Json
from toolway.upstream.transport import RequestExchange

NO_PLAN_S: Final = 1.0  # seconds for which a missing plan is remembered
MAX_TOOLS_OF_HEAD: Final = 64  # tools whose plans are kept for one head of a legacy client


class NamedPlan(NamedTuple):
    """The plan for a tool that is called through a meta-tool."""

    plan: Plan
    start: bytes  # of the meta-tool's encoded arguments: all that is before the tool's arguments
    limits: tuple[BoundLimit, ...]  # on the calls of the principal to this tool


class HeadPlan(msgspec.Struct, frozen=True, gc=False):
    """The plan for requests with one HTTP head: everything that a principal's calls to a tool share."""

    plan: Plan | None  # None for meta-tools, if the bodies name the tool, and for `tools/list`
    principal: Principal
    endpoint: str
    view: EndpointView
    tool_filter: ToolFilter | None  # of the endpoint, if it is a toolset
    views_version: int
    name: str  # of the tool, as the client knows it
    reader: CallReader | ListReader | None  # of a modern client
    limits: tuple[BoundLimit, ...]  # on the calls of the principal to this tool
    limits_version: int
    meta_tools: MetaToolSet | None  # set if a meta-tool is called, and the body names the tool
    named: dict[str, NamedPlan] = msgspec.field(default_factory=dict)  # of the tools that such bodies named, by name


class SessionHead:
    """Session id in the HTTP head of a legacy client's requests, and the plans for the tools that they call."""

    __slots__ = ("plans", "session_id")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.plans: dict[str, HeadPlan | float] = {}  # by name; a time until which it is known that there is none


class ClientFlights:
    """Sends HTTP clients' ordinary tool calls as flights, which run on callbacks, without a task."""

    def __init__(
        self,
        calls: HubCalls,
        router: Router,
        authenticator: Authenticator,
        dispatcher: RequestDispatcher,
        modern: ModernEndpoint,
        legacy: LegacyHttpEndpoint,
        sessions: LegacySessions,
    ) -> None:
        self.calls = calls
        self.router = router
        self.dispatcher = dispatcher
        self.modern = modern
        self.legacy = legacy
        self.sessions = sessions
        self._authenticator = authenticator
        self._answers_lists = os.environ.get(SWITCH) != "off"

    def begin(self, exchange: Exchange) -> bool:
        """Send the tool call in a request as a flight, which runs on callbacks, without a task.

        Return False without doing anything if the router must handle the request.
        """
        request, router = exchange.request, self.router
        notes = request.notes
        authenticated: AuthenticatedRequest | None = notes.authenticated
        if (
            authenticated is None
            or request.repeated_headers  # which of them counts is the router's decision
            or router.rejects_new_requests
            or len(request.body) > MAX_LIGHT_BYTES
            or authenticated.auth_version != self._authenticator.version
            or (authenticated.expires_at is not None and time.time() >= authenticated.expires_at)
            or (b"null" in request.body and self.dispatcher.drops_nulls())
        ):
            return False
        if notes.routing is None:
            return SESSION_HEADER in request.headers and self._begin_in_session(exchange, authenticated)
        planned = notes.plan
        if type(planned) is not HeadPlan or not self._is_valid(planned, authenticated):
            planned = self._find_plan(request, authenticated)
            if planned is None:
                return False
        reader = planned.reader
        if type(reader) is ListReader:
            return self._send_list(exchange, planned, reader)
        assert type(reader) is CallReader
        call = reader.read(request.body)
        if call is None:
            return False
        plan, limits = planned.plan, planned.limits
        if plan is None:
            named = self._find_named(planned, call)
            if named is None:
                return False
            plan, call, limits = named
        if not router.add_active(planned.principal, exchange):
            return False
        exchange.request_id = router.new_request_id()
        flight = ClientFlight(self, planned, plan, exchange, call)
        if not self._start(flight, planned.principal, limits, call.meta.capabilities):
            router.remove_active(planned.principal, exchange)
            return False
        if planned.meta_tools is not None:
            planned.meta_tools.count_call(planned.name)
        exchange.mark_authenticated()
        exchange.on_disconnect = exchange.on_cancel = flight.left
        return True

    def _start(
        self, flight: ClientFlight, principal: Principal, limits: tuple[BoundLimit, ...], capabilities: Json
    ) -> bool:
        """Begin a call, and charge it to its principal's rate limit and other limits, if there are any.

        Return False without sending or charging anything if the router must handle the request.
        """
        rate, limiter = principal.rate, self.dispatcher.rate_limiter
        if rate is None and not limits:
            return flight.begin(capabilities)
        taken = 0
        for each in limits:
            if not each.try_take():
                break
            taken += 1
        else:
            if rate is None or limiter.try_acquire(principal.id, rate) <= 0:
                if flight.begin(capabilities):
                    return True
                if rate is not None:
                    limiter.give_back(principal.id)
        for each in limits[:taken]:
            each.give_back()
        return False

    def _send_list(self, exchange: Exchange, planned: HeadPlan, reader: ListReader) -> bool:
        """Answer `tools/list` at once, if the list is complete.

        Return False without doing anything if the router must handle the request.
        """
        id_, router = reader.read(exchange.request.body), self.router
        if id_ is None:
            return False
        tools = self.dispatcher.encode_tools(planned.view)
        if tools is None or not router.add_active(planned.principal, exchange):
            return False
        router.remove_active(planned.principal, exchange)
        exchange.request_id = router.new_request_id()
        exchange.mark_authenticated()
        exchange.reply_json(b'{"jsonrpc":"2.0","id":%b,"result":' % id_, tools, b"}")
        return True

    def _begin_in_session(self, exchange: Exchange, authenticated: AuthenticatedRequest) -> bool:
        """Send the tool call in a legacy session's request as a flight, which runs on callbacks, without a task.

        Return False without doing anything if the router must handle the request.
        """
        request, router = exchange.request, self.router
        head = request.notes.plan
        if type(head) is not SessionHead:
            version = request.headers.get(VERSION_HEADER)
            if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
                return False
            head = request.notes.plan = SessionHead(request.headers[SESSION_HEADER])
        found = read_session_call(request.body)
        if found is None or self.sessions.peers is not None:
            return False
        id_, name, call = found
        planned = self._find_session_plan(request, head, name, authenticated)
        if planned is None:
            return False
        principal = planned.principal
        session = self.sessions.get_session(head.session_id, principal, planned.view, planned.endpoint)
        if session is None or session.ended or id_ in session.active_requests:
            return False
        plan, limits = planned.plan, planned.limits
        if plan is None:
            named = self._find_named(planned, call)
            if named is None:
                return False
            plan, call, limits = named
        if session.log_level is not None and plan.is_legacy:
            return False  # the server may have to be asked for this level first
        if not router.add_active(principal, exchange):
            return False
        exchange.request_id = router.new_request_id()
        flight = SessionFlight(self, planned, plan, exchange, call, id_, session)
        if not self._start(flight, principal, limits, session.capabilities):
            router.remove_active(principal, exchange)
            return False
        session.active_requests[id_] = flight.request
        if planned.meta_tools is not None:
            planned.meta_tools.count_call(planned.name)
        exchange.mark_authenticated()
        exchange.on_disconnect = flight.failed  # in the legacy era a lost connection does not cancel the request
        exchange.on_cancel = flight.left
        return True

    def _find_session_plan(
        self, request: HttpRequest, head: SessionHead, name: str, authenticated: AuthenticatedRequest
    ) -> HeadPlan | None:
        """Return the plan for a legacy client's calls to a tool, and create it if needed.

        Return None if the router must handle the calls. A missing plan is remembered for a second.
        """
        planned = head.plans.get(name)
        if type(planned) is HeadPlan and self._is_valid(planned, authenticated):
            return planned
        now = self.calls.flights.now()
        if type(planned) is float and now < planned:
            return None
        created = self._create_plan(request, authenticated, name, None)
        if len(head.plans) >= MAX_TOOLS_OF_HEAD:
            head.plans.clear()  # cheap to find again
        head.plans[name] = created if created is not None else self._no_plan_until(authenticated)
        return created

    def _no_plan_until(self, authenticated: AuthenticatedRequest) -> float:
        """Return how long to remember a missing plan: not at all if the view just needs preparation."""
        endpoint = authenticated.endpoint
        view = self.router.view_for(authenticated.principal, endpoint) if endpoint is not None else None
        is_unprepared = view is not None and view.needs_preparation
        return self.calls.flights.now() + (0.0 if is_unprepared else NO_PLAN_S)

    def _is_valid(self, planned: HeadPlan, authenticated: AuthenticatedRequest) -> bool:
        """Return True if a plan can still be used: its principal, views, tool filter, and hub plan are the same."""
        router = self.router
        return (
            planned.principal is authenticated.principal
            and planned.views_version == router.views_version
            and planned.limits_version == self.dispatcher.limits.version
            and (planned.tool_filter is None or router.filter_of_toolset(planned.endpoint) is planned.tool_filter)
            and (planned.plan is None or planned.plan.is_valid())
        )

    def _find_plan(self, request: HttpRequest, authenticated: AuthenticatedRequest) -> HeadPlan | None:
        """Return a new plan for requests with this HTTP head, or None if the router must handle them.

        A missing plan is remembered for a second.
        """
        notes = request.notes
        if isinstance(notes.plan, float) and self.calls.flights.now() < notes.plan:
            return None
        routing: RoutingHeaders = notes.routing
        is_usual = (routing.method == "tools/call" and routing.name is not None) or routing.method == "tools/list"
        planned = self._create_plan(request, authenticated, routing.name or "", routing) if is_usual else None
        notes.plan = planned if planned is not None else self._no_plan_until(authenticated)
        return planned

    def _create_plan(
        self, request: HttpRequest, authenticated: AuthenticatedRequest, name: str, routing: RoutingHeaders | None
    ) -> HeadPlan | None:
        """Create the plan for calls to a tool with this HTTP head: everything that they have in common.

        Return None if the router must handle such calls.
        """
        principal, endpoint = authenticated.principal, authenticated.endpoint
        if (
            endpoint is None
            or request.method != "POST"
            or request.headers.get("content-type") != JSON_TYPE
            or authenticated.response_headers
            or principal.is_node
            or "idempotency-key" in request.headers
            or client_request_id(request)
        ):
            return None
        view = self.router.view_for(principal, endpoint)
        if view is None or view.needs_preparation:
            return None
        plan = None
        is_list = routing is not None and routing.method == "tools/list"
        if is_list and not self._answers_lists:
            return None
        meta_tools = view.meta_tools if not is_list else None
        if meta_tools is not None and name not in meta_tools.callers:
            meta_tools = None
        if not is_list and meta_tools is None:
            tool = view.find_item("tools", name)
            if not isinstance(tool, Tool) or self.router.missing_scopes(principal, f"{tool.server}.{tool.name}"):
                return None
            if view.permission is not None and view.permission.needs_arguments(tool):
                return None
            plan = self.calls.planner.find(tool, principal.caller_id)
            if plan is None:
                return None
        tool_filter = self.router.filter_of_toolset(endpoint)
        if tool_filter is None and endpoint not in ("", SEARCH_ENDPOINT) and not endpoint.startswith("server/"):
            return None
        reader = (ListReader(routing) if is_list else CallReader(routing)) if routing is not None else None
        limits = self.dispatcher.limits
        bound = limits.bind(principal, plan.target) if plan is not None else ()
        version = self.router.views_version
        return HeadPlan(
            plan, principal, endpoint, view, tool_filter, version, name, reader, bound, limits.version, meta_tools
        )

    def _find_named(
        self, planned: HeadPlan, call: ClientCall
    ) -> tuple[Plan, ClientCall, tuple[BoundLimit, ...]] | None:
        """Return the plan, call, and limits for the tool that a meta-tool call names.

        Return None if the router must handle the call, because the tool has no plan or the request is unusual.
        """
        given, view, meta_tools = call.arguments, planned.view, planned.meta_tools
        if meta_tools is None or len(given) != 2 or "name" not in given or "arguments" not in given:
            return None
        name, arguments = given["name"], given["arguments"]
        if type(arguments) is not dict or type(name) is not str:
            return None
        known = planned.named.get(name)
        if known is not None and known.plan.is_valid():
            # The encoded arguments have these two keys and no space, so the value after `start` is one whole object.
            encoded = call.encoded_arguments
            own = encoded[len(known.start) : -1] if encoded.startswith(known.start) else b""
            return known.plan, ClientCall(call.id, arguments, call.meta, name, own), known.limits
        tool = view.find_item("tools", name) if not view.needs_preparation else None
        if not isinstance(tool, Tool):
            return None
        if view.permission is not None and view.permission.needs_arguments(tool):
            return None
        if not meta_tools.may_call(planned.name, tool):
            return None
        plan = self.calls.planner.find(tool, planned.principal.caller_id)
        if plan is None or self.router.missing_scopes(planned.principal, f"{tool.server}.{tool.name}"):
            return None
        if len(planned.named) >= MAX_TOOLS_OF_HEAD:
            planned.named.clear()  # cheap to find again
        limits = self.dispatcher.limits.bind(planned.principal, plan.target)
        planned.named[name] = NamedPlan(plan, b'{"name":%b,"arguments":' % jsonrpc.encode_json(name), limits)
        return plan, ClientCall(call.id, arguments, call.meta, name), limits


def _encode_response(
    era: Era, request_id: bytes, result: Json, frame: bytes, exchange: RequestExchange
) -> tuple[bytes, bytes | memoryview, bytes]:
    """Return the encoded response to a client's request in three parts; the second is the server's result.

    `request_id` is the encoded id of the client's request. `frame` is the server's response.
    """
    received: bytes | memoryview | None = exchange.received
    if not received:
        received = jsonrpc.slice_result(frame, exchange.id) if frame else None
    raw = finalize_raw_result(era, result, received) if received is not None else None
    if raw is not None:
        return b'{"jsonrpc":"2.0","id":%b,"result":%b' % (request_id, raw.prefix), raw.received, raw.suffix
    prefix = b'{"jsonrpc":"2.0","id":%b,"result":' % request_id
    return prefix, jsonrpc.encode_json(finalize_result(era, result)), b"}"


class ClientFlight(Flight):
    """One tool call from a modern HTTP client that runs on callbacks, without a task."""

    __slots__ = ("_call", "_http", "_owner", "_planned")
    era: ClassVar[Era] = "modern"

    def __init__(self, owner: ClientFlights, planned: HeadPlan, plan: Plan, http: Exchange, call: ClientCall) -> None:
        Flight.__init__(self, owner.calls.flights, plan, call.arguments, http.request_id, call.meta.extra)
        self._owner = owner
        self._planned = planned
        self._http = http
        self._call = call
        self.request_bytes = len(http.request.body)
        self.encoded_arguments = call.encoded_arguments

    def land(self, result: Json, frame: bytes, exchange: RequestExchange) -> None:
        http = self._http
        self._owner.router.remove_active(self._planned.principal, http)
        http.on_disconnect = http.on_cancel = None
        http.reply_json(*self._encode(result, frame, exchange))
        if self._planned.meta_tools is not None:
            self._planned.meta_tools.on_result(self._planned.principal.id, self.plan.tool, result)

    def _encode(self, result: Json, frame: bytes, exchange: RequestExchange) -> tuple[bytes, bytes | memoryview, bytes]:
        return _encode_response(self.era, self._call.id, result, frame, exchange)

    def left(self) -> None:
        """Cancel the call in a task, because the client has disconnected or the gateway is shutting down.

        That task notifies the server.
        """
        task = self._take_over_in_task()
        if task is not None:
            asyncio.get_running_loop().call_soon(task.cancel)  # after its first step, so it can clean up

    def _take_over_in_task(self) -> asyncio.Task[None] | None:
        taken = self.take_over()
        return taken.task if taken is not None else None

    def origin(self) -> CallOrigin | None:
        planned, timeout = self._planned, self._call.meta.value.get(TIMEOUT_META_KEY)
        return CallOrigin(
            planned.principal.id,
            planned.principal.name,
            planned.endpoint,
            None if timeout is None else timeout / 1000,
        )

    def build_call(self) -> Call:
        params = {**self.params, "_meta": self._call.meta.value}
        return self._owner.dispatcher.build_sent_call(self._build_context(), params, self.plan.tool)

    def hand_over(self, taken: TakenOverCall) -> None:
        context = self._build_context()
        http, principal = self._http, self._planned.principal

        def on_done(_: asyncio.Task[None]) -> None:
            taken.discard()
            self._owner.router.remove_active(principal, http)
            self._forget()

        if self._planned.meta_tools is not None:
            context.on_result = partial(self._planned.meta_tools.on_result, principal.id, self.plan.tool)
        taken.task = http.run(lambda exchange: self._resume(exchange, context, taken))
        taken.task.add_done_callback(on_done)

    async def _resume(self, exchange: Exchange, context: RequestContext, taken: TakenOverCall) -> None:
        await self._owner.modern.resume(exchange, context, taken)

    def _forget(self) -> None:
        """Remove the request from its session, once its task has ended. A modern client has no session."""

    def _build_context(self) -> RequestContext:
        planned, call = self._planned, self._call
        context = RequestContext(
            planned.principal,
            planned.view,
            planned.endpoint,
            "modern",
            call.meta.capabilities,
            request_id=jsonrpc.decode_json(call.id),
            version=call.meta.value[PROTOCOL_VERSION_META_KEY],
            requested_name=call.named or planned.name,
        )
        context.set_ids(self._http)
        return context


class SessionFlight(ClientFlight):
    """One tool call in a legacy session that runs on callbacks, without a task."""

    __slots__ = ("_id", "_response", "_session", "request")
    era: ClassVar[Era] = "legacy"

    def __init__(
        self,
        owner: ClientFlights,
        planned: HeadPlan,
        plan: Plan,
        http: Exchange,
        call: ClientCall,
        id: jsonrpc.MessageId,
        session: LegacySession,
    ) -> None:
        ClientFlight.__init__(self, owner, planned, plan, http, call)
        self.log_level = session.log_level or DEFAULT_LOG_LEVEL
        self.request = ActiveRequest(None, leave=self.left)
        self._id = id
        self._session = session
        self._response: ResumableResponse | None = None  # set if the pipeline has taken over

    def origin(self) -> None:
        """Return None: calls of a legacy session are never forwarded to another node as flights.

        A session belongs to one node, so only the pipeline forwards its calls, with any messages they cause.
        """

    def land(self, result: Json, frame: bytes, exchange: RequestExchange) -> None:
        self._forget()
        ClientFlight.land(self, result, frame, exchange)

    def _encode(self, result: Json, frame: bytes, exchange: RequestExchange) -> tuple[bytes, bytes | memoryview, bytes]:
        adapted = adapt_result(result, self.plan.tool.raw, self.era)
        if adapted is result:
            return ClientFlight._encode(self, result, frame, exchange)
        prefix = b'{"jsonrpc":"2.0","id":%b,"result":' % self._call.id
        return prefix, jsonrpc.encode_json(finalize_result(self.era, adapted)), b"}"

    def hand_over(self, taken: TakenOverCall) -> None:
        super().hand_over(taken)
        self.request.task = taken.task
        self._response = self._owner.legacy.open_response(self._http, self._session, self._id)

    async def _resume(self, exchange: Exchange, context: RequestContext, taken: TakenOverCall) -> None:
        owner, session = self._owner, self._session
        assert self._response is not None
        work = owner.sessions.resume_request(session, self._id, self.request, context, taken)
        await owner.legacy.send_response(session, self._response, work)

    def _forget(self) -> None:
        self.request.leave = None
        active = self._session.active_requests
        if active.get(self._id) is self.request:
            del active[self._id]

    def _build_context(self) -> RequestContext:
        context = self._owner.sessions.build_context(self._session, self._send, self._id)
        context.requested_name = self._call.named or self._planned.name
        context.set_ids(self._http)
        return context

    def _send(self, message: bytes) -> bool:
        """Send the client a message that belongs to the call."""
        return self._response is not None and self._response.try_send(message)


# -- calls of other nodes ---------------------------------------------------------------------------------------------


class NodeCall(Protocol):
    """The interface of a call forwarded by another node. It sends the response to that node."""

    def reply(self, message: bytes) -> None:
        """Send the JSON-RPC response to the other node."""
        ...

    def run(self, work: Awaitable[RpcResult]) -> asyncio.Task[None]:
        """Start a task that awaits `work`, and sends its result or error to the other node.

        Return the task.
        """
        ...


class NodeFlights:
    """Executes calls forwarded by other nodes as flights."""

    def __init__(self, calls: HubCalls, dispatcher: RequestDispatcher) -> None:
        self.calls = calls
        self.dispatcher = dispatcher

    def begin(
        self,
        principal: Principal,
        view: EndpointView,
        forwarded: ForwardedCall,
        message: jsonrpc.Message,
        call: NodeCall,
    ) -> NodeFlight | None:
        """Begin a call forwarded by another node, as a flight.

        Return None without doing anything if the pipeline must handle the call.
        """
        params = message.body
        value = params.get("_meta")
        if (
            message.method != "tools/call"
            or forwarded.idempotency_key is not None
            or self.calls.instrumentation.enabled_for_forwarded
            or view.needs_preparation
            or type(value) is not dict
            or not params.keys() <= PARAMS
            or type(params.get("arguments")) is not dict
            or value.get(PROTOCOL_VERSION_META_KEY) not in MODERN_PROTOCOL_VERSIONS
            or CLIENT_CAPABILITIES_META_KEY not in value
        ):
            return None
        meta = check_meta(value, value[CLIENT_CAPABILITIES_META_KEY])
        if meta is None:
            return None
        tool = view.find_item("tools", params.get("name"))
        plan = self.calls.planner.find(tool, principal.caller_id) if isinstance(tool, Tool) else None
        if plan is None:
            return None
        flight = NodeFlight(self, plan, principal, view, forwarded, message, meta, call)
        return flight if flight.begin(meta.capabilities) else None


class NodeFlight(Flight):
    """One forwarded call as a flight. The node that sent it reports the call and decides on retries."""

    __slots__ = ("_call", "_forwarded", "_message", "_owner", "_principal", "_view")

    is_forwarded = True

    def __init__(
        self,
        owner: NodeFlights,
        plan: Plan,
        principal: Principal,
        view: EndpointView,
        forwarded: ForwardedCall,
        message: jsonrpc.Message,
        meta: ClientMeta,
        call: NodeCall,
    ) -> None:
        super().__init__(owner.calls.flights, plan, message.body["arguments"], forwarded.call_id, meta.extra)
        self._owner = owner
        self._principal = principal
        self._view = view
        self._forwarded = forwarded
        self._message = message
        self._call = call

    def land(self, result: Json, frame: bytes, exchange: RequestExchange) -> None:
        assert isinstance(self._message.id, int)
        self._call.reply(b"".join(_encode_response("modern", b"%d" % self._message.id, result, frame, exchange)))

    def left(self) -> None:
        """Cancel the call in a task, because the node that sent it is no longer waiting for it."""
        taken = self.take_over()
        if taken is not None and taken.task is not None:
            asyncio.get_running_loop().call_soon(taken.task.cancel)  # after its first step, so it can clean up

    def build_call(self) -> Call:
        params = {**self.params, "_meta": self._message.body["_meta"]}
        return self._owner.dispatcher.build_sent_call(self._build_context(), params, self.plan.tool)

    def hand_over(self, taken: TakenOverCall) -> None:
        taken.task = self._call.run(self._owner.dispatcher.resume(self._build_context(), taken))
        taken.task.add_done_callback(lambda _: taken.discard())

    def _build_context(self) -> RequestContext:
        meta: Json = self._message.body["_meta"]
        return RequestContext(
            self._principal,
            self._view,
            self._forwarded.endpoint,
            "modern",
            meta[CLIENT_CAPABILITIES_META_KEY],
            idempotency_key=None,
            request_id=self._message.id,
            version=meta[PROTOCOL_VERSION_META_KEY],
            requested_name=self._message.body["name"],
            forwarded=self._forwarded,
        )
