"""Operations of `/admin/runs`."""

from __future__ import annotations

from typing import Final

from toolway.gateway.admin.routes import AdminRequest, Route
from toolway.parts.workflows.admin import RUN_QUERY, RunsAdmin
from toolway.parts.workflows.service import WorkflowService


def _runs(service: WorkflowService, request: AdminRequest) -> RunsAdmin:
    return RunsAdmin(lambda: service.engine, request.key_names, service.hub.mask)


ROUTES: Final = (
    Route(
        "GET",
        "/admin/runs",
        "Newest workflow runs; runs that need an answer come first",
        "RunList",
        lambda a, r: _runs(a, r).list_runs(r.query),
        query=RUN_QUERY,
    ),
    Route(
        "GET",
        "/admin/runs/{id}",
        "One run with its steps, and the actions that are possible",
        "RunDetail",
        lambda a, r: _runs(a, r).get_run(r.decoded("id")),
    ),
    Route(
        "POST",
        "/admin/runs/{id}/approve",
        "Approve or deny what a run asks for",
        "RunStored",
        lambda a, r: _runs(a, r).approve(r.decoded("id"), r.body, r.principal),
        body="RunApproval",
    ),
    Route(
        "POST",
        "/admin/runs/{id}/answer",
        "Answer a question of a run with data",
        "RunStored",
        lambda a, r: _runs(a, r).answer(r.decoded("id"), r.body, r.principal),
        body="RunAnswer",
    ),
    Route(
        "POST",
        "/admin/runs/{id}/settle",
        "Resolve a call whose outcome is unknown",
        "RunStored",
        lambda a, r: _runs(a, r).settle(r.decoded("id"), r.body, r.principal),
        body="RunSettlement",
    ),
    Route(
        "POST",
        "/admin/runs/{id}/cancel",
        "Cancel a run; with `undo`, undo its finished steps",
        "RunStored",
        lambda a, r: _runs(a, r).cancel(r.decoded("id"), r.body, r.principal),
        body="RunCancellation",
    ),
    Route(
        "POST",
        "/admin/runs/{id}/resume",
        "Resume a stuck run",
        "RunStored",
        lambda a, r: _runs(a, r).resume(r.decoded("id"), r.body, r.principal),
        body="RunResumption",
    ),
)
