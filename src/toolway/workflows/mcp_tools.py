"""MCP server whose tools are workflows: a call starts a run and returns its output.

If the run asks a person, the client gets the question as a form: an approval, data, or the outcome of a call that may
have been executed. A client without forms, or whose time is over, gets the id of the run; `run_status` waits for it.
The run goes on in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from toolway._version import __version__
from toolway.errors import ToolwayError
from toolway.types import Effect, Json
from toolway.workflows.definition import Definition, ToolStep
from toolway.workflows.engine import Workflows
from toolway.workflows.journal import FINAL_STATES, RunRecord

DEFAULT_WAIT_S: Final = 45.0  # longest wait of one call; a hub's calls end after 60 s by default
STATUS_TOOL: Final = "run_status"
_STATUS_SCHEMA: Final[Json] = {
    "type": "object",
    "required": ["run"],
    "properties": {"run": {"type": "string", "description": "Id of the run."}},
}
_APPROVAL_FORM: Final[Json] = {
    "type": "object",
    "required": ["yes"],
    "properties": {"yes": {"type": "boolean", "title": "Approve"}, "note": {"type": "string", "title": "Note"}},
}
_UNKNOWN_FORM: Final[Json] = {
    "type": "object",
    "required": ["happened"],
    "properties": {
        "happened": {"type": "string", "enum": ["it was executed", "it was not executed", "stop"]},
        "result": {"type": "string", "title": "Data of the step as JSON, if it was executed"},
    },
}


def create_workflow_server(
    workflows: Workflows, definitions: Iterable[Definition], *, wait_s: float = DEFAULT_WAIT_S
) -> Server:
    """Return an SDK server with a tool for each workflow. Add it to a hub like any server object."""
    tools = _WorkflowTools(workflows, {each.name: each for each in definitions}, wait_s)
    return Server("workflows", version=__version__, on_list_tools=tools.list_tools, on_call_tool=tools.call_tool)


class _WorkflowTools:
    def __init__(self, workflows: Workflows, definitions: dict[str, Definition], wait_s: float) -> None:
        self._workflows = workflows
        self._definitions = definitions
        self._wait_s = wait_s

    async def list_tools(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        status = types.Tool(
            name=STATUS_TOOL,
            description="Wait for a workflow run and return its output, its question or its state.",
            input_schema=_STATUS_SCHEMA,
            annotations=types.ToolAnnotations(read_only_hint=True),
        )
        return types.ListToolsResult(tools=[*map(_tool_of, self._definitions.values()), status])

    async def call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        arguments = params.arguments or {}
        try:
            if params.name == STATUS_TOOL:
                return await self._follow(context, str(arguments.get("run", "")))
            if params.request_state is not None:
                await self._answer(params.request_state, params.input_responses or {})
                return await self._follow(context, params.request_state)
            definition = self._definitions.get(params.name)
            if definition is None:
                raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
            run = await self._workflows.start(definition, arguments)
            return await self._follow(context, run.id)
        except ToolwayError as exc:
            return _failure({"code": exc.code, "message": exc.message, "detail": exc.detail, "executed": "no"})

    async def _follow(
        self, context: ServerRequestContext[Any], id: str
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Wait until the run ends or asks, or the time of the call is over."""
        record = await self._workflows.get(id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                record = await self._wait(context, id)
        if record.state == "done":
            output = record.output if isinstance(record.output, dict) else {"result": record.output}
            return _result(output)
        if record.state in FINAL_STATES:
            return _failure({"run": id, "state": record.state, **(record.error or {})})
        if self._workflows.is_asking(record) and _has_forms(context):
            requests: types.InputRequests = {each["path"]: _form_of(each) for each in record.asks if _is_open(each)}
            if requests:
                return types.InputRequiredResult(input_requests=requests, request_state=id)
        asks = [{"step": each["path"], "question": each["title"]} for each in record.asks]
        return _result({"run": id, "state": record.state, "asks": asks})

    async def _wait(self, context: ServerRequestContext[Any], id: str) -> RunRecord:
        steps = 0
        async for record in self._workflows.watch(id):
            steps += 1
            with contextlib.suppress(Exception):  # a client without a progress token
                await context.session.report_progress(steps, None, f"{id}: {record.state}")
            if record.state in FINAL_STATES or self._workflows.is_asking(record):
                return record
        raise AssertionError("a watch ends with a final state")

    async def _answer(self, id: str, responses: dict[str, Any]) -> None:
        record = await self._workflows.get(id)
        kinds = {each["path"]: each["kind"] for each in record.asks if _is_open(each)}
        for path, response in responses.items():
            if path not in kinds:
                continue  # answered before, by another client
            content = response.content or {} if isinstance(response, types.ElicitResult) else {}
            accepted = isinstance(response, types.ElicitResult) and response.action == "accept"
            if kinds[path] == "unknown":
                await self._settle(id, path, content if accepted else {})
            elif kinds[path] == "approve":
                yes = accepted and content.get("yes") is True
                await self._workflows.answer(id, path, {"yes": yes, "note": content.get("note") or ""}, by="client")
            elif accepted:
                await self._workflows.answer(id, path, {"data": dict(content)}, by="client")

    async def _settle(self, id: str, path: str, content: Json) -> None:
        happened = content.get("happened")
        if happened == "stop":
            await self._workflows.cancel(id, by="client")
        elif happened in ("it was executed", "it was not executed"):
            result = None
            with contextlib.suppress(ValueError):
                result = json.loads(content.get("result") or "null")
            await self._workflows.settle(id, path, happened=happened == "it was executed", result=result, by="client")


def _tool_of(definition: Definition) -> types.Tool:
    steps = [step for step in definition.walk() if isinstance(step, ToolStep)]
    reads = all(step.effect is Effect.READ for step in steps)
    return types.Tool(
        name=definition.name,
        description=definition.description or f"Workflow with {len(steps)} tool calls.",
        input_schema=definition.inputs or {"type": "object"},
        annotations=types.ToolAnnotations(read_only_hint=reads, destructive_hint=not reads),
    )


def _form_of(question: Json) -> types.ElicitRequest:
    forms = {"approve": _APPROVAL_FORM, "unknown": _UNKNOWN_FORM}
    schema = forms.get(question["kind"]) or question.get("form") or {"type": "object", "properties": {}}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=question["title"], requested_schema=schema))


def _has_forms(context: ServerRequestContext[Any]) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _is_open(question: Json) -> bool:
    """Return True if the client that started the run may answer: the file names no other person."""
    return not question.get("who") and question.get("not_by") is None


def _result(value: Json) -> types.CallToolResult:
    text = json.dumps(value, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=value)


def _failure(error: Json) -> types.CallToolResult:
    text = f"{error.get('message', '')} [{error.get('code', '')}]"
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=error, is_error=True)
