"""Tool search for an endpoint: answers the meta-tools, and finds the tool that a call is meant for.

A call through `call_tool` or `read_tool` becomes a call to the tool it names before it is dispatched, so everything
after that sees the real tool: deny lists, argument checks, the audit log, metrics, retries, and so on. Only the
principal's view is searched. A search does not start servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary

import msgspec

from toolway._async import run_in_slices
from toolway.catalog.catalog import Tool
from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.errors import RpcFailure, is_argument_failure, schema_text
from toolway.gateway.mcp.responses import RpcResult
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.meta_tools import MetaTools, UnwrappedCall
from toolway.hub.core import HubCore
from toolway.parts.search.meta_tools import (
    CALL_TOOL,
    MAX_RESULTS,
    META_TOOLS,
    READ_TOOL,
    SEARCH_TOOL,
    Coverage,
    FoundTool,
    effect_word,
    first_sentence,
    search_instructions,
    search_result,
    text_result,
    typed_arguments,
)
from toolway.parts.search.search_log import SearchLog
from toolway.protocol.jsonrpc import RawResult, encode_json
from toolway.types import Effect, Json

if TYPE_CHECKING:
    from toolway.search.results import SearchAnswer, ToolMatch
    from toolway.search.tool_search import AllowedTools

DEFAULT_RESULTS: Final = 5
DEFAULT_RESULTS_OF_MANY: Final = 10
MANY_TOOLS: Final = 2000  # from which on an answer has more results
MAX_QUERIES: Final = 10  # steps in one search
MAX_QUERY_CHARS: Final = 1000
MAX_DESCRIBED: Final = 20  # tools in one request
MAX_COMPACT: Final = 2000  # compact definitions that are kept
STARTUP_WAIT_S: Final = 3.0  # seconds that a search waits for servers that are starting, after the start of the gateway
SLICE_SERVERS: Final = 200  # servers whose tools are collected in one slice
_CALL_KEYS: Final = frozenset({"name", "arguments"})


class _ErrorFlag(msgspec.Struct):
    isError: bool = False
    resultType: str = "complete"


class SearchTools:
    """The meta-tools (`search_tools`, `call_tool`, …) of all endpoints with tool search."""

    definitions = META_TOOLS
    callers = frozenset({CALL_TOOL, READ_TOOL})
    capability: ClassVar[Json] = {"toolway/search": {"tools": list(META_TOOLS)}}

    def __init__(self, hub: HubCore, meta_tools: MetaTools) -> None:
        self._hub = hub
        self._meta_tools = meta_tools
        self._allowed: WeakKeyDictionary[EndpointView, tuple[Mapping[tuple[str, str], str], AllowedTools]] = (
            WeakKeyDictionary()
        )
        #: names of tools, facts about servers, and the coverage that follows from them
        self._coverages: WeakKeyDictionary[EndpointView, tuple[Mapping[tuple[str, str], str], object, Coverage]] = (
            WeakKeyDictionary()
        )
        #: arguments and first sentence of tools that were found, by view and name, valid for this tool object
        self._compact: dict[tuple[EndpointView, str], tuple[Tool, tuple[tuple[str, str], ...], str]] = {}
        self.log = SearchLog()

    def instructions(self, servers: Sequence[str]) -> str:
        return search_instructions(servers)

    # -- search_tools and describe_tool --------------------------------------------------------------------------------

    async def answer(self, context: RequestContext, name: str, arguments: object) -> Json:
        """Return the result of `search_tools` or `describe_tool`.

        If the arguments are wrong, the result explains why.
        """
        given = arguments if isinstance(arguments, dict) else {}
        try:
            _reject_unknown(name, given)
            if name == SEARCH_TOOL:
                return await self._search(context, given)
            return self._describe(context.view, given)
        except ValueError as exc:
            return text_result(f"{name}: {exc}", is_error=True)

    async def _search(self, context: RequestContext, arguments: Json) -> Json:
        queries, limit, server = _read_queries(arguments), arguments.get("limit"), arguments.get("server")
        view = context.view
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f"limit must be a number from 1 to {MAX_RESULTS}")
        if server is not None and server not in view.servers():
            raise ValueError(f"unknown server; the servers are: {', '.join(view.servers())[:2000] or 'none'}")
        await self._meta_tools.endpoints.wait_for_starting(view, STARTUP_WAIT_S)
        await view.prepare()
        count = len(view.items("tools"))
        coverage = await self._coverage(view)  # before the search: what it found must be in the view now
        default = DEFAULT_RESULTS if count <= MANY_TOOLS else DEFAULT_RESULTS_OF_MANY
        found = await self.search_view(
            view,
            queries,
            limit=min(limit or default, MAX_RESULTS),
            server=server,
            principal=context.principal.id,
        )
        results = [self._found_tool(view, match, coverage) for match in found.matches]
        self._log_search(context.principal.id, queries, found, results)
        notes = [f"Only words were compared: {found.notes.meaning}."] if found.notes.meaning else []
        return search_result(results, fits=found.fits, coverage=coverage, notes=notes)

    async def search_view(
        self, view: EndpointView, queries: list[str], *, limit: int, server: str | None, principal: str
    ) -> SearchAnswer:
        """Return the tools in one endpoint's view that fit the queries best.

        Tools outside the view are not searched.
        """
        search = await self._hub.open_tool_search()
        await view.prepare()
        names = view.tool_names()
        sees_all = len(names) == self._hub.lists.catalog.count_tools()
        found = await search.search_async(
            queries,
            limit=limit,
            allowed=None if sees_all else self._allowed_tools(view, names),
            server=server,
            principal=principal,
            with_details=False,
        )
        await view.prepare()
        now = view.tool_names()  # a list may have changed while the search waited
        if now is names:
            return found
        return replace(
            found, matches=tuple(each for each in found.matches if (each.tool.server, each.tool.name) in now)
        )

    def _allowed_tools(self, view: EndpointView, names: Mapping[tuple[str, str], str]) -> AllowedTools:
        """Return the tools that a search in this view may find. It is the same object until the view changes."""
        known = self._allowed.get(view)
        if known is None or known[0] is not names:
            from toolway.search.tool_search import AllowedTools

            known = self._allowed[view] = (names, AllowedTools(names))
        return known[1]

    def _log_search(self, principal: str, queries: list[str], found: SearchAnswer, results: list[FoundTool]) -> None:
        now = time.time()
        for step, query in enumerate(queries):
            pairs = [
                (match.tool, result.name)
                for match, result in zip(found.matches, results, strict=True)
                if match.step == step
            ]
            tools, names = [(tool.server, tool.name) for tool, _ in pairs], [name for _, name in pairs]
            self.log.add(principal, query, tools, names, fits=found.fits, now=now)
        if found.fits and found.matches:
            self.log.counts.fits += 1
        else:
            self.log.counts.nothing += 1

    async def _coverage(self, view: EndpointView) -> Coverage:
        """Return what a search in a view covers: tools, servers, and what is missing.

        Nothing outside the view is mentioned.
        """
        names, facts = view.tool_names(), (self._hub.servers.changes, tuple(self._meta_tools.endpoints.held_servers()))
        known = self._coverages.get(view)
        if known is None or known[0] is not names or known[1] != facts:
            held = sorted(server for server in facts[1] if view.may_include(server))
            coverage = await run_in_slices(self._find_coverage(view, len(names), held))
            known = self._coverages[view] = (names, facts, coverage)
            await asyncio.sleep(
                0
            )  # the names of an earlier list were freed, which takes milliseconds if there are many
        return known[2]

    def _find_coverage(self, view: EndpointView, tools: int, held: list[str]) -> Generator[None, None, Coverage]:
        """Compute what a search in a view covers: its servers and tools, and what it misses.

        This generator yields between slices of servers, so other tasks can run.
        """
        servers, down, unlisted, held_tools = [], [], [], 0
        for place, server in enumerate(view.servers(), 1):
            if place % SLICE_SERVERS == 0:
                yield
            state = self._hub.servers.state(server)
            if state == "disabled":
                continue
            servers.append(server)
            held_tools += sum(view.includes_tool(tool) for tool in self._hub.lists.catalog.held_tools(server))
            if state == "down":
                down.append(server)
            elif not self._hub.lists.catalog.has_list(server, "tools"):
                unlisted.append(server)
        return Coverage(tools, servers, down, unlisted, held, held_tools)

    def _found_tool(self, view: EndpointView, match: ToolMatch, coverage: Coverage) -> FoundTool:
        tool = match.tool
        name = view.name_of(tool) or tool.model_name
        known = self._compact.get((view, name))
        if known is None or known[0] is not tool:
            definition = view.definition(name, tool)
            description = definition.get("description")
            sentence = first_sentence(description) if isinstance(description, str) else ""
            known = (tool, typed_arguments(definition["inputSchema"]), sentence)
            if len(self._compact) >= MAX_COMPACT:
                self._compact.clear()
            self._compact[view, name] = known
        effect = effect_word(self._hub.policies.tool_policy(tool).default_effect)
        return FoundTool(name, tool.server, known[1], effect, known[2], tool.server in coverage.down)

    def on_views_changed(self) -> None:
        """Drop the cached short forms of tool definitions, because a toolset's descriptions may have changed."""
        self._compact.clear()

    def _describe(self, view: EndpointView, arguments: Json) -> Json:
        given = arguments.get("name")
        names = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]
        if not names or len(names) > MAX_DESCRIBED or (isinstance(given, list) and len(names) != len(given)):
            raise ValueError(f"name must be the name of a tool, or a list of at most {MAX_DESCRIBED} names")
        found, unknown = [], []
        for each in names:
            pair = view.find_tool(each)
            if pair is not None:
                found.append(view.definition(*pair))
            elif each in META_TOOLS:
                found.append(META_TOOLS[each])
            else:
                unknown.append(each[:200])
        lines = [encode_json(each).decode() for each in found]
        lines += [f"Unknown tool: {each}. Find its name with {SEARCH_TOOL}." for each in unknown]
        result = text_result("\n".join(lines), is_error=not found)
        return {**result, "structuredContent": {"tools": found, "unknown": unknown}}

    # -- call_tool and read_tool ---------------------------------------------------------------------------------------

    def unwrap(self, context: RequestContext, params: Json) -> UnwrappedCall:
        """Return the tool call, as params and tool, that a call of `call_tool` or `read_tool` contains.

        If that call cannot be made, return a result that explains why. The client cannot repeat the tool's arguments in
        HTTP headers, so headers are not compared.
        """
        meta_tool, given = params["name"], params.get("arguments")
        view = context.view
        if not isinstance(given, dict) or not isinstance(name := given.get("name"), str):
            return self._refuse(f"{meta_tool}: name must be the name of a tool. Find it with {SEARCH_TOOL}.")
        arguments = given.get("arguments")
        item = view.find_item("tools", name)
        if not isinstance(item, Tool):
            if name in META_TOOLS:
                return self._refuse(f"{name} cannot be called through {meta_tool}: call it directly.")
            pair = view.find_tool(name)
            if pair is None:
                return {**params, "name": name, "arguments": arguments}, None
            name, item = pair
        if not given.keys() <= _CALL_KEYS:
            return self._refuse(f"{meta_tool}: put the arguments of {name} into `arguments`.", view, name, item)
        if arguments is not None and not isinstance(arguments, dict):
            return self._refuse(f"{meta_tool}: arguments must be an object.", view, name, item)
        if not self.may_call(meta_tool, item):
            return self._refuse(f"{name} may change something, so {READ_TOOL} rejects it. Use {CALL_TOOL}.")
        self.count_call(meta_tool)
        context.headers = None
        return {**params, "name": name, "arguments": arguments or {}}, item

    def may_call(self, name: str, tool: Tool) -> bool:
        return name != READ_TOOL or self._hub.policies.tool_policy(tool).default_effect is Effect.READ

    def count_call(self, name: str) -> None:
        counts = self.log.counts.calls
        counts[name] = counts.get(name, 0) + 1

    def explain_failure(self, context: RequestContext, params: Json, failure: RpcFailure) -> Json | None:
        """Return a result that shows a model the tool's schema, if its call failed because of wrong arguments.

        Return None for any other failure.
        """
        if not is_argument_failure(failure):
            return None
        tool = context.view.find_item("tools", params["name"])
        if not isinstance(tool, Tool):
            return None
        result = self._refuse(failure.message, context.view, params["name"], tool)
        result["structuredContent"] |= {"violations": failure.data.get("violations", []), "executed": "no"}
        return result

    async def explain_unknown(self, context: RequestContext, params: Json) -> Json:
        """Return a result for a call to an unknown tool: the closest tools, for the model to choose from."""
        name, view = str(params.get("name"))[:200], context.view
        await view.prepare()
        coverage = await self._coverage(view)
        found = await self.search_view(view, [name], limit=3, server=None, principal=context.principal.id)
        lines = [f"Unknown tool: {name}. It was not called. The nearest:"]
        lines += [self._found_tool(view, match, coverage).line for match in found.matches]
        return self._refuse("\n".join([*lines, *coverage.notes()]))

    def _refuse(self, reason: str, view: EndpointView | None = None, name: str = "", tool: Tool | None = None) -> Json:
        """Return an error result with `reason` for a call that is not sent.

        If `tool` is given, the result also contains its input schema.
        """
        self.log.counts.rejected += 1
        if view is None or tool is None:
            return text_result(reason, is_error=True)
        schema = view.definition(name, tool)["inputSchema"]
        result = text_result(f"{reason}\n{schema_text(name, schema)}", is_error=True)
        return {**result, "structuredContent": {"tool": name, "inputSchema": schema}}

    # -- learning -----------------------------------------------------------------------------------------------------

    def on_result(self, principal: str, tool: Tool, result: RpcResult) -> None:
        """Record a successful call to a tool that a search found.

        Later searches use these records.
        """
        key = (tool.server, tool.name)
        query = self.log.open_query(principal, key)
        if query is None or not _is_success(result):
            return
        self.log.on_call(principal, key)
        digest = self._hub.policies.tool_policy(tool).definition_hash
        self._hub.tool_search.record_call(query, principal, tool.server, tool.name, digest)


def _read_queries(arguments: Json) -> list[str]:
    """Return the queries of a search. Raises `ValueError` if they are not strings."""
    given = arguments.get("query")
    queries = given if isinstance(given, list) else [given]
    texts = [each.strip() for each in queries if isinstance(each, str) and each.strip()]
    if not texts or len(texts) != len(queries):
        raise ValueError("query must be a string, or a list of strings: one for each step")
    if len(texts) > MAX_QUERIES or any(len(each) > MAX_QUERY_CHARS for each in texts):
        raise ValueError(f"at most {MAX_QUERIES} queries of {MAX_QUERY_CHARS} characters")
    return texts


def _reject_unknown(name: str, arguments: Json) -> None:
    known = META_TOOLS[name]["inputSchema"]["properties"]
    if unknown := sorted(str(key) for key in arguments.keys() - known.keys()):
        raise ValueError(f"unknown argument {unknown[0][:50]!r}; the arguments are {', '.join(known)}")


def _is_success(result: Any) -> bool:
    """Return True if a result is complete and is not a tool error."""
    if isinstance(result, RawResult):
        try:
            flag = msgspec.json.decode(b"".join((result.prefix, result.received, result.suffix[:-1])), type=_ErrorFlag)
        except msgspec.MsgspecError:
            return False
        return not flag.isError and flag.resultType == "complete"
    return result.get("isError") is not True and result.get("resultType", "complete") == "complete"
