"""Which operations of a document are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Picks:
    """Patterns (`*`, `?`) by what they look at. Methods and tags are compared without regard to case."""

    tags: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()  # the operationId, or the tool's name where there is none

    def matches(self, *, tags: tuple[str, ...], path: str, method: str, operation: str) -> list[bool]:
        """For each kind of pattern that is given, whether one fits."""
        answers = []
        if self.tags:
            answers.append(any(_fits(tag.lower(), self.tags, lower=True) for tag in tags))
        if self.paths:
            answers.append(_fits(path, self.paths))
        if self.methods:
            answers.append(_fits(method.lower(), self.methods, lower=True))
        if self.operations:
            answers.append(_fits(operation, self.operations))
        return answers


@dataclass(frozen=True, slots=True)
class Choice:
    """An operation is wanted if it fits every kind that `include` names, and none that `exclude` names."""

    include: Picks = Picks()
    exclude: Picks = Picks()

    def wants(self, *, tags: tuple[str, ...], path: str, method: str, operation: str) -> bool:
        included = self.include.matches(tags=tags, path=path, method=method, operation=operation)
        excluded = self.exclude.matches(tags=tags, path=path, method=method, operation=operation)
        return all(included) and not any(excluded)


EVERYTHING = Choice()


def _fits(text: str, patterns: tuple[str, ...], *, lower: bool = False) -> bool:
    return any(fnmatchcase(text, pattern.lower() if lower else pattern) for pattern in patterns)
