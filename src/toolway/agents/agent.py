"""Agents: a model with the tools of a hub, in runs that survive a crash and repeat no unsafe call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from toolway.agents.events import AgentEvent, AgentEventLog
from toolway.agents.settings import AgentSettings, ApprovalPolicy, Budget
from toolway.agents.transcript import read_messages
from toolway.errors import ConfigError
from toolway.hub.hub import Hub
from toolway.types import Json
from toolway.workflows.definition import AGENT_WORKFLOW as AGENT_WORKFLOW
from toolway.workflows.engine import POLL_INTERVAL_S, Run, WorkflowError, Workflows
from toolway.workflows.journal import FINAL_STATES, RunRecord
from toolway.workflows.python_workflow import PythonWorkflow
from toolway.workflows.sqlite_journal import SqliteJournal

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an agent run: its output, and what it did and cost."""

    output: Any
    tool_calls: list[Json] = []  # tool, arguments, result, executed
    usage: Json = {}  # requests, input_tokens, output_tokens, usd


class Agent:
    """A model with the tools of a hub.

    Args:
        model: Provider and model, such as `openai:gpt-5` or `anthropic:claude-sonnet-5`, or a model of pydantic-ai.
        hub: The hub whose tools the model may call.
        tools: Patterns of tools, such as `github.*`.
        instructions: System prompt.
        approve: Calls that a person must approve: `unsafe`, `all`, `none`, or patterns of tools.
        on_unknown: If a call may have been executed: `tell` the model, or `ask` a person.
        untrusted: Servers whose results may contain instructions of strangers, besides those with `untrusted` in the
            configuration. After a result of one, unsafe calls of other servers need approval. `none` switches it off.
        budget: Limits of a run.
        output: JSON Schema of the output. Without it the output is text.
        journal: File of the journal, or open `Workflows`. Without it runs are in memory and end with the process.
        base_url: Address of an OpenAI-compatible endpoint.
        temperature: Temperature of the model.
        max_tokens: Length of one answer.
        prices: USD for a million input and output tokens, by model, if they are not in the table of `genai-prices`.
        stream: Report texts while they arrive.

    Example:
        async with Hub("mcp.json") as hub, Agent("openai:gpt-5", hub, tools=["github.*"], journal="runs.db") as agent:
            run = await agent.start("Close the stale issues of acme/web", key="stale-46")
            print((await run.result()).output)
    """

    def __init__(
        self,
        model: str | Model,
        hub: Hub,
        *,
        tools: Sequence[str] = ("*",),
        instructions: str = "",
        approve: ApprovalPolicy = "unsafe",
        on_unknown: Literal["tell", "ask"] = "tell",
        untrusted: Sequence[str] | Literal["none"] = (),
        budget: Budget | None = None,
        output: Json | None = None,
        journal: str | os.PathLike[str] | Workflows | None = None,
        base_url: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        prices: Mapping[str, tuple[float, float]] | None = None,
        stream: bool = False,
    ) -> None:
        self._own_model = None if isinstance(model, str) else model
        self.settings = AgentSettings(
            model=model if isinstance(model, str) else model.model_id,
            tools=tuple(tools),
            instructions=instructions,
            approve=approve,
            on_unknown=on_unknown,
            untrusted="none" if untrusted == "none" else tuple(untrusted),
            budget=budget or Budget(),
            base_url=base_url,
            temperature=temperature,
            max_tokens=max_tokens,
            output=output,
            prices=dict(prices or {}),
        )
        self._hub = hub
        self._journal = journal
        self._log = AgentEventLog(stream)
        self._workflows: Workflows | None = None
        self._stack = AsyncExitStack()
        self.workflow = agent_workflow(hub, self._log, None if self._own_model is None else self._use_own_model)

    @classmethod
    def from_settings(
        cls, settings: AgentSettings, hub: Hub, *, journal: str | os.PathLike[str] | Workflows | None = None
    ) -> Self:
        """Return an agent with the settings of an earlier run."""
        agent = cls(settings.model, hub, journal=journal)
        agent.settings = settings
        return agent

    async def __aenter__(self) -> Self:
        if isinstance(self._journal, Workflows):
            self._workflows = self._journal
        else:
            journal = SqliteJournal(None if self._journal is None else Path(self._journal))
            self._workflows = await self._stack.enter_async_context(Workflows(self._hub, journal, code=[self.workflow]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start(self, prompt: str, *, key: str | None = None, caller: str = "") -> AgentRun:
        """Start a run and return its handle, after the run is on disk.

        Args:
            prompt: The task.
            key: The same key always gives the same run.
            caller: Name of the person or program that starts the run.

        Raises:
            AgentError: The model cannot be used, or its price is unknown and the budget is in USD.
        """
        await asyncio.to_thread(check_agent, self.settings, self._own_model)  # the libraries load for a second
        workflows = self._get_workflows()
        inputs = {"prompt": prompt, "settings": msgspec.to_builtins(self.settings)}
        run = await workflows.start(self.workflow, inputs, key=key, caller=caller)
        return AgentRun(workflows, run, self._log)

    async def run(self, prompt: str, *, key: str | None = None) -> AgentResult:
        """Run a prompt to its end and return the result.

        Raises:
            AgentError: As for `start`.
            WorkflowError: The run failed.
        """
        return await (await self.start(prompt, key=key)).result()

    def get(self, id: str) -> AgentRun:
        """Return the handle of a run by its id."""
        workflows = self._get_workflows()
        return AgentRun(workflows, Run(workflows, id), self._log)

    def _get_workflows(self) -> Workflows:
        if self._workflows is None:
            raise WorkflowError("the agent is not open", hint="use: async with Agent(…) as agent")
        return self._workflows

    def _use_own_model(self, settings: AgentSettings) -> Model:
        assert self._own_model is not None
        return self._own_model


class AgentRun:
    """Handle of an agent run."""

    def __init__(self, workflows: Workflows, run: Run, log: AgentEventLog) -> None:
        self._workflows = workflows
        self._run = run
        self._log = log
        self.id = run.id

    async def status(self) -> RunRecord:
        """Return the state of the run."""
        return await self._run.status()

    async def wait(self) -> RunRecord:
        """Wait until the run has ended or asks a person; return its state."""
        return await self._run.wait()

    async def result(self) -> AgentResult:
        """Wait until the run has ended; return its result.

        Raises:
            WorkflowError: The run failed or was cancelled.
        """
        return msgspec.convert(await self._run.result(), AgentResult)

    async def messages(self) -> list[Json]:
        """Return the conversation of the run so far, read from its journal."""
        record, _, entries, _ = await self._workflows.load(self.id)
        return read_messages(record, entries)

    async def approve(self, step: str | None = None, *, yes: bool = True, note: str = "", by: str = "") -> None:
        """Approve or deny the call that the run asks for."""
        await self._workflows.answer(self.id, step, {"yes": yes, "note": note}, by=by)

    async def settle(self, step: str | None = None, *, happened: bool, by: str = "") -> None:
        """State if a call with an unknown outcome was executed, for `on_unknown="ask"`."""
        await self._workflows.settle(self.id, step, happened=happened, by=by)

    async def events(self) -> AsyncIterator[AgentEvent]:
        """Yield what happens in the run, from its beginning to its end. Questions come as `asks`."""
        seen = 0
        asked: set[str] = set()
        while True:
            changed = self._log.changed
            record = await self._run.status()
            for event in self._log.after(self.id, seen):
                seen += 1
                yield event
            if self._workflows.is_asking(record):
                for question in record.asks:
                    if question["path"] not in asked:
                        asked.add(question["path"])
                        yield AgentEvent(kind="asks", step=question["path"], text=question["title"])
            if record.state in FINAL_STATES:
                for event in self._log.after(self.id, seen):
                    yield event
                text = "" if record.error is None else str(record.error.get("message", ""))
                yield AgentEvent(kind="end", text=text, executed=record.state)
                return
            waiter = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait({waiter}, timeout=POLL_INTERVAL_S)
            finally:
                waiter.cancel()


def agent_workflow(
    hub: Hub, log: AgentEventLog | None = None, build_model: Callable[[AgentSettings], Model] | None = None
) -> PythonWorkflow:
    """Return the workflow of agent runs, for `Workflows(code=…)`.

    Args:
        hub: The hub whose tools the runs call.
        log: Receives the events of the runs.
        build_model: Returns the model of a run. Default: by the name in its settings.
    """
    events = log or AgentEventLog()

    async def agent(run: Any, prompt: str, settings: Json) -> Json:
        chosen = msgspec.convert(settings, AgentSettings)
        model = build_model(chosen) if build_model is not None else await asyncio.to_thread(check_agent, chosen)
        from toolway.agents.agent_loop import run_agent

        return await run_agent(hub, model, events, run, prompt, chosen)

    return PythonWorkflow(agent, name=AGENT_WORKFLOW)


def check_agent(settings: AgentSettings, own_model: Model | None = None) -> Model:
    """Return the model of a run. Raise `AgentError` if the run could not begin: no package, no key, no price."""
    require_package()
    from toolway.agents.agent_loop import resolve_model
    from toolway.agents.prices import require_price

    model = own_model if own_model is not None else resolve_model(settings)
    if settings.budget.usd is not None:
        require_price(model, settings)
    return model


def require_package() -> None:
    """Raise `ConfigError` if the packages of agents are not installed."""
    try:
        import pydantic_ai  # noqa: F401
    except ImportError as exc:
        raise ConfigError(
            "agents need the package pydantic-ai-slim",
            detail=str(exc),
            hint="pip install 'toolway[agents]'",
            code="E-AGENT-PACKAGE",
        ) from exc
