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
from msgspec.structs import replace

from toolway.agents.events import AgentEvent, AgentEventLog
from toolway.agents.model_access import ModelAccess, base_urls
from toolway.agents.settings import AgentSettings, ApprovalPolicy, Budget, ConfiguredAgent
from toolway.agents.transcript import read_messages
from toolway.errors import ConfigError
from toolway.hub.hub import Hub
from toolway.telemetry.otel_attributes import StepSpan, agent_span
from toolway.types import Json
from toolway.workflows.definition import AGENT_WORKFLOW as AGENT_WORKFLOW
from toolway.workflows.engine import POLL_INTERVAL_S, Run, WorkflowError, Workflows
from toolway.workflows.journal import FINAL_STATES, RunRecord
from toolway.workflows.python_workflow import PythonWorkflow
from toolway.workflows.run_questions import find_asking_runs
from toolway.workflows.sqlite_journal import SqliteJournal

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an agent run: the output of the model, the tool calls that it made, and the tokens and money used."""

    output: Any
    tool_calls: list[Json] = []  # tool, arguments, result, executed
    #: requests, input_tokens, output_tokens, cached_tokens (of the input), reasoning_tokens (of the output) and usd, as
    #: the provider reports them. Requests without usage numbers: uncounted_tokens, uncounted_usd, both estimated.
    usage: Json = {}


class Agent:
    """A model with the tools of a hub.

    Args:
        model: Provider and model, such as `openai:gpt-5` or `anthropic:claude-sonnet-5`, or a model of pydantic-ai.
        hub: The hub whose tools the model may call.
        tools: Patterns of tools, such as `github.*`.
        instructions: System prompt.
        approve: Calls that a user must approve: `unsafe`, `all`, `none`, or patterns of tools.
        on_unknown: If a call may have run: `tell` the model, or `ask` a user.
        untrusted: Servers whose results may contain untrusted instructions, besides those with `untrusted` in the
            configuration. After a result of one, unsafe calls of other servers need approval. `none` switches it off.
        budget: Limits of a run.
        output: JSON Schema of the output. Without it the output is text.
        journal: File of the journal, or open `Workflows`. Without it runs are in memory and end with the process.
        base_url: Address of an OpenAI-compatible endpoint.
        temperature: Temperature of the model.
        max_tokens: Length of one answer.
        prices: USD for a million input and output tokens, by model, if they are not in the table of `genai-prices`.
        stream: Report text while it arrives.
        agents: Agents that this one may call as tools, by name. What they use counts against this one's budget too.
        description: What the agent does, for an agent that calls it.

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
        agents: Mapping[str, Agent] | None = None,
        description: str = "",
    ) -> None:
        self._models: dict[str, Model] = {} if isinstance(model, str) else {model.model_id: model}
        for inner in (agents or {}).values():
            self._models |= inner._models
        self.description = description
        self.settings: AgentSettings = AgentSettings(
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
            agents={
                name: ConfiguredAgent(settings=inner.settings, description=inner.description)
                for name, inner in (agents or {}).items()
            },
        )
        self._hub = hub
        self._journal = journal
        self._log = AgentEventLog(stream)
        self._workflows: Workflows | None = None
        self._stack = AsyncExitStack()
        #: The program that creates the agent has named its address: it may get the API key of the provider.
        self._model_urls: tuple[str, ...] = tuple(base_urls(self.settings))
        self.workflow = agent_workflow(
            hub,
            self._log,
            lambda settings: self._models.get(settings.model),
            model_urls=self._model_urls,
        )

    @classmethod
    def from_settings(
        cls,
        settings: AgentSettings,
        hub: Hub,
        *,
        journal: str | os.PathLike[str] | Workflows | None = None,
        model_urls: Sequence[str] = (),
    ) -> Self:
        """Create an agent from settings in a file, or from settings stored with an earlier run.

        Addresses in the settings receive an API key only if the configuration or `model_urls` lists them.
        """
        agent = cls(settings.model, hub, journal=journal)
        agent.settings, agent._model_urls = settings, tuple(model_urls)
        agent.workflow = agent_workflow(hub, agent._log, model_urls=model_urls)
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

    async def start(
        self, prompt: str, *, key: str | None = None, variables: Mapping[str, Any] | None = None, caller: str = ""
    ) -> AgentRun:
        """Start a run and return its handle, after the run is on disk.

        Args:
            prompt: The task.
            key: The same key always gives the same run.
            variables: Values to store with the run.
            caller: Name of the user or program that starts the run.

        Raises:
            AgentError: The model cannot be used, or its price is unknown and the budget is in USD.
        """
        access = _model_access(self._hub, self._model_urls)
        await asyncio.to_thread(check_agent, self.settings, access, self._models)  # the libraries load for a second
        workflows = self._get_workflows()
        inputs = {"prompt": prompt, "settings": msgspec.to_builtins(self.settings)}
        run = await workflows.start(self.workflow, inputs, key=key, variables=variables, caller=caller)
        return AgentRun(workflows, run, self._log)

    async def run(self, prompt: str, *, key: str | None = None) -> AgentResult:
        """Run a prompt to completion and return the result.

        Raises:
            AgentError: As for `start`.
            WorkflowError: The run failed.
        """
        return await (await self.start(prompt, key=key)).result()

    def get(self, id: str) -> AgentRun:
        """Return the handle of an agent run by the id of the run."""
        workflows = self._get_workflows()
        return AgentRun(workflows, Run(workflows, id), self._log)

    def _get_workflows(self) -> Workflows:
        if self._workflows is None:
            raise WorkflowError("the agent is not open", hint="use: async with Agent(…) as agent")
        return self._workflows


class AgentRun:
    """Handle of an agent run: reads its state, waits for its result, and answers its questions."""

    def __init__(self, workflows: Workflows, run: Run, log: AgentEventLog) -> None:
        self._workflows = workflows
        self._run = run
        self._log = log
        self.id = run.id

    async def status(self) -> RunRecord:
        """Return the current state of the run, as stored in its journal."""
        return await self._run.status()

    async def wait(self) -> RunRecord:
        """Wait until the run has ended or waits for a user's answer; return its state."""
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
        """Approve the tool call that the run waits for, or deny it if `yes` is False.

        `step` comes from the `asks` event, and may be left out if this run has only one question. `by` is the name of
        whoever decided.
        """
        run, path = self._split(step)
        await self._workflows.answer(run, path, {"yes": yes, "note": note}, by=by)

    async def settle(self, step: str | None = None, *, happened: bool, by: str = "") -> None:
        """Record whether a tool call with an unknown outcome ran (`happened`), so the run can continue.

        This is needed if the agent has `on_unknown="ask"`.
        """
        run, path = self._split(step)
        await self._workflows.settle(run, path, happened=happened, by=by)

    def _split(self, step: str | None) -> tuple[str, str | None]:
        """Record whether a tool call with an unknown outcome ran (`happened`), so the run continues.

        A step of a child run is written as `RUN#PATH`; any other path is of this run.
        """
        run, separator, path = (step or "").rpartition("#")
        return (run, path) if separator else (self.id, step)

    async def asking(self) -> list[RunRecord]:
        """Return this run and its child runs that are waiting for a user's answer."""
        return await find_asking_runs(self._workflows, self.id)

    async def events(self) -> AsyncIterator[AgentEvent]:
        """Yield the events of the run, from its beginning to its end. A question to a user is an event `asks`."""
        seen = 0
        asked: set[str] = set()
        while True:
            changed = self._log.changed
            record = await self._run.status()
            for event in self._log.after(self.id, seen):
                seen += 1
                yield event
            asking = await self.asking() if record.state in ("waiting", "asks") else []
            for run in asking:
                for question in run.asks:
                    step = question["path"] if run.id == self.id else f"{run.id}#{question['path']}"
                    if step not in asked:
                        asked.add(step)
                        yield AgentEvent(kind="asks", step=step, text=question["title"])
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
    hub: Hub,
    log: AgentEventLog | None = None,
    find_model: Callable[[AgentSettings], Model | None] | None = None,
    *,
    model_urls: Sequence[str] = (),
    may_see: Callable[[str, str], bool] | None = None,
) -> PythonWorkflow:
    """Return the workflow that executes agent runs, for the argument `code` of `Workflows`.

    Args:
        hub: The hub whose tools the runs call.
        log: Receives the events of the runs.
        find_model: Returns the model of a run; None for one that is found by the name in its settings.
        model_urls: Addresses that may get the API key of a model provider, besides the provider's own and those of
            `toolway.modelUrls` in the configuration of the hub. A run whose `base_url` is another one fails.
        may_see: Returns True if a caller, who has started a run, may see a tool (`server.tool`). None: all tools.
    """
    events = log or AgentEventLog()

    async def agent(run: Any, prompt: str, settings: Json) -> Json:
        chosen = msgspec.convert(settings, AgentSettings)
        model = find_model(chosen) if find_model is not None else None
        if model is None:
            model = await asyncio.to_thread(check_agent, chosen, _model_access(hub, model_urls))
        from toolway.agents.agent_loop import run_agent

        return await run_agent(hub, model, events, run, prompt, chosen, may_see)

    return PythonWorkflow(agent, name=AGENT_WORKFLOW, span=_span_of)


def _span_of(run: str, inputs: Json) -> StepSpan:
    return agent_span(str(inputs["settings"]["model"]), run)


def _model_access(hub: Hub, model_urls: Sequence[str]) -> ModelAccess:
    return ModelAccess(hub._core.servers.config.model_urls, hub._core.servers.config.network_policy).listing(model_urls)


def check_agent(settings: AgentSettings, access: ModelAccess, models: Mapping[str, Model] | None = None) -> Model:
    """Return a run's model. Raise `AgentError` if its package, its API key, or a known price is missing.

    This also raises if the settings name an address that must not receive the API key. The agents that it may call are
    checked too.
    """
    require_package()
    from toolway.agents.prices import require_price
    from toolway.agents.providers import require_one_attempt, resolve_model

    model = (models or {}).get(settings.model) or resolve_model(settings, access)
    require_one_attempt(model)
    if settings.budget.usd is not None:
        require_price(model, settings)
    for inner in settings.agents.values():
        check_agent(replace(inner.settings, budget=inner.settings.budget.within(settings.budget)), access, models)
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
