"""Branches of a workflow function that run concurrently, and the paths of their steps."""

from __future__ import annotations

import contextvars


class Group:
    """Branches of a workflow function that run concurrently. If one fails, none starts a new step."""

    def __init__(self, parent: Group | None) -> None:
        self._parent = parent
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    @property
    def is_stopped(self) -> bool:
        return self._stopped or (self._parent is not None and self._parent.is_stopped)


class GroupStopped(BaseException):
    """Raised in a branch of a workflow function, at its next step, if a concurrent branch has failed."""


class Branch:
    """Branch of a workflow function: the prefix of its steps' paths, and counters for steps without a name."""

    def __init__(self, prefix: str = "", group: Group | None = None) -> None:
        self.prefix = prefix
        self.group = group
        self._counts: dict[str, int] = {}

    def path(self, name: str | None, kind: str) -> str:
        if name is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            name = f"{kind}#{self._counts[kind]}"
        elif name in self._counts:
            raise ValueError(f"the step name {name!r} is used twice")
        else:
            self._counts[name] = 1
        return f"{self.prefix}{name}"


current_branch: contextvars.ContextVar[Branch] = contextvars.ContextVar("toolway_workflow_branch")
