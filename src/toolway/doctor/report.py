"""What the doctor found, as values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

State = Literal["ok", "warn", "fail", "skip"]


class Repair(Protocol):
    """Something that `--fix` does by itself, because it can be undone or cannot do harm."""

    @property
    def what(self) -> str:
        """What it will do, as a sentence without a subject: `remove the byte order mark of mcp.json`."""
        ...

    def apply(self) -> str:
        """Do it, and say what was done. Raises `ToolwayError`, and then nothing has changed."""
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str  # config, command, env, start, stdout, handshake, tools, schemas, names, tokens, orphans …
    state: State
    what: str  # what was found; for `fail` and `warn` the cause, in one sentence
    evidence: str = ""  # what shows it: lines
    fix: str = ""  # what to do, as a sentence
    copy: str = ""  # the same as a command or as lines of a file, to be copied as they are
    code: str = ""
    repair: Repair | None = None

    def masked(self, mask: Callable[[str], str]) -> Check:
        return replace(
            self, what=mask(self.what), evidence=mask(self.evidence), fix=mask(self.fix), copy=mask(self.copy)
        )

    def facts(self) -> dict[str, Any]:
        """The check as `--json` shows it."""
        names = ("name", "state", "what", "evidence", "fix", "copy", "code")
        return {**{name: getattr(self, name) for name in names}, "fixable": self.repair is not None}


@dataclass(frozen=True, slots=True)
class Subject:
    """What was examined: a file, a server, or the machine."""

    kind: Literal["file", "server", "machine"]
    name: str
    checks: tuple[Check, ...] = ()
    transport: str = ""
    way: str = ""  # the command line or the url, without secrets
    source: str = ""  # where it is configured: `~/.cursor/mcp.json:3`

    def facts(self) -> dict[str, Any]:
        names = ("kind", "name", "transport", "way", "source", "state")
        return {**{name: getattr(self, name) for name in names}, "checks": [check.facts() for check in self.checks]}

    @property
    def state(self) -> State:
        """The worst of its checks."""
        states = {check.state for check in self.checks}
        return next((state for state in _WORST_FIRST if state in states), "ok")

    def of(self, *states: State) -> list[Check]:
        return [check for check in self.checks if check.state in states]


_KEYS = re.compile(r'(.*?)("[\w.-]+": .*[}\]"])(?: in its entry)?', re.DOTALL)
_COMMAND = re.compile(r"(.*): ((?:toolway|npm|docker|pip) [^,;]+)", re.DOTALL)


def split_fix(fix: str) -> tuple[str, str]:
    """A fix as a sentence, and what of it is to be copied: the keys of an entry or a command at its end."""
    found = _KEYS.fullmatch(fix) or _COMMAND.fullmatch(fix)
    return (found[1].rstrip(" :,"), found[2]) if found is not None else (fix, "")


_WORST_FIRST: tuple[State, ...] = ("fail", "warn", "ok")


@dataclass(frozen=True, slots=True)
class Report:
    """All that was examined, in the order in which it is told."""

    subjects: tuple[Subject, ...] = ()

    @property
    def state(self) -> State:
        states = {subject.state for subject in self.subjects}
        return next((state for state in _WORST_FIRST if state in states), "ok")

    @property
    def first_line(self) -> str:
        """The cause that matters most, or that all is well. Files come before servers, and an early check of a server
        before a late one, because what is wrong there explains what follows."""
        for state in ("fail", "warn"):
            found = [(subject, check) for subject, check in self._pairs() if check.state == state]
            if found:
                subject, check = found[0]
                return f"{subject.name}: {check.what}{_and_more(len(found) - 1, state)}"
        return _all_well(self.subjects)

    @property
    def repairs(self) -> list[Repair]:
        """What `--fix` would do, each once."""
        found = [check.repair for _, check in self._pairs() if check.repair is not None]
        return list(dict.fromkeys(found))

    def at_home(self, home: str) -> Report:
        """The same with `~` for the home of whoever reads it; what is to be copied stays as it is."""

        def short(text: str) -> str:
            return re.sub(rf"{re.escape(home)}(?=/|\Z)", "~", text) if len(home) > 1 else text

        def of(check: Check) -> Check:
            return replace(check, what=short(check.what), evidence=short(check.evidence), fix=short(check.fix))

        return Report(
            tuple(
                replace(each, way=short(each.way), source=short(each.source), checks=tuple(map(of, each.checks)))
                for each in self.subjects
            )
        )

    def masked(self, mask: Callable[[str], str]) -> Report:
        """The same without secrets. Done before anything is wrapped, which would tear one apart."""
        return Report(
            tuple(
                replace(each, way=mask(each.way), checks=tuple(check.masked(mask) for check in each.checks))
                for each in self.subjects
            )
        )

    def problems(self) -> int:
        return sum(check.state == "fail" for _, check in self._pairs())

    def facts(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "first_line": self.first_line,
            "subjects": [subject.facts() for subject in self.subjects],
        }

    def _pairs(self) -> Iterator[tuple[Subject, Check]]:
        for subject in self.subjects:
            for check in subject.checks:
                yield subject, check


def _and_more(count: int, state: State) -> str:
    if not count:
        return ""
    word = "problem" if state == "fail" else "warning"
    return f" (and {count} more {word}{'s' if count > 1 else ''})"


def _all_well(subjects: Iterable[Subject]) -> str:
    servers = [subject for subject in subjects if subject.kind == "server"]
    idle = sum(any(check.name == "start" for check in subject.of("skip")) for subject in servers)
    if not servers:
        return "there is no server to examine"
    if len(servers) == 1:
        return f"{servers[0].name}: {'nothing is wrong, but it was not started' if idle else 'all is well'}"
    return f"all is well: {len(servers)} servers{f', {idle} of them not started' if idle else ''}"
