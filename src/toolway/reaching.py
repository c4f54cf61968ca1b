"""The end of the pipeline: the call reaches its server."""

from __future__ import annotations

from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND
from msgspec.structs import replace

from toolway.catalog.index import Catalog, Tool
from toolway.catalog.outputs import Outputs
from toolway.catalog.resolve import must_exist
from toolway.errors import Certainty, Denied, NotFound, ProtocolError, Unavailable
from toolway.fleet import Fleet
from toolway.model import Call, Json, Reply, ToolRef
from toolway.observing import Observer
from toolway.rules import Rules
from toolway.security.broker import Broker
from toolway.upstream.border import PERSONAL
from toolway.upstream.upstream import Upstream
from toolway.world import World


class Reaching:
    __slots__ = ("_broker", "_catalog", "_fleet", "_observer", "_outputs", "_rules", "_tell")

    def __init__(
        self,
        fleet: Fleet,
        catalog: Catalog,
        outputs: Outputs,
        rules: Rules,
        broker: Broker,
        observer: Observer,
        world: World,
    ) -> None:
        self._fleet = fleet
        self._catalog = catalog
        self._outputs = outputs
        self._rules = rules
        self._broker = broker
        self._observer = observer
        self._tell = world.tell

    async def reach(self, call: Call) -> Reply:
        """The upstream itself, or the one after it where it was replaced before it had the call. Raises `CallError`."""
        if self._observer.on:
            call = self._observer.reached(call)
        if self._tell is not None:
            call.attempt.told = self._tell(call)
        shared = self._fleet.upstream(call.server)
        try:
            upstream = shared
            if call.caller:
                call.attempt.caller = call.caller
                if not shared.is_modern or self._broker.is_personal(call.server):
                    upstream = await self._upstream_of_caller(call, shared)
            if call.method != "tools/call":
                result = await upstream.call(call)
            else:
                if call.key is not None:
                    call = self._with_key(call, call.key)
                tool = self._catalog.find_tool(call.server, call.name) or await self._listed_tool(call, upstream)
                try:
                    result = await upstream.call(call, tool.input_schema if tool.mirrors else None)
                except ProtocolError as exc:
                    tool, result = await self._call_once_more(upstream, call, exc)
                if "structuredContent" in result:
                    self._check_output(tool, result)
            return Reply(call.server, call.name, result, encoded=call.attempt.encoded)
        except (Unavailable, NotFound) as exc:
            if not shared.retired or exc.executed != "no":
                raise
        except Denied as exc:
            if exc.code != PERSONAL or not self._broker.is_personal(call.server):
                raise  # else the server has just asked for a credential, and the caller has one of his own, or none
        return await self.reach(call)

    async def _call_once_more(self, upstream: Upstream, call: Call, exc: ProtocolError) -> tuple[Tool, Json]:
        """Where a server refused a call because it has changed the definition of the tool. Raises `CallError`."""
        if exc.rpc_code != HEADER_MISMATCH:
            if exc.rpc_code in (METHOD_NOT_FOUND, INVALID_PARAMS) and "unknown tool" in exc.evidence.lower():
                upstream.refresh("tools")
            raise exc
        # The definition must have changed: read it again, and send the call once more, which was refused.
        await upstream.fetch_now("tools")
        tool = await self._listed_tool(call, upstream)
        return tool, await upstream.call(call, tool.input_schema)

    async def _upstream_of_caller(self, call: Call, upstream: Upstream) -> Upstream:
        """The upstream that everybody shares, or, where the era of the server does not allow that, the caller's own."""
        fleet = self._fleet
        server = fleet.servers[call.server]
        if server.shared or server.transport == "memory":
            return upstream
        if self._broker.is_personal(call.server) and not upstream.retired:
            return fleet.private.of(call.server, server, call.caller)  # whether or not the owner has logged in
        if upstream.agreement is None:
            await upstream.wait_ready(call.attempt)
        if upstream.retired or not fleet.is_private(call.server, upstream):
            return upstream
        return fleet.private.of(call.server, server, call.caller)

    async def _listed_tool(self, call: Call, upstream: Upstream) -> Tool:
        """The tool's definition, waiting for the server's first list where there is none yet. Raises `NotFound`."""
        ref = ToolRef(call.server, call.name)
        if self._catalog.tool(ref) is None:
            await upstream.wait_ready(call.attempt)
        return must_exist(self._catalog, ref)

    def _with_key(self, call: Call, key: str) -> Call:
        """The call with its idempotency key where the server itself honours one."""
        name = self._rules.key_meta(call.server)
        if name is None:
            return call
        meta = call.params.get("_meta")
        return replace(call, params={**call.params, "_meta": {**(meta or {}), name: key}})

    def _check_output(self, tool: Tool, result: Json) -> None:
        problem = self._outputs.problem(tool, result)
        if problem is not None:
            raise ProtocolError(
                f"the answer of {tool.name} is not what its definition promises",
                data=result,
                server=tool.server,
                tool=tool.key,
                certainty=Certainty.C3,
                attempts=1,
                evidence=problem,
                fix="report it to the server's author; the answer is in the error's `data`",
                code="E-OUTPUT-SCHEMA",
            )
