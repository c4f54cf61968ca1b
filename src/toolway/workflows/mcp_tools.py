"""In-process MCP server whose tools are workflows: a call starts a run and returns its output.

A client with the tasks extension gets a task. For other clients the call waits, and reports the progress of the run. If
the run asks a user, the client gets the question as a form: an approval, data, or the outcome of a call that may have
run. A client without forms, or whose time is over, gets the id of the run; with the tool `run_status` it can
wait for the run. The run continues in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

import msgspec

from toolway._version import __version__
from toolway.config.agent_settings import ConfiguredAgent
from toolway.errors import ToolwayError
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN_PROTOCOL_VERSIONS,
    SERVER_INFO_META_KEY,
)
from toolway.protocol.versions import TASKS_EXTENSION
from toolway.telemetry.otel_attributes import TRACEPARENT_KEY
from toolway.types import Certainty, Effect, Era, Json
from toolway.upstream.transport import (
    Disconnect,
    InboundHandler,
    JSONRPCError,
    Request,
    Transport,
    TransportError,
    TransportInfo,
)
from toolway.workflows.definition import AGENT_META_KEY, AGENT_WORKFLOW, AgentRuns, Definition, ToolStep
from toolway.workflows.engine import WorkflowError, Workflows, check_form
from toolway.workflows.files import STATUS_TOOL
from toolway.workflows.journal import FINAL_STATES, TRACE_VARIABLE, Entry, RunRecord
from toolway.workflows.run_questions import RunQuestions, find_asking_runs, wait_until_asked, watch_questions

DEFAULT_WAIT_S: Final = 45.0  # longest wait of one call; a hub's calls end after 60 s by default
POLL_INTERVAL_MS: Final = 1000  # advice for clients with a task
KEY_META_KEY: Final = "toolway/idempotencyKey"  # the same key gives the same run
MAX_SUBSCRIBED_TASKS: Final = 100  # of one subscription
_STATUS_SCHEMA: Final[Json] = {
    "type": "object",
    "required": ["run"],
    "properties": {"run": {"type": "string", "description": "Id of the run."}},
}
_AGENT_SCHEMA: Final[Json] = {
    "type": "object",
    "required": ["prompt"],
    "properties": {"prompt": {"type": "string", "description": "The task for the agent."}},
    "additionalProperties": False,
}
_CAPABILITIES: Final[Json] = {"tools": {"listChanged": True}, "extensions": {TASKS_EXTENSION: {}}}
_TASK_STATES: Final = {"done": "completed", "cancelled": "cancelled"}  # other final states: failed


class WorkflowServer:
    """Server whose tools are workflows. Pass it to a hub like any server object.

    Args:
        workflows: The engine that executes the runs.
        definitions: The workflows.
        wait_s: Seconds that a call without the tasks extension waits for its run.
        roles: Returns a caller's names and roles, for questions that only some callers may answer.
        agents: Agents to offer as tools too, by name.

    Example:
        async with Hub({"flow": WorkflowServer(workflows, [definition])}) as hub:
            result = await hub.call_tool("flow.refund", {"order": "A-17"})
    """

    def __init__(
        self,
        workflows: Workflows,
        definitions: Iterable[Definition] = (),
        *,
        wait_s: float = DEFAULT_WAIT_S,
        roles: Callable[[str], tuple[str, ...]] = lambda caller: (),
        agents: Mapping[str, ConfiguredAgent] | None = None,
    ) -> None:
        self.workflows = workflows
        self.wait_s = wait_s
        self.questions = RunQuestions(workflows, roles)
        self.stopping = asyncio.Event()
        self._definitions = {each.name: each for each in definitions}
        self.agents: Mapping[str, ConfiguredAgent] = dict(agents or {})
        self._transports: set[WorkflowTransport] = set()

    @property
    def definitions(self) -> dict[str, Definition]:
        """Return the definitions of all workflows, by name."""
        return self._definitions

    def set_definitions(
        self, definitions: Iterable[Definition], agents: Mapping[str, ConfiguredAgent] | None = None
    ) -> None:
        """Replace the workflows and agents. Runs keep the definition that they were started with."""
        before = (self._definitions, self.agents)
        self._definitions, self.agents = {each.name: each for each in definitions}, dict(agents or {})
        if before != (self._definitions, self.agents):
            for transport in self._transports:
                transport.notify_list_changed()

    def stop_waiting(self) -> None:
        """Make all calls that wait for a run return now, with the run's id."""
        self.stopping.set()

    def create_transport(self) -> Transport:
        return WorkflowTransport(self)

    def attach(self, transport: WorkflowTransport) -> None:
        """Notify `transport` when the tools of this server change, until `detach`."""
        self._transports.add(transport)

    def detach(self, transport: WorkflowTransport) -> None:
        """Stop notifying a transport about changes of the workflows."""
        self._transports.discard(transport)


class WorkflowTransport:
    """Connection of a hub to a `WorkflowServer`: answers MCP requests of the modern protocol era."""

    def __init__(self, server: WorkflowServer) -> None:
        self._server = server
        self._inbound: InboundHandler | None = None
        self._closed = asyncio.Event()
        self._received = 0
        self._methods: dict[str, Callable[[Request], Coroutine[Any, Any, Json]]] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "tasks/get": self._get_task,
            "tasks/update": self._update_task,
            "tasks/cancel": self._cancel_task,
            "subscriptions/listen": self._listen,
        }

    @property
    def _workflows(self) -> Workflows:
        return self._server.workflows

    @property
    def _questions(self) -> RunQuestions:
        return self._server.questions

    # -- the transport

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        self._server.attach(self)

    async def request(self, request: Request) -> Json:
        if self._closed.is_set():
            raise TransportError("the workflow server was closed", Certainty.NOT_SENT, code="E-CLOSED")
        self._received += 1
        method = self._methods.get(request.method)
        if method is None:
            raise JSONRPCError(METHOD_NOT_FOUND, f"unknown method {request.method!r}")
        request.call_state.mark_sent()
        return await method(request)

    async def notify(self, method: str, params: Json) -> None:
        """Do nothing: no notification of a client changes a run."""

    def set_protocol(self, era: Era, version: str) -> None:
        """Do nothing: this transport supports only the modern protocol era."""

    def reset_session(self) -> None:
        """Do nothing: this transport has no session."""

    async def wait_closed(self) -> Disconnect:
        await self._closed.wait()
        return Disconnect("closed by us", "E-CLOSED")

    def info(self) -> TransportInfo:
        return TransportInfo(messages_sent=self._received, messages_received=self._received, peer_is_modern=True)

    async def close(self) -> None:
        self._closed.set()
        self._server.detach(self)

    def notify_list_changed(self) -> None:
        """Notify the hub that the list of tools has changed, because the workflows have."""
        self._tell("notifications/tools/list_changed", {})

    def _tell(self, method: str, params: Json) -> None:
        if self._inbound is not None:
            self._inbound.on_notification(method, params)

    # -- lists

    async def _discover(self, request: Request) -> Json:
        return {
            "resultType": "complete",
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            "capabilities": _CAPABILITIES,
            "_meta": {SERVER_INFO_META_KEY: {"name": "toolway-workflows", "version": __version__}},
        }

    async def _list_tools(self, request: Request) -> Json:
        status = {
            "name": STATUS_TOOL,
            "description": "Wait for a workflow run and return its output, its question or its state.",
            "inputSchema": _STATUS_SCHEMA,
            "annotations": {"readOnlyHint": True},
        }
        tools = [self._tool_of(each) for each in self._server.definitions.values()]
        agents = [_agent_tool(name, agent) for name, agent in self._server.agents.items()]
        return {"resultType": "complete", "tools": [*tools, *agents, status]}

    def _tool_of(self, definition: Definition) -> Json:
        steps = [step for step in definition.walk() if isinstance(step, ToolStep)]
        reads = all((step.effect or self._workflows.effect_of(step.tool)) is Effect.READ for step in steps)
        has_agents = bool(definition.agent_steps())
        reads = reads and not has_agents
        return {
            **({"_meta": {AGENT_META_KEY: True}} if has_agents else {}),
            "name": definition.name,
            "description": definition.description or f"Workflow with {len(steps)} tool calls.",
            "inputSchema": definition.inputs or {"type": "object"},
            "annotations": {"readOnlyHint": reads, "destructiveHint": not reads},
        }

    # -- calls

    async def _call_tool(self, request: Request) -> Json:
        params, caller = request.params, request.call_state.caller
        name, arguments, state = params.get("name"), params.get("arguments") or {}, params.get("requestState")
        try:
            if state is not None:
                record = await self._find_run(state, caller)
                answered = await self._questions.answer(record.id, params.get("inputResponses"), caller)
                return await self._follow(request, record, with_forms=answered)
            if name == STATUS_TOOL:
                return await self._follow(request, await self._find_run(arguments.get("run"), caller))
            definition: Definition | AgentRuns | None = self._server.definitions.get(str(name))
            if (agent := self._server.agents.get(str(name))) is not None:
                definition = AgentRuns()
                check_form(_AGENT_SCHEMA, arguments, code="E-WORKFLOW-INPUT", subject=f"the input of {name}")
                arguments = {"prompt": arguments["prompt"], "settings": msgspec.to_builtins(agent.settings)}
            if definition is None:
                raise JSONRPCError(INVALID_PARAMS, f"Unknown tool: {name}")
            key, trace = (_meta(params).get(each) for each in (KEY_META_KEY, TRACEPARENT_KEY))
            run = await self._workflows.start(
                definition,
                arguments,
                key=key if isinstance(key, str) else None,
                caller=caller,
                variables={TRACE_VARIABLE: trace} if isinstance(trace, str) else {},
            )
            record = await run.status()
            if TASKS_EXTENSION in _extensions(params):
                return {"resultType": "task", **await self._task(record.id, caller)}
            return await self._follow(request, record)
        except ToolwayError as exc:
            return _failure({"code": exc.code, "message": exc.message, "detail": exc.detail, "executed": "no"})

    async def _find_run(self, id: object, caller: str) -> RunRecord:
        """Return a run if the caller may see it: the local owner sees all, an API key its own.

        Raises `WorkflowError` if the run does not exist.
        """
        record = await self._workflows.get(str(id))
        if caller and record.caller != caller:
            raise WorkflowError(f"run {id} does not exist", code="E-WORKFLOW-RUN")
        return record

    async def _follow(self, request: Request, record: RunRecord, *, with_forms: bool = True) -> Json:
        """Wait until a run ends or asks a user, or the call's time runs out.

        Return the tool result for the client.
        """
        params, caller = request.params, request.call_state.caller
        asking: list[RunRecord] = []
        waiting = asyncio.ensure_future(wait_until_asked(self._workflows, record.id, self._report_progress(params)))
        stopping = asyncio.ensure_future(self._server.stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, timeout=self._server.wait_s, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                record, asking = waiting.result()
            else:
                record = await self._workflows.get(record.id)
        finally:
            for task in (waiting, stopping):
                task.cancel()
            await asyncio.gather(waiting, stopping, return_exceptions=True)
        if record.state == "done":
            return _result_of(record)
        if record.state in FINAL_STATES:
            return _failure({"run": record.id, "state": record.state, **(record.error or {})})
        if with_forms and _has_forms(params) and (forms := self._questions.forms(record.id, asking, caller)):
            return {"resultType": "input_required", "inputRequests": forms, "requestState": record.id}
        asks = [
            {"step": each["path"], "question": each["title"], **({} if run.id == record.id else {"run": run.id})}
            for run in asking or [record]
            for each in run.asks
        ]
        return _result({"run": record.id, "state": record.state, "asks": asks})

    def _report_progress(self, params: Json) -> Callable[[RunRecord], None]:
        """Return a function that reports a change of a run to the client, if the request has a progress token."""
        token = _meta(params).get("progressToken")
        changes = itertools.count(1)

        def report(record: RunRecord) -> None:
            if token is not None:
                progress = {"progressToken": token, "progress": next(changes)}
                message = f"{record.id}: {record.state}"
                self._tell("notifications/progress", {**progress, "message": message})

        return report

    # -- tasks

    async def _get_task(self, request: Request) -> Json:
        return {"resultType": "complete", **await self._task(request.params.get("taskId"), request.call_state.caller)}

    async def _update_task(self, request: Request) -> Json:
        record = await self._find_task(request)
        try:
            responses, caller = request.params.get("inputResponses"), request.call_state.caller
            await self._questions.answer(record.id, responses, caller)
        except ToolwayError as exc:
            raise JSONRPCError(INVALID_PARAMS, exc.message, {"code": exc.code, "detail": exc.detail}) from None
        return {"resultType": "complete"}

    async def _cancel_task(self, request: Request) -> Json:
        record = await self._find_task(request)
        if record.state not in FINAL_STATES:
            with contextlib.suppress(WorkflowError):  # it has just ended
                await self._workflows.cancel(record.id, by=request.call_state.caller)
        return {"resultType": "complete"}

    async def _find_task(self, request: Request) -> RunRecord:
        try:
            return await self._find_run(request.params.get("taskId"), request.call_state.caller)
        except WorkflowError:
            raise JSONRPCError(INVALID_PARAMS, "Unknown task") from None

    async def _task(self, id: object, caller: str) -> Json:
        """Return a run as a task of MCP's tasks extension."""
        try:
            await self._find_run(id, caller)
            record, _, entries, _ = await self._workflows.load(str(id))
            asks = record.state in ("waiting", "asks")
            asking = await find_asking_runs(self._workflows, record.id) if asks else []
        except WorkflowError:
            raise JSONRPCError(INVALID_PARAMS, "Unknown task") from None
        task: Json = {
            "taskId": record.id,
            "status": "working",
            "statusMessage": _status_message(record, asking, entries),
            "createdAt": _iso_time(record.created),
            "lastUpdatedAt": _iso_time(_last_change(record, entries)),
            "ttlMs": None,
            "pollIntervalMs": POLL_INTERVAL_MS,
        }
        if record.state in FINAL_STATES:
            task["status"] = _TASK_STATES.get(record.state, "failed")
            if record.state == "done":
                task["result"] = _result_of(record)
            elif record.state != "cancelled":
                error = record.error or {}
                data = {"run": record.id, "state": record.state, "executed": "yes", **error}
                task["error"] = {"code": INTERNAL_ERROR, "message": str(error.get("message") or record.state)}
                task["error"]["data"] = data
        elif forms := self._questions.forms(record.id, asking, caller):
            task |= {"status": "input_required", "inputRequests": forms}
        return task

    async def _listen(self, request: Request) -> Json:
        """Send notifications about changed tools, or changes of the requested tasks, until the connection is closed."""
        wanted = request.params.get("notifications")
        wanted = wanted if isinstance(wanted, dict) else {}
        ids = wanted.get("taskIds")
        tasks = [each for each in ids if isinstance(each, str)][:MAX_SUBSCRIBED_TASKS] if isinstance(ids, list) else []
        accepted: Json = {"taskIds": tasks} if isinstance(ids, list) else {"toolsListChanged": True}
        self._tell("notifications/subscriptions/acknowledged", {"notifications": accepted})
        watchers = [asyncio.create_task(self._report_task(id, request.call_state.caller)) for id in tasks]
        try:
            await self._closed.wait()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
        return {"resultType": "complete"}

    async def _report_task(self, id: str, caller: str) -> None:
        with contextlib.suppress(WorkflowError, JSONRPCError):
            async for record, _ in watch_questions(self._workflows, id):
                # The hub subscribes for all of its clients; the gateway has checked whose task it is.
                self._tell("notifications/tasks", await self._task(id, caller or record.caller))


def _meta(params: Json) -> Json:
    meta = params.get("_meta")
    return meta if isinstance(meta, dict) else {}


def _capabilities(params: Json) -> Json:
    capabilities = _meta(params).get(CLIENT_CAPABILITIES_META_KEY)
    return capabilities if isinstance(capabilities, dict) else {}


def _extensions(params: Json) -> Json:
    extensions = _capabilities(params).get("extensions")
    return extensions if isinstance(extensions, dict) else {}


def _has_forms(params: Json) -> bool:
    declared = _capabilities(params).get("elicitation")
    return isinstance(declared, dict) and (not declared or "form" in declared)


def _status_message(record: RunRecord, asking: list[RunRecord], entries: list[Entry]) -> str:
    if questions := [str(each["title"]) for run in asking or [record] for each in run.asks]:
        return "asks: " + "; ".join(questions)[:500]
    last = max(entries, key=lambda each: (each.began, each.ended or 0.0), default=None)
    if last is None:
        return record.state
    return f"{record.state}; step {last.path}: {last.tool or last.kind} {last.state}"


def _last_change(record: RunRecord, entries: list[Entry]) -> float:
    times = [record.created, record.ended or 0.0]
    return max([*times, *(each.began for each in entries), *(each.ended or 0.0 for each in entries)])


def _iso_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def _agent_tool(name: str, agent: ConfiguredAgent) -> Json:
    settings = agent.settings
    return {
        "name": name,
        "description": agent.description or f"Agent ({settings.model}) with the tools {', '.join(settings.tools)}.",
        "inputSchema": _AGENT_SCHEMA,
        "annotations": {"readOnlyHint": False, "destructiveHint": True},
        "_meta": {AGENT_META_KEY: True},
    }


def _result_of(record: RunRecord) -> Json:
    """Return the tool result for a run that has ended without a failure.

    For an agent's run, the text of the result is the agent's answer.
    """
    if record.workflow == AGENT_WORKFLOW:
        value = {"output": record.output["output"], "usage": record.output["usage"], "run": record.id}
        answer = value["output"]
        return _result(value, answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
    return _result(record.output if isinstance(record.output, dict) else {"result": record.output})


def _result(value: Json, text: str | None = None) -> Json:
    text = json.dumps(value, ensure_ascii=False) if text is None else text
    content = [{"type": "text", "text": text}]
    return {"resultType": "complete", "content": content, "structuredContent": value, "isError": False}


def _failure(error: Json) -> Json:
    content = [{"type": "text", "text": f"{error.get('message', '')} [{error.get('code', '')}]"}]
    return {"resultType": "complete", "content": content, "structuredContent": error, "isError": True}
