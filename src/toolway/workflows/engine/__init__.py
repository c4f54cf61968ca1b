"""Workflow engine: executes workflow definitions durably over a hub.

`planner.py` decides what a run does next. This package does it: it writes the planned steps to the journal, makes the
calls, and passes their outcomes to the planner. An unsafe call is sent only after its intent (the journal entry that
announces it) is on disk. A run that waits for a time or a user is a row in the journal and nothing in memory.
"""

from __future__ import annotations

from toolway.workflows.engine.checks import WorkflowError as WorkflowError
from toolway.workflows.engine.checks import check_form as check_form
from toolway.workflows.engine.checks import check_inputs as check_inputs
from toolway.workflows.engine.checks import may_answer as may_answer
from toolway.workflows.engine.stored_runs import POLL_INTERVAL_S as POLL_INTERVAL_S
from toolway.workflows.engine.stored_runs import Run as Run
from toolway.workflows.engine.workflows import Workflows as Workflows
