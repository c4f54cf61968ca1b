"""A gateway's durable workflows: executes their runs, and offers them as tools.

The engine is the package `toolway.workflows`, which programs can use without a gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolway.part_api.part import Command, Metric, Part

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig
    from toolway.config.schema import ConfigIssue
    from toolway.part_api import Check, GatewaySettings

_CLI = "toolway.parts.workflows.cli"
_FILE = ("config",)
_RUNS = ("gateway", "token", "ca")  # --journal names the runs of this machine


class GatewayWorkflows(Part):
    """A gateway's workflows, from the files listed in the configuration.

    This part does not parse the workflow setting: each workflow must be trusted before it runs, and `toolway.config`
    decides that.
    """

    name = "workflows"
    code: ClassVar[Mapping[str, str]] = {
        "open": "service:WorkflowService",
        "routes": "routes:ROUTES",
        "schemas": "schemas:SCHEMAS",
        "check_file": "file_checks:check_workflows",
        "find_issues": "file_checks:find_issues",
        "shared_settings": "file_checks:shared_settings",
    }
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

    def check_file(self, gateway: GatewaySettings) -> Iterable[Check]:
        return super().check_file(gateway) if gateway.workflows else ()  # the checks load the engine

    def find_issues(self, config: LoadedConfig, *, only_approved: bool = False) -> Sequence[ConfigIssue]:
        return super().find_issues(config, only_approved=only_approved) if config.gateway.workflows else ()

    def shared_settings(self, config: LoadedConfig) -> Mapping[str, Any]:
        return super().shared_settings(config) if config.gateway.workflows else {"workflows": []}
