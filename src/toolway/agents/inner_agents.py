"""Agents that an agent may call as tools. Each call is a child run on its caller's budget.

A child gets at most what is left of its caller's budget. What it uses counts against both. If it does not say what it
has used, all that it was given counts. Untrusted content stays marked: what the caller has read counts as read by the
child, and the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from toolway.agents.call_rules import CallRules
from toolway.agents.journalled_model import JournalledModel
from toolway.agents.settings import AgentSettings, ConfiguredAgent
from toolway.types import Json
from toolway.workflows.definition import AgentRuns
from toolway.workflows.python_workflow import RunContext, StepFailed

SERVER: Final = "agent"  # a model sees `agent__NAME`
SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "The task, with everything the agent needs to know."}},
    "required": ["prompt"],
}


class InnerAgents:
    """Agents that one agent run may call as tools, by name. Each call starts a child run."""

    def __init__(
        self,
        run: RunContext,
        model: JournalledModel,
        rules: CallRules,
        settings: AgentSettings,
        untrusted: Collection[str],
    ) -> None:
        self._run = run
        self._model = model
        self._rules = rules
        self._agents = settings.agents
        self._untrusted = untrusted

    def __iter__(self) -> Iterator[tuple[str, ConfiguredAgent]]:
        """Yield (tool name `agent.NAME`, settings) of each agent that may be called."""
        return ((f"{SERVER}.{name}", agent) for name, agent in self._agents.items())

    async def call(self, path: str, tool: str, args: Json, turn: int, record: Json) -> str:
        """Run the agent named by `tool` on the prompt in `args`; return the text for the calling model.

        The text is the answer, or the reason why there is none. `record["executed"]` is set to the outcome.
        """
        name, prompt = tool.partition(".")[2], args.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            return "did not run: the argument prompt is missing"
        left = self._model.left_budget(self._rules.calls)
        if left.is_used_up:
            return "did not run: the budget of this run is used up. Give your answer now."
        settings = self._agents[name].settings
        settings = replace(settings, budget=settings.budget.within(left), **self._marks(settings, turn))
        inputs = {"prompt": prompt, "settings": msgspec.to_builtins(settings)}
        try:
            output: Json = await self._run.start(AgentRuns(), inputs, name=path)
        except StepFailed as exc:
            record["executed"] = str(exc.error.get("executed") or "yes")
            self._count(path, exc.error, settings, turn)
            self._rules.mark_read(exc.error.get("read_untrusted", self._untrusted), turn)
            return f"the agent {name} failed: {exc.message}. The calls that it made did run."
        record["executed"] = "yes"
        self._count(path, output, settings, turn)
        self._rules.mark_read(output.get("read_untrusted", self._untrusted), turn)
        answer: Any = output["output"]
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

    def _marks(self, settings: AgentSettings, turn: int) -> Json:
        """Return the settings that tell a child run from which untrusted servers its prompt may contain content."""
        sources = self._rules.sources(turn)  # also those of which only another child knows that they are untrusted
        has_read = (*settings.has_read, *sources)
        if settings.untrusted == "none":
            return {"has_read": has_read}
        return {"untrusted": tuple(sorted({*settings.untrusted, *self._untrusted, *sources})), "has_read": has_read}

    def _count(self, path: str, ended: Json, settings: AgentSettings, turn: int) -> None:
        usage, seconds = ended.get("usage"), ended.get("seconds")
        if seconds is not None:  # without the times in which the child waited for a user
            self._model.add_pause(self._run.times(path), seconds)
        if usage is None:
            self._model.spending.add_reservation(settings.budget)
            self._rules.add_calls(settings.budget.calls or 0, turn)
        else:
            self._model.spending.add_child(usage)
            self._rules.add_calls(usage.get("calls") or 0, turn)
