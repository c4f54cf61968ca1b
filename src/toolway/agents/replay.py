"""Replay of an agent run from its journal: no model is asked and no tool is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolway.agents.agent import agent_workflow
from toolway.agents.errors import AgentError
from toolway.agents.settings import AgentSettings
from toolway.catalog.catalog import Tool
from toolway.hub.call_policy import CallTerms
from toolway.types import Effect
from toolway.workflows.journal import Entry, RunMessage, RunRecord
from toolway.workflows.python_workflow import CodeRun
from toolway.workflows.step_planner import CallAction, RunMemory


class Replay(NamedTuple):
    """Result of replaying a run: its state and output. `missing` are the steps that the journal does not have."""

    state: str  # "done", "failed", or "incomplete"
    output: Any
    missing: tuple[str, ...]


class _JournalledTools:
    """Replacement for a hub while a run is replayed: knows only the effect classes of the tools that the run called."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._core = self.policies = self
        self._effects = {each.tool: Effect(each.effect) for each in entries if each.kind == "call" and each.effect}

    def status(self) -> dict[str, None]:
        return {}

    async def list_tools(self, **options: Any) -> list[Tool]:
        return []

    def terms(self, name: str) -> CallTerms | None:
        effect = self._effects.get(name)
        return None if effect is None else CallTerms(effect, "setting", 0.0, "")


async def replay_run(record: RunRecord, entries: Sequence[Entry], messages: Sequence[RunMessage]) -> Replay:
    """Execute the loop of an agent run again, with the answers and results in its journal. Nothing is sent.

    Ends at the first step that the journal does not have.
    """
    tools = _JournalledTools(entries)
    workflow = agent_workflow(tools, find_model=_silent_model)  # type: ignore[arg-type] # a part of a hub
    code = CodeRun(workflow, _call_nothing, _find_nothing, lambda: record.created)
    memory = RunMemory(entries)
    try:
        while True:
            decision = await code.plan(
                record, memory, messages, live=frozenset(), life=record.life, now=record.created, terms=tools.terms
            )
            if decision.end is not None:
                return Replay(decision.end.state, decision.end.output, ())
            missing = [*(each.path for each in decision.calls), *(each.path for each in decision.questions)]
            if missing or not code.is_running:
                return Replay("incomplete", None, tuple(missing))
            await code.wait_for_step()
    finally:
        await code.close()


def _silent_model(settings: AgentSettings) -> Model:
    def refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise AgentError("a replay does not ask a model")

    return FunctionModel(refuse, model_name=settings.model)


async def _call_nothing(action: CallAction, intent: Entry) -> Entry:
    raise AgentError("a replay does not call tools")


async def _find_nothing(name: str) -> None:
    return
