"""Durable workflows of tool calls: a crash never repeats a call that must not be repeated.

Example:
    async with Hub("mcp.json") as hub, Workflows(hub, "runs.db") as workflows:
        run = await workflows.start("refund.yaml", {"order": "A-17"})
        print(await run.result())
"""

from __future__ import annotations

from toolway.workflows.engine import Run as Run
from toolway.workflows.engine import WorkflowError as WorkflowError
from toolway.workflows.engine import Workflows as Workflows
from toolway.workflows.journal import RunRecord as RunRecord
from toolway.workflows.simple import WorkflowEngine as WorkflowEngine
