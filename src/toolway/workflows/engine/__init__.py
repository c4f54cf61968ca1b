"""Workflow engine: runs definitions durably over a hub.

`planner.py` decides, this package waits: it writes what the planner decided, makes the calls, and gives their outcomes
back to the planner. An unsafe call is sent only after its intent is on disk. A run that waits for a time or a person is
a row in the journal and nothing in memory.
"""

from __future__ import annotations

from toolway.workflows.engine.checks import WorkflowError as WorkflowError
from toolway.workflows.engine.checks import check_form as check_form
from toolway.workflows.engine.checks import check_inputs as check_inputs
from toolway.workflows.engine.checks import may_answer as may_answer
from toolway.workflows.engine.stored_runs import POLL_INTERVAL_S as POLL_INTERVAL_S
from toolway.workflows.engine.stored_runs import Run as Run
from toolway.workflows.engine.workflows import Workflows as Workflows
