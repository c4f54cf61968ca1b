"""The approval inbox's view of agent runs: runs with a call that needs your approval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolway.agents.agent import AGENT_WORKFLOW
from toolway.agents.run_reader import AgentRunReader
from toolway.parts.workflows.inbox import RunInbox

if TYPE_CHECKING:
    from toolway.types import Json
    from toolway.workflows.journal import Entry, RunRecord


class AgentInbox(RunInbox):
    """Agent runs that need approval (`Inbox`), with the calls they want to make."""

    kind = "agent"
    admin = "agents"

    def has(self, workflow: str) -> bool:
        return workflow == AGENT_WORKFLOW

    def name_of(self, record: RunRecord) -> str:
        """Return the agent's task."""
        return str((record.input or {}).get("prompt") or "")

    def call_fields(self, record: RunRecord, entries: Sequence[Entry], step: str) -> Json:
        found = AgentRunReader(Path()).find_call(record, entries, step)
        if found is None:
            return {}
        arguments = json.dumps(found["arguments"], ensure_ascii=False)
        return {"tool": found["tool"], "effect": found["effect"], "arguments": arguments}
