"""Checks workflow files outside a running gateway, for the doctor and for cluster nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolway.config.approval.workflow_files import capture_workflows
from toolway.config.schema import ConfigIssue
from toolway.part_api import Check
from toolway.types import Json
from toolway.workflows.files import read_workflows, to_documents

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig
    from toolway.part_api import GatewaySettings

_log = logging.getLogger("toolway.cluster")


def check_workflows(gateway: GatewaySettings) -> Iterator[Check]:
    """Check the workflow files listed in a gateway's settings."""
    definitions, issues = read_workflows(capture_workflows(gateway.workflows))
    for issue in issues:
        detail = f"{issue.location}: {issue.detail}" if issue.location else issue.detail
        yield Check("workflows", "fail", issue.message, detail, issue.hint, code=issue.code)
    if not issues and not definitions:
        yield Check("workflows", "warn", "no workflow file was found", ", ".join(map(str, gateway.workflows)))
    elif definitions:
        yield Check("workflows", "ok", f"{len(definitions)} workflows can be used")


def find_issues(config: LoadedConfig, *, only_approved: bool) -> Sequence[ConfigIssue]:
    """Return the problems with a configuration's workflows: with all of them, or only with trusted ones."""
    captured = config.capture_workflows() if only_approved else capture_workflows(config.gateway.workflows)
    return read_workflows(captured)[1]


def shared_settings(config: LoadedConfig) -> Json:
    """Return the definitions of the workflows that may be used, leaving out those with an error."""
    definitions, issues = read_workflows(config.capture_workflows())
    for issue in issues:
        _log.error("workflow not published to the cluster: %s", issue)
    return {"workflows": to_documents(definitions)}
