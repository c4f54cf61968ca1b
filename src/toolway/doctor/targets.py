"""What is examined: entries of files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolway.config.problems import Problem
from toolway.config.spec import Server


@dataclass(frozen=True, slots=True)
class Target:
    """One entry, as it was read."""

    name: str
    server: Server | None  # None: it cannot be used, and `problems` say why
    file: str = ""
    line: int | None = None
    root: tuple[str, ...] = ("mcpServers",)  # where in the file the entries are
    written_name: str = ""  # as the file spells it
    written: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as the file has it: may hold secrets
    client: str = ""  # whose file it is: `cursor`; empty for our own
    title: str = ""  # Cursor
    desktop: bool = False  # the client is not started from a terminal
    problems: tuple[Problem, ...] = ()
    held: bool = False  # it comes with a project, and nobody has approved that: nothing of it is started
    shadow: str = ""  # where the entry is that goes before this one

    @property
    def way(self) -> str:
        """How the server is reached, as it is written: what stands there for a secret is a reference, or is masked by
        whoever shows this."""
        if self.server is None:
            return ""
        if self.server.command is not None:
            return shlex.join([self.server.command, *self.server.args])
        return self.server.place or "in this process"
