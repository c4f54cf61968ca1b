"""The end of the middleware chain: picks an upstream, sends the call, and validates its output."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from toolway.auth.manager import AuthManager
from toolway.catalog.catalog import Catalog, Tool
from toolway.catalog.tool_access import PIN_NOT_STORED, PINS_SETTING, denied_error
from toolway.errors import AccessDenied, CallError, Certainty, NotFound, ProtocolError, ServerUnavailable
from toolway.hub.call_policy import CallPolicies
from toolway.hub.environment import HubEnvironment
from toolway.hub.instrumentation import Instrumentation
from toolway.hub.result_redaction import ResultRedaction, ResultRedactor
from toolway.hub.upstreams import UpstreamManager
from toolway.middleware.arguments import ArgumentValidator
from toolway.middleware.resolve import require_allowed, require_tool
from toolway.protocol.constants import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND
from toolway.protocol.json_schema import SchemaValidator
from toolway.types import Call, CallResult, Json, ToolRef, ToolResult, result_type
from toolway.upstream.error_mapping import PERSONAL_AUTH_CODE
from toolway.upstream.session import Session
from toolway.upstream.transport import SEND_TOO_LATE, RequestExchange
from toolway.upstream.upstream import EraChanged, Upstream

PINS_TIMEOUT_S: Final = 5.0  # seconds that a call waits until the cluster has stored the first pins of its server

# -------------------- outputs
# Validation of structured tool results against the tool's output schema.


class OutputValidator:
    """Validates structured results. Each output schema is compiled on first use and after a change."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str], tuple[Json, SchemaValidator]] = {}

    def validate(self, tool: Tool, result: Json) -> str | None:
        """Return why the structured content of `result` violates the tool's output schema, or None if it does not."""
        schema, structured = tool.output_schema, result.get("structuredContent")
        if schema is None or structured is None or result.get("isError") is True:
            return None
        key = (tool.server, tool.name)
        entry = self._compiled.get(key)
        if entry is None or entry[0] is not schema:
            entry = self._compiled[key] = (schema, SchemaValidator(schema))
        return entry[1].validate(structured)

    def discard(self, server: str) -> None:
        for key in [key for key in self._compiled if key[0] == server]:
            del self._compiled[key]


class SentCall(NamedTuple):
    """A call that was sent, with everything needed to wait for its result."""

    upstream: Upstream
    session: Session
    exchange: RequestExchange
    tool: Tool


class Dispatcher:
    """Sends each call to its server's upstream: the shared one, or the caller's own."""

    __slots__ = (
        "_argument_validator",
        "_auth",
        "_catalog",
        "_forwarding_info",
        "_instrumentation",
        "_output_validator",
        "_policies",
        "_upstreams",
        "redaction",
    )

    def __init__(
        self,
        upstreams: UpstreamManager,
        catalog: Catalog,
        output_validator: OutputValidator,
        argument_validator: ArgumentValidator,
        policies: CallPolicies,
        auth: AuthManager,
        instrumentation: Instrumentation,
        environment: HubEnvironment,
    ) -> None:
        self._upstreams = upstreams
        self._catalog = catalog
        self._output_validator = output_validator
        self._argument_validator = argument_validator
        self._policies = policies
        self._auth = auth
        self._instrumentation = instrumentation
        self._forwarding_info = environment.forwarding_info
        self.redaction: ResultRedaction | None = None  # of a gateway

    async def resume(self, call: Call, sent: SentCall) -> CallResult:
        """Wait for the result of a call that was already sent.

        If the call did not run because the upstream was replaced, it is sent to the new upstream. Raises
        `CallError` if the call has no result.
        """
        upstream = sent.upstream
        if self._forwarding_info is not None:
            call.state.forwarding_info = self._forwarding_info(call)
        is_modern = sent.session.protocol.era == "modern"
        call.state.requires_modern = bool(call.caller) and is_modern and not self._is_shared(call)
        try:
            return await self._exchange(call, upstream, sent.tool, (sent.session, sent.exchange))
        except (ServerUnavailable, NotFound) as exc:
            if not upstream.is_draining or exc.executed != "no":
                raise
        except EraChanged:
            pass  # nothing was sent: decide again whose connection the call needs
        except AccessDenied as exc:
            if exc.code != PERSONAL_AUTH_CODE or not self._auth.is_per_user(call.server):
                raise
        return await self.dispatch(call)

    async def _exchange(
        self, call: Call, upstream: Upstream, tool: Tool, sent: tuple[Session, RequestExchange] | None = None
    ) -> CallResult:
        """Send a tool call and return its result, validated and with secrets removed.

        If `sent` is given, the call was already sent, so only wait for its result.
        """
        try:
            result = await upstream.call(call, tool.input_schema if tool.has_header_params else None, sent)
        except ProtocolError as exc:
            tool, result = await self._retry_with_new_schema(upstream, call, exc)
        except CallError as exc:
            if exc.code == SEND_TOO_LATE and (call.may_send is None or call.may_send()):
                raise denied_error(tool.ref, PINS_SETTING) from exc
            raise
        if "structuredContent" in result:
            self._validate_output(tool, result)
        found = ToolResult(call.server, call.name, result, raw_bytes=call.state.raw_bytes)
        redactor = self.find_redactor(call.server)
        return found if redactor is None else await redactor.redact(found)

    def find_redactor(self, server: str) -> ResultRedactor | None:
        """Return the redactor for a server's results, or None if they need none."""
        return self.redaction.find(server) if self.redaction is not None else None

    async def dispatch(self, call: Call) -> CallResult:
        """Send the call to its server's upstream (supervised connection) and return the result.

        If the upstream is replaced before the call ran, the new one gets the call. Raises `CallError` if the
        call has no result.
        """
        if self._instrumentation.enabled:
            call = self._instrumentation.on_dispatch(call)
        if self._forwarding_info is not None:
            call.state.forwarding_info = self._forwarding_info(call)
        call.state.may_send = call.may_send
        shared = self._upstreams.require_upstream(call.server)
        try:
            upstream = shared
            if call.caller:
                call.state.caller = call.caller
                if not shared.is_modern or self._auth.is_per_user(call.server):
                    upstream = await self._upstream_for_caller(call, shared)
                call.state.requires_modern = upstream is shared and shared.is_modern and not self._is_shared(call)
            if call.method != "tools/call":
                result = await upstream.call(call)
            else:
                if call.params.get("name") != call.name:  # the checked name is the one that is sent
                    call = replace(call, params={**call.params, "name": call.name})
                if call.idempotency_key is not None:
                    call = self._inject_idempotency_key(call, call.idempotency_key)
                tool = self._catalog.find_tool(call.server, call.name) or await self._require_listed_tool(
                    call, upstream
                )
                if call.policy is None or call.policy.tool is not tool or tool.stale:
                    tool = await self._check_arguments(call, tool, upstream)
                if self._catalog.pins is not None:
                    call.state.may_send = partial(self._may_send, call, upstream)
                return await self._exchange(call, upstream, tool)
            found = result_type(call.method)(call.server, call.name, result, raw_bytes=call.state.raw_bytes)
            redactor = self.find_redactor(call.server)
            return found if redactor is None else await redactor.redact(found)
        except (ServerUnavailable, NotFound) as exc:
            if not shared.is_draining or exc.executed != "no":
                raise
        except EraChanged:
            pass  # the server has just moved to this node: decide again
        except AccessDenied as exc:
            if exc.code != PERSONAL_AUTH_CODE or not self._auth.is_per_user(call.server):
                raise  # else the server has just required a credential: use the caller's own connection
        return await self.dispatch(call)

    def _may_send(self, call: Call, upstream: Upstream) -> bool:
        """Return True if the tool is still listed and its definition is accepted.

        Called right before the first byte is sent. The server may have restarted or changed its list while the call
        waited.
        """
        if self._catalog.find_tool(call.server, call.name) is None or not upstream.is_pinned(call.name):
            return False
        return call.may_send is None or call.may_send()

    async def _retry_with_new_schema(self, upstream: Upstream, call: Call, exc: ProtocolError) -> tuple[Tool, Json]:
        """Send a call once more if the server rejected it because the tool's definition changed.

        Fetches the new tool list first. Raises `exc` again if it is any other error, and `CallError` if the second
        attempt fails.
        """
        if exc.rpc_code != HEADER_MISMATCH:
            if exc.rpc_code in (METHOD_NOT_FOUND, INVALID_PARAMS) and "unknown tool" in exc.detail.lower():
                upstream.refresh("tools")
            raise exc
        # The call was rejected because the definition changed: fetch the definition and send the call once more.
        await upstream.refresh_now("tools")
        tool = await self._check_arguments(call, await self._require_listed_tool(call, upstream), upstream)
        return tool, await upstream.call(call, tool.input_schema)

    def _is_shared(self, call: Call) -> bool:
        """Return True if all callers share one connection to the call's server, whatever its era."""
        server = self._upstreams.servers[call.server]
        return server.share_connection or server.transport == "memory"

    async def _upstream_for_caller(self, call: Call, upstream: Upstream) -> Upstream:
        """Return the shared upstream, or the caller's own if the era or credentials require it.

        Legacy servers (before 2026-07-28) and per-user logins need one connection per caller.
        """
        upstreams = self._upstreams
        server = upstreams.servers[call.server]
        if self._is_shared(call):
            return upstream
        if self._auth.is_per_user(call.server) and not upstream.is_draining:
            return upstreams.per_caller.get_or_start(
                call.server, server, call.caller
            )  # independent of the local owner's login
        if upstream.negotiated is None:
            await upstream.wait_ready(call.state)
        if upstream.is_draining or not upstreams.uses_per_caller_connections(call.server, upstream):
            return upstream
        return upstreams.per_caller.get_or_start(call.server, server, call.caller)

    async def _require_listed_tool(self, call: Call, upstream: Upstream) -> Tool:
        """Return the called tool's definition, waiting for the server's first tool list if necessary.

        Raises `NotFound` if the list lacks the tool, `AccessDenied` if an allow or deny list or a pin denies it, and
        `ServerUnavailable` if the server does not start.
        """
        ref = ToolRef(call.server, call.name)
        if self._catalog.tool(ref) is None:
            if self._catalog.denied_by(ref) != PIN_NOT_STORED:
                require_allowed(self._catalog, ref)
            await upstream.wait_ready(call.state)
            with suppress(TimeoutError):
                async with asyncio.timeout(PINS_TIMEOUT_S):
                    await self._catalog.wait_pins_stored(ref.server)
        return require_tool(self._catalog, ref)

    async def _check_arguments(self, call: Call, tool: Tool, upstream: Upstream) -> Tool:
        """Check a call's arguments against the tool's current definition, and return that definition.

        This is for a tool that was unknown when the call began, or known only from an earlier run's stored list. In
        the second case, wait for the current definition first. Raises `InvalidArguments`.
        """
        if not self._policies.validates_arguments(call.server):
            return tool
        if tool.stale:
            await upstream.wait_ready(call.state)
            tool = self._catalog.find_tool(call.server, call.name) or tool
        if not tool.stale:
            self._argument_validator.check(call, tool)
        return tool

    def _inject_idempotency_key(self, call: Call, key: str) -> Call:
        """Return the call with its idempotency key in `_meta`, if the server supports that."""
        meta_key = self._policies.idempotency_meta_key(call.server)
        if meta_key is None:
            return call
        meta = call.params.get("_meta")
        return replace(call, params={**call.params, "_meta": {**(meta or {}), meta_key: key}})

    def _validate_output(self, tool: Tool, result: Json) -> None:
        problem = self._output_validator.validate(tool, result)
        if problem is not None:
            raise ProtocolError(
                f"invalid output of {tool.qualified_name}",
                data=result,
                server=tool.server,
                tool=tool.name,
                certainty=Certainty.EXECUTED,
                attempts=1,
                detail=problem,
                hint="report it to the server's author; the result is in the error's `data`",
                code="E-OUTPUT-SCHEMA",
            )
