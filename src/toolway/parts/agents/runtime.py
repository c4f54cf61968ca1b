"""A running gateway's agents, which are added to its workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from toolway.config.schema import ConfigIssue
from toolway.errors import ConfigError
from toolway.part_api.part import Part, PartContext, PartRuntime
from toolway.parts.workflows.service import WorkflowService

if TYPE_CHECKING:
    from toolway.agents.run_reader import AgentRunReader
    from toolway.config.agent_settings import ConfiguredAgent
    from toolway.config.loader import LoadedConfig
    from toolway.hub.hub import Hub
    from toolway.types import Json
    from toolway.workflows.python_workflow import PythonWorkflow


class AgentsRuntime(PartRuntime):
    """A gateway's agents, as its workflows and the admin API see them."""

    def __init__(self, part: Part, context: PartContext) -> None:
        self.hub = context.hub
        self.workflows = context.runtime("workflows", WorkflowService)
        self.workflows.agents = _ConfiguredAgents()
        self.usages: dict[str, Json] = {}  # of runs that have ended, by id
        self._context = context

    def open_reader(self) -> AgentRunReader | None:
        """Return the reader of agent runs, or None if this gateway has no folder for them."""
        folder = self._context.place.folder
        if folder is None:
            return None
        from toolway.agents.run_reader import AgentRunReader  # loaded with the first request for agent runs

        return AgentRunReader(folder)


class _ConfiguredAgents:
    """The configured agents, and the workflow that runs them (`AgentSource`)."""

    def code(self, hub: Hub, may_see: Callable[[str, str], bool]) -> PythonWorkflow:
        from toolway.agents.agent import agent_workflow

        return agent_workflow(hub, may_see=may_see)

    async def load(
        self, config: LoadedConfig, taken: Collection[str]
    ) -> tuple[Mapping[str, ConfiguredAgent], list[ConfigIssue]]:
        if not config.gateway.agents:
            return {}, []
        return await asyncio.to_thread(_choose_agents, config.gateway.agents, taken)


def _choose_agents(
    configured: Mapping[str, ConfiguredAgent], taken: Collection[str]
) -> tuple[Mapping[str, ConfiguredAgent], list[ConfigIssue]]:
    """Return the agents to offer as tools, and the problems found with the others.

    An agent with the same name as a workflow is not offered.
    """
    from toolway.agents.agent import require_package
    from toolway.workflows.files import STATUS_TOOL

    unusable = sorted(configured.keys() & {STATUS_TOOL, *taken})
    detail, hint = "a workflow, or a tool of the gateway, has this name", "rename it in toolway.agents"
    issues = [
        ConfigIssue("", f"the agent {name} is not offered", detail, hint, "E-AGENT-SETTINGS", "error")
        for name in unusable
    ]
    agents = {name: each for name, each in configured.items() if name not in unusable}
    if agents:
        try:
            require_package()
        except ConfigError as exc:
            issues.append(ConfigIssue.from_error(exc))
    return agents, issues
