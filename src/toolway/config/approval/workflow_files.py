"""A configuration's workflows with all their files, read once, so what you trusted is what runs.

A workflow file may name other files, its child workflows (`workflow: child.yaml`). They are read together with it, and
a user approves them together. `workflows/reader.py` receives these contents and does not open files itself. So if a
file is missed here, the reader reports an error instead of running it without approval.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolway._os import O_NONBLOCK
from toolway.types import Json

MAX_FILES: Final = 1000  # of a configuration
MAX_CHILD_FILES: Final = 100  # of a workflow file
MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_NODES: Final = 100_000  # of a YAML file
_CHILD_KEY: Final = re.compile(r"workflow[\"']?\s*:(?=\s)|workflow[\"']\s*:")  # not `toolway: workflow/1`


@dataclass(frozen=True, slots=True)
class CapturedWorkflow:
    """A workflow as it was when the configuration was read: a file with its child files, or an inline definition."""

    file: str = ""  # absolute path; "": the definition is in the config file
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # by path: the file and its child files
    body: Json | None = field(default=None, repr=False)  # an inline definition
    problem: str = ""  # why the file cannot be read

    @property
    def identity(self) -> Json:
        """Return what trust covers: the workflow's location and its contents, as JSON."""
        if self.body is not None:
            return {"workflow": self.body}
        folder, name = os.path.split(self.file)
        contents = {path: hashlib.sha256(data).hexdigest() for path, data in self.contents.items()}
        return {"workflow": os.path.join(os.path.realpath(folder), name), "contents": contents}

    @property
    def name(self) -> str:
        """Return the workflow's name: the one in an inline definition, or the file name without its suffix."""
        return str((self.body or {}).get("name", "workflow"))[:64] if self.body is not None else Path(self.file).stem


def find_files(patterns: Iterable[str | Mapping[str, Any]]) -> list[str]:
    """Return the workflow files that match the patterns, sorted by name within each pattern.

    A file named without `*` is returned even if it does not exist. Definitions among the patterns are skipped.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            continue  # a definition
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        found.update(dict.fromkeys(matches))
    return list(found)[:MAX_FILES]


def capture_workflows(sources: Iterable[str | Json]) -> tuple[CapturedWorkflow, ...]:
    """Read a configuration's workflows: first those from file patterns, then inline definitions."""
    sources = list(sources)
    inline = (CapturedWorkflow(body=each) for each in sources if not isinstance(each, str))
    return (*map(capture_file, find_files(sources)), *inline)


def capture_file(file: str) -> CapturedWorkflow:
    """Read a workflow file and its child workflows' files."""
    try:
        contents = {file: _read(file)}
    except OSError as exc:
        return CapturedWorkflow(file, problem=exc.strerror or str(exc))
    waiting = [file]
    while waiting:
        parent = waiting.pop()
        for child in _child_files(parent, contents[parent]):
            if child not in contents and len(contents) <= MAX_CHILD_FILES:
                try:
                    contents[child] = _read(child)
                except OSError:
                    continue  # the reader reports it: it has no content
                waiting.append(child)
    return CapturedWorkflow(file, contents)


def child_path(parent: str, name: str) -> str:
    """Return the path of a child workflow's file, which its parent names relative to itself."""
    return os.fspath(Path(parent).parent / name)


def _read(file: str) -> bytes:
    """Return a regular file's content, at most one byte over the limit. Raises `OSError`.

    A pipe or a device is rejected, because it has no fixed content to approve, and could block.
    """
    descriptor = os.open(file, os.O_RDONLY | O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        return opened.read(MAX_FILE_BYTES + 1)


def _child_files(file: str, content: bytes) -> Iterator[str]:
    """Yield the files that a workflow names as child workflows.

    It may yield other files as well.
    """
    text = content.decode("utf-8", "replace")
    if not _CHILD_KEY.search(text) or len(content) > MAX_FILE_BYTES:
        return
    import yaml  # type: ignore[import-untyped] # slow to import, and few workflows have children

    try:
        root = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return
    waiting: list[Any] = [root]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop()
        if id(node) in seen:
            continue  # an alias
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                waiting.append(value)
                if key.value == "workflow" and isinstance(value, yaml.ScalarNode) and value.value:
                    yield child_path(file, value.value)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
