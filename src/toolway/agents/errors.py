"""Exceptions of agents: an agent that cannot start, a run without an answer, a budget that is used up."""

from __future__ import annotations

from typing import Final

from toolway.workflows.python_workflow.step_result import RunFailure

BUDGET_HINT: Final = "start it with a larger budget, for example --budget 1usd,100calls"


class AgentError(RunFailure):
    """Raised when an agent cannot be started, or if its run ended without an answer."""

    code = "E-AGENT"


class BudgetUsed(AgentError):
    """Raised in a run that has used up its budget."""

    code = "E-AGENT-BUDGET"
