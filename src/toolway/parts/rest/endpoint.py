"""`POST /api/tools/NAME` and `GET /api/openapi.json`, for `/mcp` and, below `/api/TOOLSET`, for each other endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import quote, unquote

from toolway._async import run_in_slices
from toolway.gateway.caller_paths import PathCaller, PathReply
from toolway.gateway.mcp.errors import ERROR_DATA_KEY, RpcFailure
from toolway.part_api.part import Part, PartContext, PartRuntime
from toolway.parts.rest.document import build_document
from toolway.parts.rest.outcomes import (
    MCP_RESULT_TYPE,
    PRIVATE,
    reply_failure,
    reply_needs_input,
    reply_rejected,
    reply_result,
    reply_unknown,
)
from toolway.protocol.jsonrpc import encode_json
from toolway.protocol.versions import TASKS_EXTENSION
from toolway.types import Json

PREFIX: Final = "/api"
TASK_WAIT_S: Final = 60.0  # seconds that a request waits for a task
FIRST_POLL_S: Final = 0.2  # seconds until a task is asked for, growing
MAX_POLL_S: Final = 5.0
MAX_DOCUMENTS: Final = 32  # kept, for callers who see the same tools
_TOOLSET: Final = r"(?:/(?P<endpoint>server/[a-z0-9-]{1,64}|(?!server/)[a-z0-9-]{1,64}))?"
_TOOL_PATH: Final = re.compile(rf"{PREFIX}{_TOOLSET}/tools/(?P<name>[^/]+)")
_DOCUMENT_PATH: Final = re.compile(rf"{PREFIX}{_TOOLSET}/openapi\.json")
_CAPABILITIES: Final[Json] = {"extensions": {TASKS_EXTENSION: {}}}
_log = logging.getLogger("toolway.gateway")


def open_endpoint(part: Part, context: PartContext) -> PartRuntime:
    """Answer callers below `/api`."""
    context.caller_paths.serve(PREFIX, ToolsEndpoint(context.gateway_url))
    return PartRuntime()


class ToolsEndpoint:
    """The tools of each endpoint as HTTP operations. `gateway_url` returns where users reach the gateway, or ""."""

    def __init__(self, gateway_url: Callable[[], str]) -> None:
        self._gateway_url = gateway_url
        self._documents: dict[bytes, bytes] = {}  # encoded, by the hash of what they are made of

    def reject(self, failure: RpcFailure) -> PathReply:
        return reply_failure(failure)

    async def answer(self, caller: PathCaller) -> PathReply:
        tool, document = _TOOL_PATH.fullmatch(caller.path), _DOCUMENT_PATH.fullmatch(caller.path)
        if caller.method == "GET" and document is not None:
            return await self._answer_document(caller, document["endpoint"] or "")
        if caller.method == "POST" and tool is not None:
            return await self._answer_call(caller, tool["endpoint"] or "", tool["name"])
        if tool is not None or document is not None:
            return reply_rejected(405, "method not allowed", ("allow", "POST" if tool is not None else "GET"))
        return reply_rejected(404, f"unknown path: use POST {PREFIX}/tools/NAME, or GET {PREFIX}/openapi.json")

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _answer_call(self, caller: PathCaller, endpoint: str, segment: str) -> PathReply:
        name = unquote(segment, errors="replace")
        if quote(name, safe="") != segment:  # each tool has one path: a proxy may have rules about paths
            return reply_rejected(404, "unknown path: only letters, digits, and -._~ stand for themselves in it")
        if not caller.may_use(endpoint):
            return reply_rejected(404, "unknown endpoint")
        if "idempotency-key" in caller.repeated_headers:
            return reply_rejected(400, "header idempotency-key is repeated")
        # A page of another site can send no other type without asking first: this stops forged requests.
        if caller.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return reply_rejected(415, "content type must be application/json")
        try:
            arguments = await caller.read_json()
        except ValueError as exc:
            return reply_rejected(400, f"the body is not valid JSON: {exc}")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return reply_rejected(400, "the body must be a JSON object: the arguments of the tool")
        try:
            return await self._call(caller, endpoint, name, arguments)
        except RpcFailure as failure:
            return reply_failure(failure)
        except Exception:
            _log.exception("a call at %s failed", PREFIX)
            return reply_unknown("the gateway failed during the call: it may have run")

    async def _call(self, caller: PathCaller, endpoint: str, name: str, arguments: Json) -> PathReply:
        is_from_search = caller.uses_search(endpoint)
        result = await caller.send(endpoint, "tools/call", {"name": name, "arguments": arguments}, _CAPABILITIES)
        kind = result.get("resultType", "complete")
        if kind == "task":
            try:
                async with asyncio.timeout(TASK_WAIT_S):
                    return await self._follow_task(caller, endpoint, result)
            except TimeoutError:
                await self._cancel_task(caller, endpoint, result)
                return reply_unknown(f"the task did not end within {TASK_WAIT_S:g} s, and was asked to stop")
        if kind == "input_required":
            return reply_needs_input("needs input")
        return reply_result(result, is_whole=_wants_whole(caller), is_from_search=is_from_search)

    async def _follow_task(self, caller: PathCaller, endpoint: str, task: Json) -> PathReply:
        params, pause = {"taskId": task["taskId"]}, FIRST_POLL_S
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_POLL_S)
            try:
                task = await caller.send(endpoint, "tasks/get", params, _CAPABILITIES)
            except RpcFailure as failure:
                if failure.retry_after is not None:  # of a limit, or of a server that is away for a moment
                    continue
                return reply_unknown(f"the task is lost: {failure.message}")
            status, result = task.get("status"), task.get("result")
            if status == "input_required":
                await self._cancel_task(caller, endpoint, params)
                return reply_needs_input("became a task that needs input")
            if status == "completed" and isinstance(result, dict):
                return reply_result(result, is_whole=_wants_whole(caller))
            if status == "failed":
                error = task.get("error")
                message = str(error.get("message", "")) if isinstance(error, dict) else ""
                return reply_failure(RpcFailure(0, message or "the task failed", {ERROR_DATA_KEY: {"executed": "yes"}}))
            if status != "working":
                return reply_unknown("the task was cancelled, or has no result")

    async def _cancel_task(self, caller: PathCaller, endpoint: str, task: Json) -> None:
        with suppress(RpcFailure):
            await caller.send(endpoint, "tasks/cancel", {"taskId": task["taskId"]}, _CAPABILITIES)

    # -- document -----------------------------------------------------------------------------------------------------

    async def _answer_document(self, caller: PathCaller, endpoint: str) -> PathReply:
        if not caller.may_use(endpoint):
            return reply_rejected(404, "unknown endpoint")
        tools: list[Json] = []
        params: Json = {}
        try:
            while True:
                page = await caller.send(endpoint, "tools/list", params)
                tools += page["tools"]
                if not (cursor := page.get("nextCursor")):
                    break
                params = {"cursor": cursor}
        except RpcFailure as failure:
            return reply_failure(failure)
        url = f"{self._gateway_url()}{PREFIX}{f'/{endpoint}' if endpoint else ''}"
        key = hashlib.sha256(encode_json([url, tools])).digest()
        encoded = self._documents.get(key)
        if encoded is None:
            title = f"Toolway: {endpoint}" if endpoint else "Toolway"
            encoded = encode_json(await run_in_slices(build_document(tools, url, title)))
            if len(self._documents) >= MAX_DOCUMENTS:
                del self._documents[next(iter(self._documents))]
            self._documents[key] = encoded
        return PathReply(200, encoded, (("content-type", "application/json"), PRIVATE))


def _wants_whole(caller: PathCaller) -> bool:
    """Return True if the client asks for the result as MCP defines it, and for nothing else."""
    return caller.headers.get("accept", "").partition(";")[0].strip().lower() == MCP_RESULT_TYPE
