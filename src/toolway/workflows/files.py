"""Workflow files of a configuration: finds them by patterns, reads them, reports those that cannot be used."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from toolway.config.schema import ConfigIssue
from toolway.errors import ConfigError, ToolwayError
from toolway.workflows.definition import Definition
from toolway.workflows.reader import read_file

MAX_FILES: Final = 1000
STATUS_TOOL: Final = "run_status"  # tool beside the workflows; no workflow can have this name


def find_files(patterns: Iterable[str]) -> list[str]:
    """Return the workflow files that match the patterns, sorted by name. A missing file without `*` is included."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        found.update(dict.fromkeys(matches))
    return list(found)[:MAX_FILES]


def read_workflows(patterns: Iterable[str]) -> tuple[list[Definition], list[ConfigIssue]]:
    """Read all workflow files; return the valid definitions, and an issue for each file that cannot be used."""
    definitions: dict[str, Definition] = {}
    issues: list[ConfigIssue] = []
    for file in find_files(patterns):
        try:
            definition = read_file(Path(file))
            if definition.name in definitions or definition.name == STATUS_TOOL:
                raise ConfigError(
                    f"the workflow name {definition.name} is taken",
                    file=file,
                    hint="give the workflow another name",
                    code="E-WORKFLOW-FILE",
                )
        except ConfigError as exc:
            issues.append(ConfigIssue.from_error(exc))
        except ToolwayError as exc:
            issues.append(ConfigIssue("", exc.message, exc.detail, exc.hint, exc.code, "error", file))
        else:
            definitions[definition.name] = definition
    return list(definitions.values()), issues
