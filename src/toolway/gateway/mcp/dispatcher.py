"""Dispatches client requests to the hub, across eras.

Names, handles, and input rounds are translated; everything else passes unchanged.

Only this module bridges the two eras of clients and the two eras of servers:

    modern client, modern server      `input_required` passes through; its state is sealed for this client
    modern client, legacy server      a server request suspends the call; the client's retry resumes it
    legacy client, modern server      the session answers `input_required` by a request to the client, and retries
    legacy client, legacy server      a server request becomes our request to the client
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from toolway._async import run_in_slices
from toolway.catalog.catalog import Tool
from toolway.catalog.tool_access import PIN_NOT_STORED, denied_error
from toolway.config.schema import passes_vendor_method
from toolway.errors import CallError, ProtocolError
from toolway.events import ListKind
from toolway.gateway.authenticator import ThrottleLog
from toolway.gateway.cluster_hooks import NO_CLUSTER, ClusterHooks
from toolway.gateway.legacy_schemas import adapt_result
from toolway.gateway.limits import BoundLimit, CallLimits
from toolway.gateway.mcp import errors
from toolway.gateway.mcp.context import RequestContext, get_meta, name_input_requests, supports_server_request
from toolway.gateway.mcp.errors import TIMEOUT_META_KEY, RpcFailure
from toolway.gateway.mcp.pending_input import (
    PENDING_TIMEOUT_S,
    NoCallbacks,
    NotificationForwarder,
    PendingCall,
    PendingCalls,
    missing_capability_failure,
)
from toolway.gateway.mcp.responses import RpcResult, finalize_raw_result, finalize_result
from toolway.gateway.mcp.view import EndpointView, ListWaiter
from toolway.gateway.meta_tools import MetaToolSet
from toolway.gateway.near_names import find_near_names
from toolway.gateway.permissions import PrincipalAccess
from toolway.gateway.principals import Principal
from toolway.gateway.rate_limit import Rate, RateLimiter
from toolway.gateway.sealing import ClientHandles, Sealer
from toolway.hub.core import HubCore
from toolway.hub.taken_over import TakenOverCall
from toolway.middleware.approval import ANSWER_KEY, ASKER, ApprovalReply, ApprovalResult
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
)
from toolway.protocol.headers import check_param_headers
from toolway.protocol.jsonrpc import RawResult
from toolway.protocol.null_arguments import drop_nulls
from toolway.protocol.versions import LIST_METHODS
from toolway.types import Call, CallResult, Certainty, ClientCallbacks, Era, Json, ToolResult

IDEMPOTENCY_META_KEY: Final = "toolway/idempotencyKey"
MAX_TASK_ID_CHARS: Final = 4096  # characters of a task id; one that another node has sealed is longer than its own
ARGUMENT_RESULTS_SINCE: Final = "2025-11-25"  # first revision in which wrong arguments are an error of the tool
LIST_TTL_MS: Final = 60_000  # milliseconds a client may cache a list; subscribers are notified of changes
INCOMPLETE_LIST_TTL_MS: Final = 1000  # milliseconds, for a list that lacks a server which has not listed its items yet
_GATEWAY_META_KEYS: Final = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        LOG_LEVEL_META_KEY,
        "progressToken",
        TIMEOUT_META_KEY,
        IDEMPOTENCY_META_KEY,
    }
)
_KIND_BY_LIST_METHOD: Final[Mapping[str, ListKind]] = {method: kind for kind, (_, method, _) in LIST_METHODS.items()}
_TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

GetBinding = Callable[[], tuple[str, ...]]


class RequestDispatcher:
    """Answers MCP requests from modern and legacy clients by calling servers through the hub."""

    def __init__(
        self,
        hub: HubCore,
        sealer: Sealer,
        pending_calls: PendingCalls,
        rate_limiter: RateLimiter,
        limits: CallLimits,
        cluster: ClusterHooks = NO_CLUSTER,
        drops_nulls: Callable[[], bool] = lambda: False,
    ) -> None:
        self._mask = hub.mask
        self._calls = hub.calls
        self._catalog = hub.lists.catalog
        self._servers = hub.servers
        self.drops_nulls = drops_nulls  # of arguments that a client did not mean to give
        #: OAuth scopes that the token of a principal lacks for a call of `server.tool`
        self.missing_scopes: Callable[[Principal, str], Sequence[str]] = lambda principal, tool: ()
        self.rate_limiter = rate_limiter
        self.limits = limits
        self._throttle_log = ThrottleLog(hub.emit)
        self._handles = ClientHandles(sealer)
        self._pending_calls = pending_calls
        self._cluster = cluster
        self.lists = ListWaiter(hub.servers, hub.lists)
        self._call_id_prefix = secrets.token_hex(4)  # begins the ids of our calls
        self._call_numbers = itertools.count(1)
        self.shutting_down = False  # during shutdown a cancelled request gets an error instead of no response

    def on_servers_changed(self) -> None:
        """Because the servers changed, let list requests wait for servers that are starting, for a short time."""
        self.lists.start_window()

    def dispatch(self, context: RequestContext, method: str, params: Json) -> Coroutine[Any, Any, RpcResult]:
        """Return the coroutine that computes the result of an MCP request.

        Raises `RpcFailure` if the method is unknown; the coroutine raises it if the request fails.
        """
        if method in ("tools/call", "tools/list") and context.view.needs_preparation:
            return self._dispatch_prepared(context, method, params)
        if context.view.needs_decisions:
            return self._dispatch_decided(context, method, params)
        return self._dispatch(context, method, params)

    def _dispatch(self, context: RequestContext, method: str, params: Json) -> Coroutine[Any, Any, RpcResult]:
        if method == "tools/call":
            return self._call_tool(context, params)
        if method in _KIND_BY_LIST_METHOD:
            return self._list_items(context, _KIND_BY_LIST_METHOD[method], params)
        if method == "resources/read":
            return self._read_resource(context, params)
        if method == "prompts/get":
            return self._get_prompt(context, params)
        if method == "completion/complete":
            return self._complete_argument(context, params)
        if method in _TASK_METHODS and context.era == "modern":
            return self._forward_task(context, method, params)
        server = self._vendor_server(context, method)
        if server is not None:
            return self._forward(context, method, params, server, method, keep_raw=True)
        raise RpcFailure(METHOD_NOT_FOUND, f"unknown method {_shorten(method)!r}")

    def _vendor_server(self, context: RequestContext, method: str) -> str | None:
        """Return the server for a method that MCP does not define, or None if there is none.

        It is the endpoint's server, if its entry names the method and the principal may use the whole server.
        """
        server = context.view.whole_server
        entry = self._servers.entries.get(server) if server is not None else None
        if server is None or entry is None or not passes_vendor_method(method, entry.vendor_methods):
            return None
        is_missing = context.forwarded is None and self.missing_scopes(context.principal, f"{server}.{method}")
        return None if is_missing else server

    async def notify(self, context: RequestContext, method: str, params: Json) -> None:
        """Forward a notification that MCP does not define to the endpoint's server, if that is allowed.

        The client gets no answer, even if the notification is rejected.
        """
        server = self._vendor_server(context, method)
        if server is not None:
            with suppress(RpcFailure):
                await self._forward(context, method, params, server, method, keep_raw=False, is_notification=True)

    async def _dispatch_prepared(self, context: RequestContext, method: str, params: Json) -> RpcResult:
        """Build the tool list in slices, so other requests are served in between, then answer the request."""
        await context.view.prepare()
        if method == "tools/call":
            return await self._call_tool(context, params)
        return await self._list_items(context, "tools", params)

    async def _dispatch_decided(self, context: RequestContext, method: str, params: Json) -> RpcResult:
        """Let the policy decide, in a thread, which items the principal may see, then answer the request."""
        await context.view.prepare()
        return await self._dispatch(context, method, params)

    # -- lists --------------------------------------------------------------------------------------------------------

    async def _list_items(self, context: RequestContext, kind: ListKind, params: Json) -> RpcResult:
        complete = await self.lists.wait_for_lists(context.view, kind)
        try:
            return RawResult(_encode_list(context.view, kind, params.get("cursor"), context.era, complete), b"}")
        except ValueError as exc:
            raise RpcFailure(INVALID_PARAMS, f"invalid cursor: {exc}") from None

    def encode_tools(self, view: EndpointView) -> memoryview | None:
        """Return the first page of `tools/list` for a modern client, or None if the list is incomplete."""
        if view.needs_preparation or not view.is_complete("tools"):
            return None
        return _encode_list(view, "tools", None, "modern", True)

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call_tool(self, context: RequestContext, params: Json) -> Coroutine[Any, Any, RpcResult]:
        work = self._call_named(context, params)
        if not _takes_argument_results(context):
            return work
        return self._explain_arguments(context, str(params.get("name")), work)

    async def _explain_arguments(
        self, context: RequestContext, name: str, work: Coroutine[Any, Any, RpcResult]
    ) -> RpcResult:
        """Await a tool call's result. If its arguments are wrong, explain that in a result, for a model to read."""
        try:
            return await work
        except RpcFailure as failure:
            tool = context.view.find_item("tools", name) if errors.is_argument_failure(failure) else None
            if not isinstance(tool, Tool):
                raise
            schema = context.view.definition(name, tool)["inputSchema"]
            return finalize_result(context.era, errors.argument_result(failure, name, schema))

    def _call_named(self, context: RequestContext, params: Json) -> Coroutine[Any, Any, RpcResult]:
        tool = context.view.find_item("tools", params.get("name"))
        if not isinstance(tool, Tool):
            meta_tools, name = context.view.meta_tools, params.get("name")
            if meta_tools is not None and isinstance(name, str) and name in meta_tools.definitions:
                return self._call_meta_tool(context, params, meta_tools)
            denied = context.view.find_denied(params.get("name"))
            if denied is not None and denied[1] != PIN_NOT_STORED:
                raise errors.failure_from_error(denied_error(*denied), "", context.era)
            return self._call_when_listed(context, params)
        return self._call_item(context, params, tool)

    async def _call_meta_tool(self, context: RequestContext, params: Json, meta_tools: MetaToolSet) -> RpcResult:
        """Answer a call to a meta-tool. If the meta-tool calls another tool, the call becomes a call to that tool."""
        if params["name"] not in meta_tools.callers:
            result = await meta_tools.answer(context, params["name"], params.get("arguments"))
            return finalize_result(context.era, result)
        unwrapped = meta_tools.unwrap(context, params)
        if isinstance(unwrapped, dict):
            return finalize_result(context.era, unwrapped)
        params, tool = unwrapped
        try:
            if tool is not None:
                response = await self._call_item(context, params, tool)
                meta_tools.on_result(context.principal.id, tool, response)
                return response
            return await self._call_unlisted(context, params, meta_tools)
        except RpcFailure as failure:
            explained = meta_tools.explain_failure(context, params, failure)
            if explained is None:
                raise
            return finalize_result(context.era, explained)

    async def _call_unlisted(self, context: RequestContext, params: Json, meta_tools: MetaToolSet) -> RpcResult:
        """Answer a meta-tool's call to a tool in no list: a denied one, an unknown one, or one on a starting server."""
        name, view = params["name"], context.view
        if view.find_denied(name) is None:
            ref = view.ref_for(name)
            if ref is None or self._catalog.has_list(ref.server, "tools"):
                self._report_hidden(context, "tools", name)
                return finalize_result(context.era, await meta_tools.explain_unknown(context, params))
        return await self._call_named(context, params)

    async def _call_when_listed(self, context: RequestContext, params: Json) -> RpcResult:
        """Call a tool on a server that is still starting, once the server has listed its tools.

        The time spent waiting counts against the call's timeout.
        """
        timeout = _to_seconds(get_meta(params).get(TIMEOUT_META_KEY))
        clock = asyncio.get_running_loop().time
        started_at = clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.lists.find_item(context.view, "tools", params.get("name"))
        if timeout is not None:
            left = max(0.0, timeout - (clock() - started_at))
            params = {**params, "_meta": {**get_meta(params), TIMEOUT_META_KEY: left * 1000}}
        tool = context.view.find_item("tools", params.get("name"))
        if tool is None and (failed := await context.view.own_list_error("tools", params.get("name"))) is not None:
            raise errors.failure_from_error(failed, "", context.era)
        if tool is None and (denied := context.view.find_denied(params.get("name"))) is not None:
            raise errors.failure_from_error(denied_error(*denied), "", context.era)
        server = context.view.server_of_call(params.get("name")) if tool is None else None
        if server is not None and (down := self._servers.unavailable_error(server)) is not None:
            raise errors.mask_failure(errors.failure_from_error(down, "", context.era), self._mask)
        if not isinstance(tool, Tool):
            self._report_hidden(context, "tools", params.get("name"))
            raise _unknown_tool(params, await self._near_names(context.view, params.get("name")))
        return await self._call_item(context, params, tool)

    async def _near_names(self, view: EndpointView, name: object) -> list[str]:
        """Return names similar to an unknown one, among tools that the client may see."""
        if not isinstance(name, str):
            return []
        await view.prepare()
        return await run_in_slices(find_near_names(name, view.items("tools")))

    def _call_item(self, context: RequestContext, params: Json, tool: Tool) -> Coroutine[Any, Any, RpcResult]:
        arguments = params.get("arguments", {})
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcFailure(INVALID_PARAMS, "arguments must be an object")
        if context.headers is not None and tool.has_header_params:
            _check_param_headers(tool, arguments or {}, context.headers)
        context.requested_name = params["name"]
        if context.forwarded is None:  # else the node that forwards it has checked it
            missing = self.missing_scopes(context.principal, f"{tool.server}.{tool.name}")
            if missing:
                raise RpcFailure(errors.DENIED, f"the token lacks the scope {' '.join(missing)}", {"executed": "no"})
        permission = context.view.permission
        if permission is not None and not permission.allows_call(tool, arguments or {}):
            permission.report_call(context.principal, tool, arguments or {})
            raise _unknown_tool(params)
        if arguments and self.drops_nulls():
            arguments = drop_nulls(arguments, tool.input_schema)
        upstream_params = {**params, "name": tool.name, "arguments": arguments or {}}
        return self._forward(context, "tools/call", upstream_params, tool.server, tool.name, keep_raw=True)

    def _report_hidden(self, context: RequestContext, kind: ListKind, name: object) -> None:
        """Report to the audit log that a client named an item that only the policy hides.

        The client is not informed.
        """
        permission, item = context.view.permission, context.view.find_hidden(kind, name)
        if permission is not None and item is not None:
            permission.report_hidden(context.principal, kind, item)

    async def _read_resource(self, context: RequestContext, params: Json) -> Json:
        uri = params.get("uri")
        server, upstream_uri = await self._find_resource(context, uri)
        result = await self._forward_decoded(
            context, "resources/read", {**params, "uri": upstream_uri}, server, upstream_uri
        )
        if context.era == "modern" and result.get("resultType") == "complete":
            result = {"ttlMs": 0, "cacheScope": "private", **result}
        return result

    async def _find_resource(self, context: RequestContext, uri: object) -> tuple[str, str]:
        """Return the server that has a resource URI or URI template, and the URI at that server.

        Raises `RpcFailure` unless exactly one server has it, because a request must not reach the wrong server.
        """
        for kind in ("resources", "templates"):
            await self.lists.wait_for_lists(context.view, kind)
        found = context.view.server_for_uri(uri) if isinstance(uri, str) else None
        if found is None:
            if context.view.permission is not None and isinstance(uri, str):
                self._report_unread(context, context.view.permission, uri)
            qualified = context.view.qualified_uris(uri)
            message = f"Unknown resource: {_shorten(uri)}"
            if qualified:
                message = f"Ambiguous resource: several servers have {_shorten(uri)}; use {' or '.join(qualified)}"
            raise RpcFailure(INVALID_PARAMS, _shorten(message, 1000), {"uri": uri})
        return found

    def _report_unread(self, context: RequestContext, permission: PrincipalAccess, uri: str) -> None:
        """Report to the audit log that a client requested a resource that only the policy denies."""
        found = context.view.locate_uri(uri)
        if found is not None and not permission.allows_read(*found):
            permission.report_read(context.principal, *found)

    async def _get_prompt(self, context: RequestContext, params: Json) -> Json:
        prompt = await self.lists.find_item(context.view, "prompts", params.get("name"))
        if prompt is None:
            self._report_hidden(context, "prompts", params.get("name"))
            raise RpcFailure(INVALID_PARAMS, f"Unknown prompt: {_shorten(params.get('name'))}")
        return await self._forward_decoded(
            context, "prompts/get", {**params, "name": prompt.name}, prompt.server, prompt.name
        )

    async def _complete_argument(self, context: RequestContext, params: Json) -> Json:
        ref = params.get("ref")
        ref = ref if isinstance(ref, dict) else {}
        if ref.get("type") == "ref/prompt":
            prompt = await self.lists.find_item(context.view, "prompts", ref.get("name"))
            if prompt is None:
                self._report_hidden(context, "prompts", ref.get("name"))
                raise RpcFailure(INVALID_PARAMS, f"Unknown prompt: {_shorten(ref.get('name'))}")
            server, name, ref = prompt.server, prompt.name, {**ref, "name": prompt.name}
        else:
            server, name = await self._find_resource(context, ref.get("uri"))
            ref = {**ref, "uri": name}
        return await self._forward_decoded(context, "completion/complete", {**params, "ref": ref}, server, name)

    async def _forward_decoded(
        self, context: RequestContext, method: str, params: Json, server: str, name: str
    ) -> Json:
        """Forward one request to a server through the hub; return the result as a dict."""
        result = await self._forward(context, method, params, server, name, keep_raw=False)
        assert isinstance(result, dict)
        return result

    def _forward(
        self,
        context: RequestContext,
        method: str,
        params: Json,
        server: str,
        name: str,
        *,
        keep_raw: bool,
        is_notification: bool = False,
    ) -> Coroutine[Any, Any, RpcResult]:
        """Return the coroutine that forwards one request to a server, within its principal's limits."""
        if is_notification:
            work = self._forward_notification(context, method, params, server)
        else:
            work = self._forward_now(context, method, params, server, name, keep_raw=keep_raw)
        principal = context.principal
        if self.limits.concern(principal) and context.forwarded is None:  # else the forwarding node has charged it
            return self._run_limited(context, _run_in(self.limits.bind(principal, f"{server}.{name}"), method, work))
        return work

    async def _run_limited(self, context: RequestContext, work: Coroutine[Any, Any, RpcResult]) -> RpcResult:
        """Return the result of `work`. If a limit raises an error, that becomes the request's error."""
        try:
            return await work
        except CallError as exc:
            raise self._failure(exc, "", context) from None

    async def run_in_limits(self, principal: Principal, target: str, work: Coroutine[Any, Any, Json]) -> None:
        """Run a call to the tool `target` that is not an MCP request, within its principal's limits.

        `work` returns the result. Raises `RpcFailure` if a limit is reached, and the errors of `work`.
        """
        try:
            if principal.rate is not None:
                self._check_rate(principal, principal.rate)
            await _run_in(self.limits.bind(principal, target), "tools/call", work)
        finally:
            work.close()

    async def _forward_notification(self, context: RequestContext, method: str, params: Json, server: str) -> RpcResult:
        if context.principal.rate is not None:
            self._check_rate(context.principal, context.principal.rate)
        call, _ = self._build_call(context, method, params, server, method, may_suspend=False, keep_raw=False)
        call = msgspec.structs.replace(call, is_notification=True, max_attempts=1)
        return await self._complete(context, call, self._calls.request(call), tuple)

    async def _forward_now(
        self, context: RequestContext, method: str, params: Json, server: str, name: str, *, keep_raw: bool
    ) -> RpcResult:
        """Forward one request to a server through the hub, adapted to the eras of client and server.

        The result may be raw bytes if `keep_raw` is True. Raises `RpcFailure` if the call fails.
        """
        era = self._era_of(server)
        may_suspend = context.era == "modern" and era in (None, "legacy")  # it may send requests

        def get_binding() -> tuple[str, ...]:
            return _state_binding(context, method, server, params)

        upstream_params, approval = params, None
        if "requestState" in params:
            kind, value = self._open_state(params["requestState"], get_binding())
            if kind == "parked" and (value in self._pending_calls or not self._cluster.is_remote(server)):
                return await self._resume(context, value, get_binding, params)
            if kind in ("question", "approved"):
                upstream_params, approval = _split_answer(params, value, is_question=kind == "question")
            else:
                # A state from another node is sealed by that node too: it reads the state itself.
                upstream_params = {**params, "requestState": value} if not self._cluster.is_remote(server) else params
                may_suspend = False  # only a modern server returns a state, on any node
        if context.principal.rate is not None:
            self._check_rate(context.principal, context.principal.rate)
        call, forwarder = self._build_call(
            context, method, upstream_params, server, name, may_suspend=may_suspend, keep_raw=keep_raw
        )
        if approval is not None:
            call = msgspec.structs.replace(call, approval=approval)
        if may_suspend:
            assert forwarder is not None
            if context.accepts_server_requests or "inputResponses" in upstream_params or era is None:
                return await self._start_pending(context, call, forwarder, get_binding)
            call = msgspec.structs.replace(call, callbacks=NoCallbacks())
        return await self._complete(context, call, self._calls.request(call), get_binding)

    def _era_of(self, server: str) -> Era | None:
        """Return a server's era, or the last known one, or None if it is not known.

        It is not known for a server that has just moved to this node. Its session is still with the node that it
        left, and nodes speak the modern era among themselves.
        """
        if self._servers.is_with_peer(server) and not self._cluster.is_remote(server):
            return None
        return self._servers.era(server)

    def build_sent_call(self, context: RequestContext, params: Json, tool: Tool) -> Call:
        """Return the `Call` for a tool call that was sent as a flight (flights.py).

        It is the same call that `dispatch` would build.
        """
        may_suspend = context.era == "modern" and self._servers.era(tool.server) == "legacy"
        call, forwarder = self._build_call(
            context, "tools/call", params, tool.server, tool.name, may_suspend=may_suspend, keep_raw=True
        )
        if not may_suspend:
            return call
        assert forwarder is not None
        callbacks: ClientCallbacks = NoCallbacks()
        if context.accepts_server_requests:
            callbacks = PendingCall(forwarder, context.capabilities, supports_server_request)
        return msgspec.structs.replace(call, callbacks=callbacks)

    def resume(self, context: RequestContext, taken: TakenOverCall) -> Coroutine[Any, Any, RpcResult]:
        """Return the coroutine that awaits the result of a tool call that was sent as a flight (flights.py).

        It raises `RpcFailure` if the call fails.
        """
        work = self._resume_flight(context, taken)
        if not _takes_argument_results(context):
            return work
        return self._explain_arguments(context, context.requested_name, work)

    async def _resume_flight(self, context: RequestContext, taken: TakenOverCall) -> RpcResult:
        call = taken.call

        def get_binding() -> tuple[str, ...]:
            return _state_binding(context, call.method, call.server, call.params)

        if isinstance(call.callbacks, PendingCall):
            call.callbacks.start(call, taken.resume())
            return await self._wait_pending(context, call.callbacks, get_binding)
        return await self._complete(context, call, taken.resume(), get_binding)

    async def _complete(
        self,
        context: RequestContext,
        call: Call,
        work: Coroutine[Any, Any, CallResult],
        get_binding: GetBinding,
    ) -> RpcResult:
        """Await a call's result and translate it for the client. Raises `RpcFailure` if the call fails."""
        no_callbacks = call.callbacks if isinstance(call.callbacks, NoCallbacks) else None
        try:
            result = await work
        except CallError as exc:
            if no_callbacks is not None and no_callbacks.missing_capabilities and isinstance(exc, ProtocolError):
                raise missing_capability_failure(no_callbacks.missing_capabilities, exc.detail) from None
            raise self._failure(exc, call.id, context) from None
        except asyncio.CancelledError:
            if self.shutting_down:
                raise errors.shutdown_failure(call) from None
            raise
        if no_callbacks is not None and no_callbacks.missing_capabilities and result.is_error:
            raise missing_capability_failure(no_callbacks.missing_capabilities, result.text)
        return self._translate_result(context, result, get_binding)

    def _failure(self, error: CallError, call_id: str, context: RequestContext) -> RpcFailure:
        return errors.mask_failure(errors.failure_from_error(error, call_id, context.era), self._mask)

    def _check_rate(self, principal: Principal, rate: Rate) -> None:
        """Charge one call to the rate limit of the principal's API key.

        Raises `RpcFailure` if the limit is exceeded.
        """
        wait = self.rate_limiter.try_acquire(principal.id, rate)
        if wait > 0:
            self._throttle_log.add(principal.id, rate)
            raise errors.rate_limit_failure(rate, wait)

    def _build_call(
        self,
        context: RequestContext,
        method: str,
        params: Json,
        server: str,
        name: str,
        *,
        may_suspend: bool,
        keep_raw: bool,
    ) -> tuple[Call, NotificationForwarder | None]:
        """Return the call to send, and a forwarder if the call's notifications may go to the client."""
        meta = get_meta(params)
        upstream_params = params.copy()
        upstream_params.pop("_meta", None)
        if not meta.keys() <= _GATEWAY_META_KEYS:
            upstream_params["_meta"] = {key: value for key, value in meta.items() if key not in _GATEWAY_META_KEYS}
        key, forwarder, forwarded = meta.get(IDEMPOTENCY_META_KEY, context.idempotency_key), None, context.forwarded
        wants_log = context.log_level is not None or context.logs_without_level
        if may_suspend or wants_log or "progressToken" in meta:
            forwarder = NotificationForwarder(context, meta)
        state = self._calls.new_call_state(keep_raw=keep_raw, forwarded=forwarded is not None)
        state.request_id = context.client_request_id
        if forwarded is not None:
            state.request_id, state.approved_by = forwarded.client_request_id, forwarded.approved_by
        call = Call(
            f"{server}.{name}" if method == "tools/call" else name,
            method,
            upstream_params,
            server,
            name,
            _to_seconds(meta[TIMEOUT_META_KEY]) if TIMEOUT_META_KEY in meta else None,
            # A client that must give input calls again; that second request may want progress too.
            on_progress=forwarder.forward_progress
            if forwarder and ("progressToken" in meta or (may_suspend and context.accepts_server_requests))
            else None,
            on_log=forwarder.forward_log if forwarder and wants_log else None,
            log_level=context.log_level,
            idempotency_key=key if isinstance(key, str) else None,
            caller=context.principal.caller_id,
            callbacks=context.callbacks,
            capabilities=context.capabilities,
            return_input_required=context.era == "modern",
            state=state,
            id=(forwarded.call_id if forwarded is not None else context.call_id)
            or f"{self._call_id_prefix}{next(self._call_numbers):x}",
            max_attempts=None if forwarded is None else 1,  # the forwarding node decides about retries
            downstream=context,
            forwarded=forwarded is not None,
        )
        return call, forwarder

    def _translate_result(
        self, context: RequestContext, upstream_result: CallResult, get_binding: GetBinding
    ) -> RpcResult:
        result = upstream_result.raw
        kind = result.get("resultType", "complete")
        if context.era == "legacy" and "structuredContent" in result and isinstance(upstream_result, ToolResult):
            tool = self._catalog.find_tool(upstream_result.server, upstream_result.name)
            result = adapt_result(result, tool.raw if tool is not None else None, context.era)
        if kind == "complete" and upstream_result.raw_bytes is not None and result is upstream_result.raw:
            raw = finalize_raw_result(context.era, result, upstream_result.raw_bytes)
            if raw is not None:
                return raw
        elif kind == "input_required" and context.era == "modern":
            if isinstance(upstream_result, ApprovalResult):
                return finalize_result(context.era, self._seal_approval(upstream_result, get_binding()))
            result = name_input_requests(upstream_result.server, result)
            state = result.get("requestState")
            if isinstance(state, str) and self._handles.open_state(state, get_binding()) is None:
                sealed = self._handles.seal_state("upstream", state, get_binding(), PENDING_TIMEOUT_S)
                result = {**result, "requestState": sealed}
        elif kind == "task":
            task_id = result.get("taskId")
            is_sealed = self._cluster.is_remote(upstream_result.server)  # its owner has checked and sealed the id
            if not isinstance(task_id, str) or not (is_sealed or 0 < len(task_id) <= MAX_TASK_ID_CHARS):
                raise errors.failure_from_error(_invalid_task_error(upstream_result), "", context.era)
            task_id = self._handles.seal_task_id(upstream_result.server, task_id, _owner(context))
            result = {**name_input_requests(upstream_result.server, result), "taskId": task_id}
        return finalize_result(context.era, result)

    def _seal_approval(self, found: ApprovalResult, binding: tuple[str, ...]) -> Json:
        """Return the result that asks a client for an approval, or for input that an approved call's server needs.

        Its state, which the client sends back, is encrypted, bound to the call, and usable only once.
        """
        result = name_input_requests(ASKER if found.is_question else found.server, found.raw)
        kind = "question" if found.is_question else "approved"
        state = self._handles.seal_state(kind, found.approval_state, binding, PENDING_TIMEOUT_S)
        return {**result, "requestState": state}

    # -- input rounds -------------------------------------------------------------------------------------------------

    async def _start_pending(
        self, context: RequestContext, call: Call, forwarder: NotificationForwarder, get_binding: GetBinding
    ) -> RpcResult:
        """Start a call that may need client input; return its result, or the first request for input.

        A legacy server requests input with a request in the middle of the call. If the server's era is unknown, its
        result may request input as well.
        """
        pending = PendingCall(
            forwarder, context.capabilities, supports_server_request, call.params.get("inputResponses")
        )
        params = call.params
        if self._servers.era(call.server) == "legacy":
            params = {key: value for key, value in params.items() if key != "inputResponses"}
        call = msgspec.structs.replace(call, callbacks=pending, params=params)
        pending.start(call, self._calls.request(call))
        return await self._wait_pending(context, pending, get_binding)

    async def _wait_pending(self, context: RequestContext, pending: PendingCall, get_binding: GetBinding) -> RpcResult:
        """Wait until the server returns a result or requests client input.

        If the server requests input, suspend the call and return the input request to the client.
        """
        try:
            found = await pending.wait_next()
        except CallError as exc:
            raise self._failure(exc, pending.call.id, context) from None
        except asyncio.CancelledError:
            if self.shutting_down:
                raise errors.shutdown_failure(pending.call) from None
            raise
        if isinstance(found, CallResult):
            return self._translate_result(context, found, get_binding)
        id_ = self._pending_calls.suspend(pending, get_binding())
        state = self._handles.seal_state("parked", id_, get_binding(), PENDING_TIMEOUT_S)
        return finalize_result(
            context.era, {"resultType": "input_required", "inputRequests": found, "requestState": state}
        )

    async def _resume(self, context: RequestContext, id_: str, get_binding: GetBinding, params: Json) -> RpcResult:
        pending = self._pending_calls.resume(id_, get_binding())
        if pending is None:
            raise RpcFailure(INVALID_PARAMS, "no suspended call for this requestState", {"executed": "unknown"})
        pending.forwarder.attach(context, get_meta(params))
        pending.add_responses(params.get("inputResponses"))
        return await self._wait_pending(context, pending, get_binding)

    def _open_state(self, state: object, binding: tuple[str, ...]) -> tuple[str, str]:
        found = self._handles.open_state(state, binding)
        if found is None:
            raise RpcFailure(INVALID_PARAMS, "requestState is expired or belongs to another call")
        return found

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _forward_task(self, context: RequestContext, method: str, params: Json) -> Json:
        sealed_id = params.get("taskId")
        server, task_id = self.open_task_id(context, sealed_id)
        result = await self._forward_decoded(context, method, {**params, "taskId": task_id}, server, task_id)
        result = name_input_requests(server, result)
        return {**result, "taskId": sealed_id} if "taskId" in result else result

    def open_task_id(self, context: RequestContext, sealed_id: object) -> tuple[str, str]:
        """Open a sealed task id of this principal. Return (server, the server's own task id).

        Raises `RpcFailure` if the sealed id is invalid or belongs to another principal.
        """
        # A node that subscribes for its own clients has no call id: it has checked the owner of the task itself.
        is_node_subscription = context.forwarded is not None and not context.forwarded.call_id
        found = self._handles.open_task_id(sealed_id, None if is_node_subscription else _owner(context))
        # The id is valid for a long time. Since then, the server may have been taken out of the toolset.
        if found is None or not (is_node_subscription or context.view.may_include(found[0])):
            raise RpcFailure(INVALID_PARAMS, "Unknown task")
        server, task_id = found
        return server, str(sealed_id) if self._cluster.is_remote(server) else task_id


def _unknown_tool(params: Json, near: Sequence[str] = ()) -> RpcFailure:
    """Return the error for a tool that does not exist, or whose existence must be hidden from the caller.

    `near` are tools that the caller may see and may have meant.
    """
    message = f"Unknown tool: {_shorten(params.get('name'))}"
    if near:
        message += f". Did you mean {' or '.join(near)}?"
    return RpcFailure(INVALID_PARAMS, message, {"executed": "no"})


def _takes_argument_results(context: RequestContext) -> bool:
    """Return True if wrong arguments are explained to the client in a result, not a JSON-RPC error.

    Another node gets the error and makes the result itself.
    """
    return context.version >= ARGUMENT_RESULTS_SINCE and context.forwarded is None


def _invalid_task_error(result: CallResult) -> ProtocolError:
    return ProtocolError(
        f"{result.server} sent an invalid response",
        server=result.server,
        tool=result.name,
        certainty=Certainty.EXECUTED,
        detail=f"a task without a usable id: a string of at most {MAX_TASK_ID_CHARS} characters",
        hint="fix the server: the call ran, but its task cannot be followed",
        code="E-ANSWER",
    )


def _encode_list(view: EndpointView, kind: ListKind, cursor: object, era: Era, complete: bool) -> memoryview:
    """Return the encoded result of a list request, one page. Raises `ValueError` if the cursor is invalid."""

    def build_result(items: msgspec.Raw, next_cursor: str | None) -> Json:
        result: Json = {LIST_METHODS[kind][2]: items}
        if next_cursor is not None:
            result["nextCursor"] = next_cursor
        if era == "modern":
            result |= {"ttlMs": LIST_TTL_MS if complete else INCOMPLETE_LIST_TTL_MS, "cacheScope": "private"}
        return finalize_result(era, result)

    return view.encoded_page(kind, cursor, complete, build_result, era)


def _run_in(
    limits: tuple[BoundLimit, ...], method: str, work: Coroutine[Any, Any, RpcResult]
) -> Coroutine[Any, Any, RpcResult]:
    """Return the coroutine that runs `work` within these limits. It raises `RpcFailure` if a limit is reached."""
    for limit in reversed(limits):
        work = limit.run(work, is_followup=method in _TASK_METHODS)
    return work


def _owner(context: RequestContext) -> tuple[str, str]:
    return context.principal.id, context.endpoint


def _state_binding(context: RequestContext, method: str, server: str, params: Json) -> tuple[str, ...]:
    """Return what a request state is bound to, because the client must repeat the same request with it.

    That is the principal, endpoint, server, method, and a digest of the arguments.
    """
    bound_params = {k: v for k, v in params.items() if k not in ("_meta", "requestState", "inputResponses")}
    digest = hashlib.sha256(msgspec.json.encode(bound_params, order="deterministic")).hexdigest()
    return (context.principal.id, context.endpoint, server, method, digest)


def _split_answer(params: Json, state: str, *, is_question: bool) -> tuple[Json, ApprovalReply]:
    """Split a repeated call's params into those for the server, and the client's approval reply.

    `state` is the decrypted request state, which becomes a part of the reply. `is_question` is True if the client was
    asked for an approval, and False if it was asked for input to an approved call.
    """
    responses = params.get("inputResponses")
    if not is_question:
        return {key: each for key, each in params.items() if key != "requestState"}, ApprovalReply(state, None)
    given = responses if isinstance(responses, dict) else {}
    answer = given.get(ANSWER_KEY)
    rest = {key: each for key, each in given.items() if key != ANSWER_KEY}
    others = {key: each for key, each in params.items() if key not in ("requestState", "inputResponses")}
    reply = ApprovalReply(state, answer if isinstance(answer, dict) else None)
    return (others | {"inputResponses": rest} if rest else others), reply


def _check_param_headers(tool: Tool, arguments: Json, headers: Mapping[str, str]) -> None:
    error = check_param_headers(tool.input_schema, arguments, headers)
    if error is not None:
        raise RpcFailure(*error)


def _to_seconds(milliseconds: Any) -> float | None:
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    return max(0.0, milliseconds / 1000)


def _shorten(value: object, limit: int = 200) -> str:
    return str(value)[:limit]
