"""Workflows in Python: an `async` function whose steps are stored in a journal, and which is replayed after a crash.

When a run continues, the function runs from its beginning again: each `run.call`, `run.wait`, `run.approve` whose
outcome is in the journal returns that at once, the first one without an outcome runs. So the function must do
the same again with the same data: it gets time, randomness and everything from outside through the `RunContext`.

A step is found by its path: its `name`, else its tool and a number (`bank.refund#1`), below the branch of `each` or
`gather`. If the journal has another tool or other arguments at a path, the code was changed: the run becomes `stuck`
and nothing is called.

`step_planner.py` decides about each step by the same rules as for steps in files. A run that only waits is removed from
memory: its function ends with `Suspended`, and its `finally` blocks run then.
"""

from __future__ import annotations

from toolway.workflows.python_workflow.code_run import CodeRun as CodeRun
from toolway.workflows.python_workflow.decorator import PythonWorkflow as PythonWorkflow
from toolway.workflows.python_workflow.decorator import load_workflow as load_workflow
from toolway.workflows.python_workflow.decorator import workflow as workflow
from toolway.workflows.python_workflow.run_context import FUNCTION_PREFIX as FUNCTION_PREFIX
from toolway.workflows.python_workflow.run_context import RunContext as RunContext
from toolway.workflows.python_workflow.step_result import StepFailed as StepFailed
from toolway.workflows.python_workflow.step_result import StepResult as StepResult
from toolway.workflows.python_workflow.step_result import StepUnknown as StepUnknown
from toolway.workflows.python_workflow.step_result import verify as verify
