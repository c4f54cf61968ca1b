"""A hub's tools for a pydantic-ai agent. Each call is a step of the run, under the rules in `call_rules.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from pydantic_ai.tools import RunContext as ModelContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from toolway.adapters import texts
from toolway.adapters.schemas import AdaptedSchema, UnusableSchema, adapt_schema
from toolway.agents.call_rules import CallDecision, CallRules
from toolway.agents.errors import AgentError
from toolway.agents.inner_agents import SCHEMA, InnerAgents
from toolway.agents.journalled_model import JournalledModel
from toolway.agents.settings import AgentSettings
from toolway.catalog.catalog import Tool
from toolway.errors import CallError, Certainty
from toolway.hub.hub import Hub
from toolway.protocol.sanitize import remove_invisible
from toolway.protocol.tool_names import make_model_name
from toolway.telemetry.otel_attributes import tool_span
from toolway.types import Effect, Json
from toolway.workflows.definition import Retry
from toolway.workflows.python_workflow import RunContext, StepFailed, StepUnknown

MAX_TOOLS: Final = 30  # more are found by search
MAX_TOOL_CHARS: Final = 32_000  # of all definitions: about 8,000 tokens
MAX_RESULT_CHARS: Final = 20_000  # of a result that the model reads at once
TOOL_FAILED_CODE: Final = "E-TOOL-FAILED"
SEARCH_TOOL: Final = "search_tools"
READ_RESULT_TOOL: Final = "read_result"
_SEARCH_LIMIT: Final = 8
_ANY_ARGUMENTS: Final = SchemaValidator(schema=core_schema.any_schema())
_SEARCH_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What the tool should do, in a few words."}},
    "required": ["query"],
}
_READ_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "handle": {"type": "string"},
        "offset": {"type": "integer", "minimum": 0, "description": "First character to read."},
    },
    "required": ["handle", "offset"],
}


class HubToolset(AbstractToolset[Any]):
    """Pydantic-ai toolset with the hub tools that an agent run may use. Each call is a step.

    Args:
        hub: The hub.
        run: The run of the agent.
        model: Its model, which knows the step of each call.
        settings: Which tools may be used, and which calls need approval.
        tools: The definitions of the tools, as of the start of this process.
        effects: Names and effects of the tools at the start of the run, from the journal.
        untrusted: Servers whose results may contain untrusted instructions, from the journal.
    """

    def __init__(
        self,
        hub: Hub,
        run: RunContext,
        model: JournalledModel,
        settings: AgentSettings,
        tools: dict[str, Tool],
        effects: dict[str, str],
        untrusted: Collection[str] = (),
    ) -> None:
        self._hub = hub
        self._run = run
        self._model = model
        self._settings = settings
        self._tools = tools
        self.rules = CallRules(settings, untrusted)
        self._inner = InnerAgents(run, model, self.rules, settings, untrusted)
        self._effects = {name: Effect(effect) for name, effect in effects.items()}
        self._schemas = {name: _adapt(tools.get(name)) for name in effects}
        self._definitions = {name: self._define(name) for name in effects}
        self._by_model_name = {each.name: name for name, each in self._definitions.items()}
        size = sum(
            len(str(each.parameters_json_schema)) + len(each.description or "") for each in self._definitions.values()
        )
        self._searches = len(effects) > MAX_TOOLS or size > MAX_TOOL_CHARS
        self._shown: set[str] = set() if self._searches else set(effects)
        self._add_inner_agents()
        self._results: dict[str, str] = {}  # long results, by handle
        self._unsafe = asyncio.Lock()  # one unsafe call at a time, in the order of the model
        self.calls: list[Json] = []
        self.on_result: Callable[[str, Json], None] | None = None  # step, call

    def _add_inner_agents(self) -> None:
        for name, agent in self._inner:
            if name in self._definitions:
                raise AgentError(
                    f"two tools are called {name}",
                    detail="one is a server's tool, and the other is an agent in this agent's settings",
                    hint="rename the agent, or leave the tool out of the patterns",
                    code="E-AGENT-SETTINGS",
                )
            self._effects[name] = Effect.IDEMPOTENT  # a call starts one child run, even if it is made again
            self._schemas[name] = adapt_schema(SCHEMA)
            text = agent.description or f"Agent with the tools {', '.join(agent.settings.tools) or 'none'}."
            definition = ToolDefinition(
                name=make_model_name(*name.split(".")), description=text, parameters_json_schema=SCHEMA
            )
            self._definitions[name] = definition
            self._by_model_name[definition.name] = name
            self._shown.add(name)

    @property
    def id(self) -> str:
        return "toolway"

    async def get_tools(self, ctx: ModelContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of the hub that are offered to the model now."""
        found = [each for name, each in self._definitions.items() if name in self._shown]
        if self._searches:
            text = f"Find tools among {len(self._definitions)}. Found tools can be called in your next turn."
            found.append(ToolDefinition(name=SEARCH_TOOL, parameters_json_schema=_SEARCH_SCHEMA, description=text))
        if self._results:
            text = "Read on in a long result that was cut."
            found.append(ToolDefinition(name=READ_RESULT_TOOL, parameters_json_schema=_READ_SCHEMA, description=text))
        return {
            each.name: ToolsetTool(toolset=self, tool_def=each, max_retries=1, args_validator=_ANY_ARGUMENTS)
            for each in found
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: ModelContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Execute a tool call for the model; return the text for it, even if the call failed."""
        path = self._model.calls[ctx.tool_call_id or ""]
        turn = _turn_of(path)
        if (refusal := self.rules.find_surplus(int(path.rpartition(".")[2]))) is not None:
            return refusal
        if name == READ_RESULT_TOOL:  # no call: the text is here
            text = self._read_result(str(tool_args.get("handle", "")), tool_args.get("offset"))
            return self.rules.add_result(name, tool_args, text, turn)
        self.rules.require_calls_left(turn)
        if name == SEARCH_TOOL:
            text = await self._search(path, str(tool_args.get("query", "")))
            return self.rules.add_result(name, tool_args, text, turn)
        qualified = self._by_model_name[name]
        args = self._schemas[qualified].restore(tool_args)
        if not isinstance(args, dict):
            return texts.broken_arguments_text(name, str(args))
        if (refusal := self.rules.reserve(turn)) is not None:
            return refusal
        effect = self._effect_of(qualified)
        if effect is Effect.READ:
            return await self._call(path, qualified, args, effect)
        async with self._unsafe:
            return await self._call(path, qualified, args, effect)

    def _effect_of(self, tool: str) -> Effect:
        """Return the effect class a tool had when the run started, or `UNSAFE` if the hub now says so."""
        terms = self._hub._core.policies.terms(tool)
        return Effect.UNSAFE if terms is not None and terms.effect is Effect.UNSAFE else self._effects[tool]

    async def _call(self, path: str, tool: str, args: Json, effect: Effect) -> str:
        turn = _turn_of(path)
        decision = self.rules.decide(tool, args, effect, turn)
        record: Json = {"tool": tool, "arguments": args, "result": None, "executed": "no"}
        self.calls.append(record)
        text = await self._refuse(path, tool, decision)
        if text is None:
            text = await self._execute(path, tool, args, effect, record)
        record["result"] = text
        if self.on_result is not None:
            self.on_result(path, record)
        return self.rules.add_call_note(self._cut(path, self.rules.add_result(tool, args, text, turn)))

    async def _refuse(self, path: str, tool: str, decision: CallDecision) -> str | None:
        """Ask a user about a tool call if required. If the call is rejected, return the text for the model.

        Return None if the call may be made.
        """
        if decision.action == "refuse":
            return decision.text
        if decision.action == "approve":
            question = f"{path}/approve"
            try:
                await self._run.approve(decision.text, name=question)
            except StepFailed as exc:
                return texts.refusal_text(tool, exc.message)
            finally:
                self._model.add_pause(self._run.times(question))
        return None

    async def _execute(self, path: str, tool: str, args: Json, effect: Effect, record: Json) -> str:
        if tool in dict(self._inner):
            return await self._inner.call(path, tool, args, _turn_of(path), record)
        try:
            run = self._run.with_span(tool_span(tool, self._model.call_ids[path]))
            result = await run.call(
                tool,
                args,
                name=path,
                retry=Retry(tries=2, wait=1.0),
                on_unknown="ask" if self._settings.on_unknown == "ask" else "fail",
            )
        except StepUnknown as exc:
            record["executed"] = "unknown"
            self.rules.add_unknown(tool, args)
            return texts.error_text(_as_call_error(exc), tool, effect)
        except StepFailed as exc:
            record["executed"] = str(exc.error.get("executed") or "no")
            if exc.code == TOOL_FAILED_CODE:
                return exc.detail  # what the tool itself says
            return texts.error_text(_as_call_error(exc), tool, effect)
        record["executed"] = "yes"
        return result.text or ""

    async def _search(self, path: str, query: str) -> str:
        async def search() -> list[str]:
            matches = await self._hub.search_tools(query, limit=4 * _SEARCH_LIMIT)
            names = [each.tool.qualified_name for each in matches]
            return [name for name in names if name in self._definitions][:_SEARCH_LIMIT]

        found: list[str] = await self._run.do(search, name=path, effect=Effect.READ, timeout=30.0)
        self._shown.update(found)
        if not found:
            return "no tool found; try other words"
        lines = [
            f"{self._definitions[name].name}: {(self._definitions[name].description or '')[:200]}" for name in found
        ]
        return "\n".join(lines)

    def _read_result(self, handle: str, offset: Any) -> str:
        text = self._results.get(handle)
        if text is None or not isinstance(offset, int) or offset < 0:
            return "no such result, or the offset is not a number from 0"
        return self._part(handle, text, offset)

    def _cut(self, path: str, text: str) -> str:
        """Return a short tool result unchanged, or a long one's first part and a handle for the rest."""
        if len(text) <= MAX_RESULT_CHARS:
            return text
        handle = path.removeprefix("tool/")
        self._results[handle] = text
        return self._part(handle, text, 0)

    def _part(self, handle: str, text: str, offset: int) -> str:
        end = min(offset + MAX_RESULT_CHARS, len(text))
        part = text[offset:end]
        if end == len(text):
            return part
        note = f'{READ_RESULT_TOOL}(handle="{handle}", offset={end})'
        return f"{part}\n\n[cut: characters {offset} to {end} of {len(text)}. Read on with {note}]"

    def _define(self, name: str) -> ToolDefinition:
        tool = self._tools.get(name)
        server, _, own_name = name.partition(".")
        return ToolDefinition(
            name=make_model_name(server, own_name),
            description=remove_invisible(tool.description) if tool is not None else None,
            parameters_json_schema=self._schemas[name].schema,
        )


def _turn_of(path: str) -> int:
    return int(path.removeprefix("tool/").partition(".")[0])


def _adapt(tool: Tool | None) -> AdaptedSchema:
    """Return the input schema of a tool in a form that providers accept.

    If that is not possible, return a schema that allows any object.
    """
    try:
        return adapt_schema({"type": "object"} if tool is None else tool.input_schema)
    except UnusableSchema:
        return adapt_schema({"type": "object"})


def _as_call_error(exc: StepFailed) -> CallError:
    certainty = {"no": Certainty.NOT_SENT, "unknown": Certainty.UNKNOWN, "yes": Certainty.EXECUTED}
    error = exc.error
    return CallError(
        exc.message,
        detail=exc.detail,
        code=exc.code,
        certainty=certainty[str(error.get("executed") or "no")],
    )
