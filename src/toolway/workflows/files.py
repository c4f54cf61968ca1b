"""Workflows of a configuration: reads their definitions, and reports those that cannot be used.

The configuration of a cluster has the definitions themselves instead of patterns, so all nodes have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from toolway.config.approval.workflow_files import CapturedWorkflow
from toolway.config.schema import ConfigIssue
from toolway.errors import ConfigError, ToolwayError
from toolway.types import Json
from toolway.workflows.definition import Definition
from toolway.workflows.reader import read_captured

STATUS_TOOL: Final = "run_status"  # tool offered with the workflows; no workflow can have this name


def read_workflows(captured: Iterable[CapturedWorkflow]) -> tuple[list[Definition], list[ConfigIssue]]:
    """Return the valid definitions of the workflows, and an issue for each workflow that cannot be used."""
    definitions: dict[str, Definition] = {}
    issues: list[ConfigIssue] = []
    for each in captured:
        try:
            definition = read_captured(each)
            if definition.name in definitions or definition.name == STATUS_TOOL:
                raise ConfigError(
                    f"the workflow name {definition.name} is taken",
                    file=each.file,
                    hint="pick another name for the workflow",
                    code="E-WORKFLOW-FILE",
                )
        except ConfigError as exc:
            issues.append(ConfigIssue.from_error(exc))
        except ToolwayError as exc:
            issues.append(ConfigIssue("", exc.message, exc.detail, exc.hint, exc.code, "error", each.file))
        else:
            definitions[definition.name] = definition
    return list(definitions.values()), issues


def to_documents(definitions: Iterable[Definition]) -> list[Json]:
    """Return workflow definitions as JSON objects with their names.

    The shared configuration of a cluster contains these instead of file patterns.
    """
    return [msgspec.json.decode(msgspec.json.encode({**each.body, "name": each.name})) for each in definitions]
