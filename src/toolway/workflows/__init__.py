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
from toolway.workflows.python_workflow import PythonWorkflow as PythonWorkflow
from toolway.workflows.python_workflow import RunContext as RunContext
from toolway.workflows.python_workflow import StepFailed as StepFailed
from toolway.workflows.python_workflow import StepResult as StepResult
from toolway.workflows.python_workflow import StepUnknown as StepUnknown
from toolway.workflows.python_workflow import verify as verify
from toolway.workflows.python_workflow import workflow as workflow
from toolway.workflows.simple import WorkflowEngine as WorkflowEngine
