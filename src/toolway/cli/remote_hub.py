"""Client of a running gateway with a local hub's interface.

Statuses and lists are read from `/admin`. Calls go to `/mcp` through a hub that has the gateway as its only server, so
they keep all guarantees of a call. An error of a call is raised with the class and the code that it has in the gateway.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from toolway.callbacks import FunctionCallbacks
from toolway.catalog.catalog import Catalog, Prompt, Resource, Tool
from toolway.cli.exit_codes import GatewayAdmin, GatewayError
from toolway.cli.gateway_client import ADMIN_TIMEOUT_S, GatewayClient
from toolway.config.approval.held_entries import REVIEW_CODE
from toolway.config.schema import ConfigIssue, Server
from toolway.errors import (
    AccessDenied,
    CallError,
    CallTimeout,
    Certainty,
    InvalidArguments,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    ServerUnavailable,
    ToolwayError,
)
from toolway.events import EventSink, ServerLog
from toolway.gateway.mcp import errors
from toolway.gateway.mcp.context import SERVER_META_KEY, get_meta
from toolway.hub.core import HubCore
from toolway.hub.core_options import Reporting
from toolway.hub.hub import Hub
from toolway.hub.list_waits import LIST_WAIT_S, NAMED_LIST_WAIT_S
from toolway.middleware.resolve import find_by_bare_name, require_server
from toolway.network.policy import ALLOW_ALL
from toolway.protocol import tool_names
from toolway.protocol.schema_violations import decode_invalid_arguments
from toolway.types import Json, ProgressCallback, PromptResult, ResourceResult, ToolRef, ToolResult
from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus

if TYPE_CHECKING:
    from toolway.cli.commands.catalogs.server_questions import ServerQuestions

GATEWAY_SERVER_NAME: Final = "gateway"
STATUS_POLL_INTERVAL_S: Final = 0.2  # seconds between two polls of the servers that are still starting
MAX_CALL_S: Final = 900.0  # seconds: timeout of a call without its own
TIMEOUT_MARGIN_S: Final = 5.0  # seconds added to the timeout, so the gateway's own timeout error arrives first


class RemoteHub:
    """Client for a running gateway's servers, with the `Hub` methods that commands use."""

    def __init__(self, gateway: GatewayClient, questions: ServerQuestions | None = None) -> None:
        self._gateway = gateway
        self._sinks: list[EventSink] = []
        self._questions = questions  # answers what servers request during a call
        self._called = ""  # the server of the call, whose log messages come from the gateway
        self._status: dict[str, ServerStatus] = {}
        self.config_issues: tuple[ConfigIssue, ...] = ()  # entries of its file that need review
        self.status_denied: GatewayAdmin | None = None  # why `status()` is empty, if the key is not an administrator's
        self._catalog = Catalog()

    def add_sink(self, sink: EventSink) -> None:
        """Deliver events of this client's calls to `sink`."""
        self._sinks.append(sink)

    def status(self) -> dict[str, ServerStatus]:
        return self._status

    async def server_info(self, name: str) -> ServerInfo | None:
        """Return what a server says about itself; None if the gateway is not connected to it."""
        detail = await self._gateway.request_admin("GET", f"servers/{quote(name, safe='')}/detail")
        return msgspec.convert(detail["info"], ServerInfo) if "info" in detail else None

    async def check_health(self) -> dict[str, HealthResult]:
        """Let the gateway check all its servers now."""
        response = await self._gateway.request_admin("POST", "health")
        return {fields["server"]: msgspec.convert(fields, HealthResult) for fields in response["servers"]}

    def known_tools(self, *, server: str | None = None) -> list[Tool]:
        return self._catalog.tools(server)

    async def list_tools(self, *, server: str | None = None, wait: float | None = None) -> list[Tool]:
        """Wait until each server, or only `server`, has started or failed; return the tools.

        After `wait` seconds, returns the tools that are known by then. None waits 30 s for `server`; for all servers it
        waits until each of them has had 2 s since its start began. A key without admin rights gets the tools
        that it may call.
        """
        loop = asyncio.get_running_loop()
        patience = math.inf if wait is not None or server is not None else LIST_WAIT_S
        limit = wait if wait is not None else NAMED_LIST_WAIT_S if server is not None else LIST_WAIT_S
        end = loop.time() + limit
        try:
            await self._refresh_status()
        except GatewayAdmin as exc:
            self.status_denied = exc
            await self._load_allowed_tools(limit)
            return self.known_tools(server=server)
        while self._is_starting(server, patience) and loop.time() < end:
            await asyncio.sleep(STATUS_POLL_INTERVAL_S)
            await self._refresh_status()
        await self._load_tools()
        return self.known_tools(server=server)

    def _is_starting(self, server: str | None, patience: float) -> bool:
        """Return True if `server`, or any server, has been starting for less than `patience` seconds."""
        statuses = [each for each in self._status.values() if server in (None, each.server)]
        return any(each.state == "starting" and each.since < patience for each in statuses)

    async def _refresh_status(self) -> None:
        response = await self._gateway.request_admin("GET", "servers")
        self._status = {fields["server"]: msgspec.convert(fields, ServerStatus) for fields in response["servers"]}
        to_review = response.get("needs_review", ())  # an older gateway has none
        self.config_issues = tuple(
            msgspec.structs.replace(msgspec.convert(fields, ConfigIssue), code=REVIEW_CODE) for fields in to_review
        )

    async def _load_tools(self) -> None:
        tools_by_server: dict[str, list[Json]] = {server: [] for server in self._status}
        for tool in (await self._gateway.request_admin("GET", "tools"))["tools"]:
            tools_by_server.setdefault(tool["server"], []).append(tool["raw"])
        for server, raws in tools_by_server.items():
            status = self._status.get(server)
            self._catalog.add_server(server)
            self._catalog.replace(server, "tools", raws, stale=status is not None and status.stale)

    async def load_definition(self, ref: ToolRef) -> Tool | None:
        """Return the definition of one tool; None if the gateway does not have it.

        If this key is an administrator's, only this definition is loaded, else all definitions that it may use.
        """
        try:
            path = f"tools/{quote(ref.server, safe='')}/{quote(ref.tool, safe='')}"
            raw = (await self._gateway.request_admin("GET", path))["raw"]
        except GatewayAdmin:
            await self._load_allowed_tools(ADMIN_TIMEOUT_S)
            return self._catalog.find_tool(ref.server, ref.tool)
        except ToolwayError:
            return None  # the call reports what is wrong
        return Tool(ref.server, ref.tool, raw)

    async def _load_allowed_tools(self, timeout: float) -> None:
        """Load the definitions of the tools that this key may call, from the gateway's MCP endpoint."""
        async with self._open_endpoint() as hub:
            listed = await hub.list_tools(server=GATEWAY_SERVER_NAME, wait=timeout)
        raws: dict[str, list[Json]] = {}
        for tool in listed:
            ref = tool_names.parse_tool_name(tool.name)
            if ref is not None:
                raws.setdefault(ref.server, []).append({**tool.raw, "name": ref.tool})
        for server, tools in raws.items():
            self._catalog.add_server(server)
            self._catalog.replace(server, "tools", tools)

    def _mcp_server(self) -> Server:
        return Server(
            url=f"{self._gateway.url}/mcp",
            headers=self._gateway.headers,
            tls=self._gateway.tls,
            era="modern",
            network_policy=ALLOW_ALL,
            validate_arguments=False,  # the gateway does, unless the entry of the server says otherwise
        )

    # -- prompts and resources, from the endpoint of clients ----------------------------------------------------------

    async def list_prompts(self, *, server: str | None = None, wait: float | None = None) -> list[Prompt]:
        """Return the prompts that this key may use: all, or the prompts of `server`."""
        async with self._open_endpoint() as hub:
            listed = await hub.list_prompts(server=GATEWAY_SERVER_NAME, wait=wait)
        refs = [(tool_names.parse_tool_name(prompt.name), prompt) for prompt in listed]
        return [
            Prompt(ref.server, ref.tool, prompt.raw)
            for ref, prompt in refs
            if ref is not None and server in (None, ref.server)
        ]

    async def list_resources(self, *, server: str | None = None, wait: float | None = None) -> list[Resource]:
        """Return the gateway's resources. The gateway does not say which server has which."""
        async with self._open_endpoint() as hub:
            return await hub.list_resources(server=GATEWAY_SERVER_NAME, wait=wait)

    async def list_resource_templates(self, *, server: str | None = None, wait: float | None = None) -> list[Resource]:
        """Return the resource templates of the gateway."""
        async with self._open_endpoint() as hub:
            return await hub.list_resource_templates(server=GATEWAY_SERVER_NAME, wait=wait)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> PromptResult:
        """Get the prompt `server.prompt`."""
        server, _, prompt = name.partition(".")
        async with self._open_endpoint() as hub:
            model_name = tool_names.model_name_for(ToolRef(server, prompt))
            return await hub.get_prompt(f"{GATEWAY_SERVER_NAME}.{model_name}", arguments, timeout=timeout)

    async def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult:
        """Read a resource of any server of the gateway."""
        async with self._open_endpoint() as hub:
            return await hub.read_resource(uri, server=GATEWAY_SERVER_NAME, timeout=timeout)

    def _open_endpoint(self) -> Hub:
        questions = self._questions
        # A workflow that waits for a user must return its state to the terminal, instead of a task.
        callbacks = FunctionCallbacks(
            _of_its_server(questions.elicit) if questions is not None else None,
            _of_its_server(questions.sample) if questions is not None else None,
            None,
            follows_tasks=False,
        )
        servers = {GATEWAY_SERVER_NAME: self._mcp_server()}
        reporting = Reporting()
        if questions is not None:
            reporting = Reporting(log_callback=self._show_log, log_level=questions.log_level)
        core = HubCore(servers, callbacks=callbacks, catalog_storage=None, reporting=reporting, library=True)
        return Hub._from_core(core)

    def _show_log(self, log: ServerLog) -> None:
        if self._questions is not None:
            self._questions.show_log(msgspec.structs.replace(log, server=self._called or log.server))

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        progress_callback: ProgressCallback | None = None,
        raise_on_error: bool = True,
    ) -> ToolResult:
        ref = tool_names.parse_tool_name(name)
        async with self._open_endpoint() as hub:
            for sink in self._sinks:
                hub.add_sink(sink)
            ref = ref if ref is not None else _find_by_bare_name(await hub.list_tools(server=GATEWAY_SERVER_NAME), name)
            self._called = ref.server
            try:
                result = await hub.call_tool(
                    f"{GATEWAY_SERVER_NAME}.{tool_names.model_name_for(ref)}",
                    arguments,
                    timeout=timeout + TIMEOUT_MARGIN_S if timeout is not None else MAX_CALL_S,
                    max_attempts=1,  # the gateway retries
                    progress_callback=progress_callback,
                    meta={errors.TIMEOUT_META_KEY: timeout * 1000} if timeout is not None else None,
                    raise_on_error=False,
                )
            except CallError as exc:
                await self._refresh_status_after(exc)
                raise self._original_error(exc, ref, hub.known_tools()) from None
        invalid = _refused_arguments(result, ref)
        if invalid is not None:
            raise invalid
        result = msgspec.structs.replace(result, server=ref.server, name=ref.tool)
        return result.raise_for_error() if raise_on_error else result

    async def _refresh_status_after(self, error: CallError) -> None:
        """Read the server statuses again, to help explain the failed call `error`.

        Raises `GatewayError` with the cause if the gateway itself was unreachable or rejected the token.
        """
        try:
            await self._refresh_status()
        except GatewayAdmin:
            pass  # without admin rights the caller gets the error alone
        except GatewayError:
            if isinstance(error, ServerUnavailable | AccessDenied):
                raise

    def _original_error(self, error: CallError, ref: ToolRef, tools: list[Tool]) -> CallError:
        """Convert a failed call's JSON-RPC error back to the error that the gateway raised."""
        if isinstance(error, NotFound):
            return self._missing_tool_error(ref, tools)
        if not isinstance(error, ProtocolError) or error.rpc_code is None:
            return error
        data = error.data if isinstance(error.data, dict) else {}
        extension = data.get(errors.ERROR_DATA_KEY)
        if isinstance(extension, dict):
            rest = {key: value for key, value in data.items() if key != errors.ERROR_DATA_KEY}
            return _server_error(error, ref, extension, rest or None)
        return _gateway_error(error, ref, data) if "executed" in data else error

    def _missing_tool_error(self, ref: ToolRef, tools: list[Tool]) -> CallError:
        """Return the error that explains why the gateway has no such tool."""
        refs = [parsed for parsed in (tool_names.parse_tool_name(tool.name) for tool in tools) if parsed is not None]
        status = self._status.get(ref.server)
        try:
            require_server(self._status or dict.fromkeys(each.server for each in refs), ref.server)
        except NotFound as exc:
            return exc
        if status is not None and status.state != "ready" and not status.tools:
            return ServerUnavailable(
                f"{ref.server} is not available", server=ref.server, tool=ref.tool, detail=status.why, hint=status.hint
            )
        matches = get_close_matches(str(ref), [str(each) for each in refs], n=3)
        hint = f"did you mean {' or '.join(matches)}?" if matches else f"list its tools: toolway tools -s {ref.server}"
        if status is not None and status.denied_tools and not matches:
            hint = f"its allow and deny lists hide {status.denied_tools} tools: toolway config"
        return NotFound(f"{ref.server} has no tool {ref.tool!r}", server=ref.server, tool=ref.tool, hint=hint)


def _of_its_server(ask: Callable[[str, Json], Awaitable[Json]]) -> Callable[[str, Json], Awaitable[Json]]:
    """Wrap `ask` for requests through the gateway, which names the server in `_meta`.

    The gateway sets that name, so no server can use the name of another one.
    """

    def ask_for(gateway: str, params: Json) -> Awaitable[Json]:
        return ask(str(get_meta(params).get(SERVER_META_KEY) or gateway), params)

    return ask_for


def _find_by_bare_name(tools: list[Tool], name: str) -> ToolRef:
    """Return the only tool of the gateway's servers with this name. Raises `NotFound` if there is not exactly one."""
    catalog = Catalog()
    refs = [ref for tool in tools if (ref := tool_names.parse_tool_name(tool.name)) is not None]
    servers = {ref.server for ref in refs}
    for server in servers:
        catalog.add_server(server)
        raws = [{"name": ref.tool, "inputSchema": {}} for ref in refs if ref.server == server]
        catalog.replace(server, "tools", raws)
    return find_by_bare_name(catalog, servers, name).ref


_ERROR_CLASSES: Final[Mapping[int, type[CallError]]] = {
    errors.UNAVAILABLE: ServerUnavailable,
    errors.SHUTTING_DOWN: ServerUnavailable,
    errors.STORE_UNAVAILABLE: ServerUnavailable,
    errors.DEADLINE: CallTimeout,
    errors.OVERLOADED: Overloaded,
    errors.QUOTA: Overloaded,
    errors.THROTTLED: Overloaded,
    errors.OUTCOME_UNKNOWN: OutcomeUnknown,
    errors.KEY_MISMATCH: AccessDenied,
    errors.DENIED: AccessDenied,
    errors.UPSTREAM_AUTH: AccessDenied,
    errors.UPSTREAM_PROTOCOL: ProtocolError,
}


def _refused_arguments(result: ToolResult, ref: ToolRef) -> InvalidArguments | None:
    """Return the error if the gateway rejected the arguments; None if the tool sent the result."""
    meta = result.raw.get("_meta")
    fields = meta.get(errors.ERROR_DATA_KEY) if result.is_error and isinstance(meta, dict) else None
    return decode_invalid_arguments(fields, ref.server, ref.tool) if isinstance(fields, dict) else None


def _gateway_error(error: ProtocolError, ref: ToolRef, fields: Json) -> CallError:
    """Convert a gateway's error response back to the error class it raised."""
    assert error.rpc_code is not None
    code, hint = str(fields.get("code") or ""), str(fields.get("fix") or "")
    kind = CallTimeout if code == CallTimeout.code else _ERROR_CLASSES.get(error.rpc_code, CallError)
    message = error.detail.removesuffix(f" [{code}]").removesuffix(f" → {hint}")
    return kind(message, hint=hint, code=code, retry_after=error.retry_after, **_common_error_fields(ref, fields))


def _server_error(error: ProtocolError, ref: ToolRef, fields: Json, data: Any) -> CallError:
    """Build the error for a JSON-RPC error that the server itself returned."""
    return ProtocolError(
        f"{ref.server} answered with error {error.rpc_code}",
        rpc_code=error.rpc_code,
        data=data,
        detail=error.detail,
        code=str(fields.get("code") or ""),
        **_common_error_fields(ref, fields),
    )


def _common_error_fields(ref: ToolRef, fields: Json) -> dict[str, Any]:
    certainty = Certainty.from_code(fields.get("certainty"))
    attempts = fields.get("attempts")
    return {
        "server": ref.server,
        "tool": ref.tool,
        "certainty": certainty,
        "attempts": attempts if isinstance(attempts, int) else 0,
    }
