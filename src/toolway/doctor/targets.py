"""What is examined: entries of files, and the files themselves."""

from __future__ import annotations

from dataclasses import dataclass

from toolway.config.problems import Problem
from toolway.config.spec import Server


@dataclass(frozen=True, slots=True)
class Target:
    """One entry, as it was read."""

    name: str
    server: Server | None  # None: it cannot be used, and `problems` say why
    file: str = ""
    line: int | None = None
    client: str = ""  # whose file it is; empty for our own
    scope: str = ""
    problems: tuple[Problem, ...] = ()
