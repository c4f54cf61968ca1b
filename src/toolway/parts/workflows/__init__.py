"""Durable workflows of a gateway: executes their runs, offers them as tools, and shows and answers runs.

The engine is the package `toolway.workflows`, which programs use without a gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolway.part_api.part import Command, Metric, Part, PartContext, PartRuntime

if TYPE_CHECKING:
    from types import ModuleType

    from toolway.config.loader import LoadedConfig
    from toolway.config.schema import ConfigIssue
    from toolway.gateway.admin.routes import Route
    from toolway.part_api import Check, GatewaySettings
    from toolway.types import Json

_CLI = "toolway.parts.workflows.cli"
_FILE = ("config",)
_RUNS = ("gateway", "token", "ca")  # --journal names the runs of this machine


class GatewayWorkflows(Part):
    """Workflows of a gateway, in files that the configuration names.

    Their setting is not parsed here: each workflow must be approved before it runs, and `toolway.config` decides that.
    """

    name = "workflows"
    server_names = ("workflows",)
    inbox = "toolway.parts.workflows.inbox:RunInbox"
    cluster_store = "toolway.cluster.db.run_journal:open_journal"
    commands: ClassVar[Mapping[str, Command]] = {
        "workflow": Command(
            "Run workflows that survive a crash.",
            subcommands={
                "run": Command("Run a workflow until it finishes or needs you.", f"{_CLI}:workflow_run", options=_FILE),
                "check": Command("Show what a crash in each step would do.", f"{_CLI}:workflow_check", options=_FILE),
                "ls": Command("List recent runs.", f"{_CLI}:workflow_ls", options=_RUNS),
                "show": Command("Show the steps of a run.", f"{_CLI}:workflow_show", options=_RUNS),
                "answer": Command("Answer a question from a run.", f"{_CLI}:workflow_answer", options=_RUNS),
                "settle": Command("Tell Toolway whether a call ran.", f"{_CLI}:workflow_settle", options=_RUNS),
                "resume": Command("Resume a run.", f"{_CLI}:workflow_resume", options=(*_FILE, *_RUNS)),
                "cancel": Command("Cancel a run.", f"{_CLI}:workflow_cancel", options=_RUNS),
            },
            section="Automate",
            after="cluster",
        )
    }
    former_commands: ClassVar[Mapping[str, str]] = {
        "workflow approve": "approvals approve",
        "workflow approve --no": "approvals deny",
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        "toolway_workflow_runs_asking": Metric("Workflow runs that need an answer, at most 1000"),
        "toolway_workflow_runs_active": Metric("Workflow runs that are running now, not counting runs that wait"),
    }

    def open(self, context: PartContext) -> PartRuntime:
        from toolway.parts.workflows.service import WorkflowService

        return WorkflowService(self, context)

    def routes(self) -> Sequence[Route]:
        from toolway.parts.workflows.routes import ROUTES

        return ROUTES

    def schemas(self) -> Mapping[str, Json]:
        from toolway.parts.workflows.schemas import SCHEMAS

        return SCHEMAS

    def check_file(self, gateway: GatewaySettings) -> Iterable[Check]:
        if not gateway.workflows:
            return ()
        found: Iterable[Check] = _file_checks().check_workflows(gateway)
        return found

    def find_issues(self, config: LoadedConfig, *, only_approved: bool = False) -> Sequence[ConfigIssue]:
        if not config.gateway.workflows:
            return ()
        found: Sequence[ConfigIssue] = _file_checks().find_issues(config, only_approved=only_approved)
        return found

    def shared_settings(self, config: LoadedConfig) -> Mapping[str, Any]:
        if not config.gateway.workflows:
            return {"workflows": []}
        return {"workflows": _file_checks().read_documents(config)}


def _file_checks() -> ModuleType:
    from toolway.parts.workflows import file_checks  # loads the engine

    return file_checks
