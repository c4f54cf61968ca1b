"""Table of all checks: each is named by what a user does, and ends with works, a message, a gap, or not run.

    @check("Start", "`toolway init` finds Claude Desktop", quick=True)
    def init(home: Home) -> str: ...

A check returns a fact about what it saw, a `Message` that says why this system cannot do it, a `Gap` where no message
says so, or `NotRun` with the reason. Any exception means that it fails.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import tests.platforms
from tests.platforms.home import Home

Result = Literal["works", "message", "gap", "not run", "fails"]

#: Order of the groups on the page.
GROUPS: Final = (
    "Start",
    "Servers",
    "Library",
    "Gateway",
    "Audit log",
    "Workflows and agents",
    "Logins and secrets",
    "Packages",
    "Files of clients",
    "Processes",
    "A real machine only",
)


@dataclass(frozen=True)
class Message:
    """Words with which Toolway refuses on this system."""

    text: str


@dataclass(frozen=True)
class Gap:
    """What Toolway should do and cannot on this system, and why."""

    reason: str


@dataclass(frozen=True)
class NotRun:
    """Reason why a check was not run."""

    reason: str


@dataclass(frozen=True)
class Check:
    """One thing that a user does."""

    group: str
    name: str
    run: Callable[[Home], str | Message | Gap | NotRun]
    quick: bool  # part of the short form


@dataclass
class Outcome:
    """Result of one check on one system, as it is published."""

    group: str
    check: str
    result: Result
    text: str
    commands: list[str] = field(default_factory=list)  # that succeeded
    errors: list[str] = field(default_factory=list)  # commands that ended with the error that they should have
    seconds: float = 0.0  # not published: a figure of a busy machine


_CHECKS: dict[str, Check] = {}

Function = Callable[[Home], "str | Message | Gap | NotRun"]


def check(group: str, name: str, *, quick: bool = False) -> Callable[[Function], Function]:
    """Add a function to the table."""

    def add(function: Function) -> Function:
        assert group in GROUPS, group
        assert name not in _CHECKS, name
        _CHECKS[name] = Check(group, name, function, quick)
        return function

    return add


def all_checks() -> list[Check]:
    """Return all checks of this folder, in the order of the page."""
    for module in pkgutil.iter_modules(tests.platforms.__path__):
        if module.name not in ("__main__", "programs"):
            importlib.import_module(f"tests.platforms.{module.name}")
    return sorted(_CHECKS.values(), key=lambda each: GROUPS.index(each.group))
