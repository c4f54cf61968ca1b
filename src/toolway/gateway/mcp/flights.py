"""Calls of modern clients without a task: from the bytes of a request to its flight (hub/flight.py) and back.

`ClientFlights.begin` takes a request only if everything about it is usual. Otherwise nothing was done, and the router
handles the request, which also finds out what is wrong with it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from toolway.catalog.catalog import Tool
from toolway.gateway.authenticator import Authenticator
from toolway.gateway.mcp.call_reader import CallReader, ClientCall
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.meta_tools import CALL_TOOL, READ_TOOL
from toolway.gateway.mcp.modern import ModernEndpoint, RoutingHeaders
from toolway.gateway.mcp.responses import finalize_raw_result, finalize_result
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import SEARCH_ENDPOINT, Principal
from toolway.gateway.router import MAX_LIGHT_BYTES, AuthenticatedRequest, Router
from toolway.gateway.tool_filter import ToolFilter
from toolway.http.exchange import JSON_TYPE, Exchange, HttpRequest
from toolway.hub.core import HubCore
from toolway.hub.flight import Flight, TakenOverCall
from toolway.hub.plan import Plan
from toolway.protocol import jsonrpc
from toolway.types import Call, Effect, Json

NO_PLAN_S: Final = 1.0  # seconds for which it is remembered that there is no plan for a head
_NAMED_CALL: Final = frozenset({"name", "arguments"})  # arguments of `call_tool` and `read_tool`


class HeadPlan(msgspec.Struct, frozen=True, gc=False):
    """Plan for calls whose requests have one HTTP head: of one principal, to one tool of one endpoint."""

    plan: Plan | None  # None for `call_tool` and `read_tool`: the body of each request names the tool
    principal: Principal
    endpoint: str
    view: EndpointView
    tool_filter: ToolFilter | None  # of the endpoint, if it is a group
    views_version: int
    routing: RoutingHeaders
    reader: CallReader


class ClientFlights:
    """Begins flights for the requests of modern HTTP clients."""

    def __init__(
        self,
        hub: HubCore,
        router: Router,
        authenticator: Authenticator,
        dispatcher: RequestDispatcher,
        modern: ModernEndpoint,
    ) -> None:
        self.hub = hub
        self.router = router
        self.dispatcher = dispatcher
        self.modern = modern
        self._authenticator = authenticator

    def begin(self, exchange: Exchange) -> bool:
        """Send the call of a request. Return False if the router must handle the request: then nothing was done."""
        request, router = exchange.request, self.router
        notes = request.notes
        authenticated: AuthenticatedRequest | None = notes.authenticated
        if (
            authenticated is None
            or notes.routing is None
            or router.rejects_new_requests
            or len(request.body) > MAX_LIGHT_BYTES
            or authenticated.auth_version != self._authenticator.version
        ):
            return False
        planned = notes.plan
        if type(planned) is not HeadPlan or not self._is_valid(planned, authenticated):
            planned = self._find_plan(request, authenticated)
            if planned is None:
                return False
        call = planned.reader.read(request.body)
        if call is None:
            return False
        plan = planned.plan
        if plan is None:
            named = self._find_named(planned, call)
            if named is None:
                return False
            plan, call = named
        if not router.add_active(planned.principal, exchange):
            return False
        exchange.request_id = router.new_request_id()
        flight = ClientFlight(self, planned, plan, exchange, call)
        if not flight.begin(call.meta.capabilities):
            router.remove_active(planned.principal, exchange)
            return False
        if planned.plan is None:
            self.dispatcher.search_tools.count_call(planned.routing.name or "")
        exchange.mark_authenticated()
        exchange.on_disconnect = exchange.on_cancel = flight.left
        return True

    def _is_valid(self, planned: HeadPlan, authenticated: AuthenticatedRequest) -> bool:
        """Return True if nothing has changed that the plan of a head depends on."""
        router = self.router
        return (
            planned.principal is authenticated.principal
            and planned.views_version == router.views_version
            and (planned.tool_filter is None or router.filter_of_group(planned.endpoint) is planned.tool_filter)
            and (planned.plan is None or planned.plan.is_valid())
        )

    def _find_plan(self, request: HttpRequest, authenticated: AuthenticatedRequest) -> HeadPlan | None:
        """Return a new plan for a head. If there is none, that is remembered for a second."""
        notes = request.notes
        if isinstance(notes.plan, float) and self.hub.flights.now() < notes.plan:
            return None
        planned = self._create_plan(request, authenticated)
        notes.plan = planned if planned is not None else self.hub.flights.now() + NO_PLAN_S
        return planned

    def _create_plan(self, request: HttpRequest, authenticated: AuthenticatedRequest) -> HeadPlan | None:
        principal, endpoint, routing = authenticated.principal, authenticated.endpoint, request.notes.routing
        if (
            endpoint is None
            or request.method != "POST"
            or request.headers.get("content-type") != JSON_TYPE
            or authenticated.response_headers
            or principal.is_node
            or principal.rate is not None
            or routing.method != "tools/call"
            or routing.idempotency_key is not None
        ):
            return None
        view = self.router.view_for(principal, endpoint)
        if view is None or view.needs_preparation:
            return None
        plan = None
        if not view.has_search or routing.name not in (CALL_TOOL, READ_TOOL):
            tool = view.find_item("tools", routing.name)
            plan = self.hub.find_plan(tool, principal.caller_id) if isinstance(tool, Tool) else None
            if plan is None:
                return None
        tool_filter = self.router.filter_of_group(endpoint)
        if tool_filter is None and endpoint not in ("", SEARCH_ENDPOINT) and not endpoint.startswith("server/"):
            return None
        return HeadPlan(
            plan, principal, endpoint, view, tool_filter, self.router.views_version, routing, CallReader(routing)
        )

    def _find_named(self, planned: HeadPlan, call: ClientCall) -> tuple[Plan, ClientCall] | None:
        """Return the plan and the arguments of the call that `call_tool` or `read_tool` means.

        None if the router must handle it: the tool has no plan, or something about the request is not usual.
        """
        given, view = call.arguments, planned.view
        if given.keys() != _NAMED_CALL or view.needs_preparation:
            return None
        name, arguments = given["name"], given["arguments"]
        tool = view.find_item("tools", name)
        if not isinstance(tool, Tool) or type(arguments) is not dict:
            return None
        if planned.routing.name == READ_TOOL and self.hub.tool_effect(tool) is not Effect.READ:
            return None
        plan = self.hub.find_plan(tool, planned.principal.caller_id)
        return (plan, ClientCall(call.id, arguments, call.meta, name)) if plan is not None else None


class ClientFlight(Flight):
    """Flight of one call of a modern HTTP client."""

    __slots__ = ("_call", "_http", "_owner", "_planned")

    def __init__(self, owner: ClientFlights, planned: HeadPlan, plan: Plan, http: Exchange, call: ClientCall) -> None:
        Flight.__init__(self, owner.hub.flights, plan, call.arguments, http.request_id, call.meta.extra)
        self._owner = owner
        self._planned = planned
        self._http = http
        self._call = call
        self.request_bytes = len(http.request.body)

    def land(self, result: Json, frame: bytes, id: int) -> None:
        http = self._http
        self._owner.router.remove_active(self._planned.principal, http)
        http.on_disconnect = http.on_cancel = None
        received = jsonrpc.slice_result(frame, id) if frame else None
        raw = finalize_raw_result("modern", result, received) if received is not None else None
        prefix = b'{"jsonrpc":"2.0","id":%b,"result":' % self._call.id
        if raw is not None:
            http.reply_json((prefix, raw.received, raw.suffix))
        else:
            http.reply_json((prefix, jsonrpc.encode_json(finalize_result("modern", result)), b"}"))
        if self._planned.plan is None:
            self._owner.dispatcher.search_tools.on_result(self._planned.principal.id, self.plan.tool, result)

    def left(self) -> None:
        """Let the pipeline take over and be cancelled: the client has gone, or the gateway shuts down."""
        task = self._take_over_in_task()
        if task is not None:
            asyncio.get_running_loop().call_soon(task.cancel)  # after its first step, so that it can clean up

    def _take_over_in_task(self) -> asyncio.Task[None] | None:
        taken = self.take_over()
        return taken.task if taken is not None else None

    def build_call(self) -> Call:
        params = {**self.params, "_meta": self._call.meta.value}
        return self._owner.dispatcher.build_sent_call(self._build_context(), params, self.plan.tool)

    def hand_over(self, taken: TakenOverCall) -> None:
        context = self._build_context()
        http, principal = self._http, self._planned.principal

        def on_done(_: asyncio.Task[None]) -> None:
            taken.discard()
            self._owner.router.remove_active(principal, http)

        if self._planned.plan is None:
            context.found_by_search = self.plan.tool
        taken.task = http.run(lambda exchange: self._owner.modern.resume(exchange, context, taken))
        taken.task.add_done_callback(on_done)

    def _build_context(self) -> RequestContext:
        planned, call = self._planned, self._call
        context = RequestContext(
            planned.principal,
            planned.view,
            planned.endpoint,
            "modern",
            call.meta.capabilities,
            request_id=jsonrpc.decode_json(call.id),
            version=planned.routing.version or "",
            requested_name=call.named or planned.routing.name or "",
        )
        context.set_ids(self._http)
        return context
