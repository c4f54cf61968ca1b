"""Operations of `/admin/agents`."""

from __future__ import annotations

from typing import Final

from toolway.gateway.admin.routes import AdminRequest, Route
from toolway.parts.agents.admin import AGENT_QUERY, AgentsAdmin
from toolway.parts.agents.runtime import AgentsRuntime


def _agents(runtime: AgentsRuntime, request: AdminRequest) -> AgentsAdmin:
    return AgentsAdmin(
        runtime.open_reader,
        lambda: runtime.workflows.engine,
        request.key_names,
        runtime.hub.mask,
        runtime.hub.emit,
        runtime.usages,
    )


ROUTES: Final = (
    Route(
        "GET",
        "/admin/agents",
        "Newest agent runs with their usage; runs that need an answer come first",
        "AgentList",
        lambda a, r: _agents(a, r).list_runs(r.query),
        query=AGENT_QUERY,
    ),
    Route(
        "GET",
        "/admin/agents/{id}",
        "One agent run: conversation, timeline, budget, and the actions that are possible",
        "AgentDetail",
        lambda a, r: _agents(a, r).get_run(r.decoded("id")),
    ),
    Route(
        "POST",
        "/admin/agents/{id}/approve",
        "Approve or deny a call of an agent",
        "RunStored",
        lambda a, r: _agents(a, r).act("approve", r.decoded("id"), r.body, r.principal),
        body="RunApproval",
    ),
    Route(
        "POST",
        "/admin/agents/{id}/settle",
        "Resolve an agent's call whose outcome is unknown",
        "RunStored",
        lambda a, r: _agents(a, r).act("settle", r.decoded("id"), r.body, r.principal),
        body="RunSettlement",
    ),
    Route(
        "POST",
        "/admin/agents/{id}/cancel",
        "Cancel an agent run",
        "RunStored",
        lambda a, r: _agents(a, r).act("cancel", r.decoded("id"), r.body, r.principal),
        body="RunCancellation",
    ),
    Route(
        "POST",
        "/admin/agents/{id}/resume",
        "Resume a stuck agent run",
        "RunStored",
        lambda a, r: _agents(a, r).act("resume", r.decoded("id"), r.body, r.principal),
        body="RunResumption",
    ),
)
