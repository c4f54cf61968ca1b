"""Agents: a model that calls tools, in runs that continue after a crash and repeat no unsafe call.

Example:
    async with Hub("mcp.json") as hub, Agent("openai:gpt-5", hub, tools=["github.*"]) as agent:
        print((await agent.run("List the open issues of acme/web")).output)
"""

from __future__ import annotations

from toolway.agents.agent import Agent as Agent
from toolway.agents.agent import AgentResult as AgentResult
from toolway.agents.agent import AgentRun as AgentRun
from toolway.agents.agent import agent_workflow as agent_workflow
from toolway.agents.errors import AgentError as AgentError
from toolway.agents.errors import BudgetUsed as BudgetUsed
from toolway.agents.events import AgentEvent as AgentEvent
from toolway.agents.runner import AgentRunner as AgentRunner
from toolway.agents.settings import Budget as Budget
