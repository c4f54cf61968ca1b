"""Workflow files of a configuration: finds them by patterns, reads them, and reports those that cannot be used.

The configuration of a cluster has the definitions themselves instead of patterns, so that all nodes have the same ones.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from toolway.config.schema import ConfigIssue
from toolway.errors import ConfigError, ToolwayError
from toolway.types import Json
from toolway.workflows.definition import Definition
from toolway.workflows.reader import read_definition

MAX_FILES: Final = 1000
STATUS_TOOL: Final = "run_status"  # tool beside the workflows; no workflow can have this name


def find_files(patterns: Iterable[str | Mapping[str, Any]]) -> list[str]:
    """Return the workflow files that match the patterns, sorted by name within a pattern.

    A file that is named without `*` is returned even if it does not exist. Definitions among the patterns are skipped.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            continue  # a definition
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        found.update(dict.fromkeys(matches))
    return list(found)[:MAX_FILES]


def read_workflows(sources: Iterable[str | Mapping[str, Any]]) -> tuple[list[Definition], list[ConfigIssue]]:
    """Read the workflows in `sources`: file patterns, and definitions as mappings.

    Return the valid definitions, and an issue for each workflow that cannot be used.
    """
    sources = list(sources)
    definitions: dict[str, Definition] = {}
    issues: list[ConfigIssue] = []
    inline = [each for each in sources if not isinstance(each, str)]
    found: list[str | Mapping[str, Any]] = [*find_files(sources), *inline]
    for source in found:
        file = source if isinstance(source, str) else ""
        try:
            definition = read_definition(source)
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


def to_documents(definitions: Iterable[Definition]) -> list[Json]:
    """Return workflow definitions as JSON objects with their names.

    The shared configuration of a cluster contains these instead of file patterns.
    """
    return [msgspec.json.decode(msgspec.json.encode({**each.body, "name": each.name})) for each in definitions]
