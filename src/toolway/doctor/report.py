"""Report of `toolway doctor`: check results by subject, their text, and automatic fixes.

The text fits the terminal, except that text to be copied is never wrapped. Automatic fixes change files through
`config/editing`: atomically, with a backup of the old file.
"""

from __future__ import annotations

import os
import re
import stat
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from toolway.config.editing.document import ConfigDocument, Edit, apply_edit, read_file_bytes
from toolway.errors import ConfigError

CheckState = Literal["ok", "warn", "fail", "skip"]


class Fix(Protocol):
    """A fix that `doctor --fix` applies without asking: harmless, or easy to undo."""

    @property
    def description(self) -> str:
        """Describe the fix in an imperative sentence: `remove the byte order mark of mcp.json`."""
        ...

    def apply(self) -> str:
        """Apply the fix, and return a sentence that tells the user what was done.

        If it raises `ToolwayError`, nothing has changed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one doctor check: state, message, detail, hint and automatic fix."""

    name: str  # config, command, env, start, stdout, handshake, tools, schemas, names, tokens, orphans …
    state: CheckState
    message: str  # the finding; for `fail` and `warn` the cause, in one sentence
    detail: str = ""  # lines that prove it
    hint: str = ""  # the remedy, as a sentence
    copy: str = ""  # the remedy as a command or as lines of a file, ready to be copied
    code: str = ""
    auto_fix: Fix | None = None

    def with_fix(self, hint: str, copy: str = "", code: str = "") -> Check:
        return replace(self, hint=hint, copy=copy, code=code)

    def apply_mask(self, mask: Callable[[str], str]) -> Check:
        return replace(
            self, message=mask(self.message), detail=mask(self.detail), hint=mask(self.hint), copy=mask(self.copy)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the check as a JSON object, as `toolway doctor --json` prints it."""
        names = ("name", "state", "message", "detail", "hint", "copy", "code")
        return {**{name: getattr(self, name) for name in names}, "fixable": self.auto_fix is not None}


_WORST_FIRST: tuple[CheckState, ...] = ("fail", "warn", "ok")


@dataclass(frozen=True, slots=True)
class SubjectReport:
    """All check results of one subject: a config file, a server or this machine."""

    kind: Literal["file", "server", "machine"]
    name: str
    checks: tuple[Check, ...] = ()
    transport: str = ""
    location: str = ""  # the command line or the URL, without secrets
    source: str = ""  # location in the config file: `~/.cursor/mcp.json:3`

    def to_json(self) -> dict[str, Any]:
        names = ("kind", "name", "transport", "location", "source", "state")
        return {**{name: getattr(self, name) for name in names}, "checks": [check.to_json() for check in self.checks]}

    @property
    def state(self) -> CheckState:
        """Return the worst state among the checks of this subject: fail, warn or ok."""
        states = {check.state for check in self.checks}
        return next((state for state in _WORST_FIRST if state in states), "ok")

    def checks_in(self, *states: CheckState) -> list[Check]:
        return [check for check in self.checks if check.state in states]


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all doctor checks, grouped by file, server and machine, in display order."""

    subjects: tuple[SubjectReport, ...] = ()

    @property
    def state(self) -> CheckState:
        states = {subject.state for subject in self.subjects}
        return next((state for state in _WORST_FIRST if state in states), "ok")

    @property
    def first_line(self) -> str:
        """Return the most important problem as one line, or a summary if nothing is wrong.

        Files precede servers, and early checks of a server precede late ones: an early failure explains later
        ones.
        """
        for state in ("fail", "warn"):
            found = [(subject, check) for subject, check in self._iter_checks() if check.state == state]
            if found:
                subject, check = found[0]
                return f"{subject.name}: {check.message}{_and_more(len(found) - 1, state)}"
        return _healthy_summary(self.subjects)

    @property
    def auto_fixes(self) -> list[Fix]:
        """Return the automatic fixes of all checks, without duplicates."""
        found = [check.auto_fix for _, check in self._iter_checks() if check.auto_fix is not None]
        return list(dict.fromkeys(found))

    def with_tilde(self, home: str) -> Report:
        """Return a copy of the report with `~` for the home folder, except in text to be copied."""

        def shorten(text: str) -> str:
            return re.sub(rf"{re.escape(home)}(?=/|\Z)", "~", text) if len(home) > 1 else text

        def shorten_check(check: Check) -> Check:
            return replace(
                check, message=shorten(check.message), detail=shorten(check.detail), hint=shorten(check.hint)
            )

        return Report(
            tuple(
                replace(
                    each,
                    location=shorten(each.location),
                    source=shorten(each.source),
                    checks=tuple(map(shorten_check, each.checks)),
                )
                for each in self.subjects
            )
        )

    def apply_mask(self, mask: Callable[[str], str]) -> Report:
        """Return a copy of the report without secrets.

        Masking must precede line wrapping, which would split a secret.
        """
        return Report(
            tuple(
                replace(
                    each, location=mask(each.location), checks=tuple(check.apply_mask(mask) for check in each.checks)
                )
                for each in self.subjects
            )
        )

    def count_failures(self) -> int:
        return sum(check.state == "fail" for _, check in self._iter_checks())

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "first_line": self.first_line,
            "subjects": [subject.to_json() for subject in self.subjects],
        }

    def _iter_checks(self) -> Iterator[tuple[SubjectReport, Check]]:
        for subject in self.subjects:
            for check in subject.checks:
                yield subject, check


def _and_more(count: int, state: CheckState) -> str:
    if not count:
        return ""
    word = "problem" if state == "fail" else "warning"
    return f" (and {count} more {word}{'s' if count > 1 else ''})"


def _healthy_summary(subjects: Iterable[SubjectReport]) -> str:
    servers = [subject for subject in subjects if subject.kind == "server"]
    idle = sum(any(check.name == "start" for check in subject.checks_in("skip")) for subject in servers)
    if not servers:
        return "no server to check"
    if len(servers) == 1:
        return f"{servers[0].name}: {'no problem found, but it was not started' if idle else 'no problem found'}"
    return f"no problem found: {len(servers)} servers{f', {idle} of them not started' if idle else ''}"


_ENTRY_KEYS = re.compile(r'(.*?)("[\w.-]+": .*[}\]"])(?: in its entry)?', re.DOTALL)
_COMMAND_AT_END = re.compile(r"(.*): ((?:toolway|npm|docker|pip|sed) [^,;]+)", re.DOTALL)


def split_hint(hint: str) -> tuple[str, str]:
    """Split an error hint into its sentence and the part to copy ("" if none).

    That part is config entry keys as JSON, or a command at the end of the hint.
    """
    found = _ENTRY_KEYS.fullmatch(hint) or _COMMAND_AT_END.fullmatch(hint)
    return (found[1].rstrip(" :,"), found[2]) if found is not None else (hint, "")


# -- text --------------------------------------------------------------------------------------------------------------


STATE_SIGNS: Final = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "–"}
NAME_COLUMNS: Final = 11  # columns of a check's name
CHECK_INDENT: Final = 2 + 2 + NAME_COLUMNS
STATE_STYLES: Final = {"ok": "", "warn": "yellow", "fail": "red", "skip": "dim"}


class StyledLine(NamedTuple):
    """One output line of the report and its terminal style, such as `bold` or `red`."""

    text: str
    style: str = ""


def render_report(
    report: Report, width: int = 80, *, verbose: bool = False, rerun_command: str = "toolway doctor"
) -> Iterator[StyledLine]:
    """Render the report as text lines: the main problem, all checks, and the next steps."""
    sign, style = STATE_SIGNS[report.state], STATE_STYLES[report.state] or "green"
    for number, text in enumerate(_wrap(report.first_line, width - 2)):
        yield StyledLine(f"{sign} {text}" if not number else f"  {text}", style)
    shown = [subject for subject in report.subjects if subject.kind != "file" or subject.state != "ok" or verbose]
    several = sum(subject.kind == "server" for subject in shown) > 1 and not verbose
    quiet = [subject for subject in shown if several and _has_no_findings(subject)]
    for subject in shown:
        if subject not in quiet:
            yield StyledLine("")
            yield from _render_subject(subject, width)
    if quiet:
        yield StyledLine("")
        yield from _render_one_line_each(quiet, width)
    last = _next_steps(report, rerun_command)
    if last:
        yield StyledLine("")
        yield from (StyledLine(text) for paragraph in last.splitlines() for text in _wrap(paragraph, width))


def _has_no_findings(subject: SubjectReport) -> bool:
    """Return True if the subject is a server without warnings and failures."""
    return subject.kind == "server" and not subject.checks_in("warn", "fail")


def _render_one_line_each(subjects: Sequence[SubjectReport], width: int) -> Iterator[StyledLine]:
    """Render servers without findings, one line each: protocol version, tools and token cost."""
    names = min(30, max(len(subject.name) for subject in subjects))
    for subject in subjects:
        texts = {check.name: check.message for check in subject.checks}
        off = subject.checks_in("skip")
        parts = (texts.get("handshake", ""), texts.get("tools", ""), _token_count(texts.get("tokens", "")))
        text = off[0].message if off else "; ".join(filter(None, parts))
        sign = STATE_SIGNS["skip" if off else "ok"]
        yield StyledLine(f"{sign} {subject.name:<{names}}  {text}"[:width].rstrip(), "dim" if off else "")


def _token_count(text: str) -> str:
    """Return the first token estimate in the text of a `tokens` check, as `about N tokens (OpenAI)`."""
    found = re.search(r"([\d,]+) (\(\w+\))", text)
    return f"about {found[1]} tokens {found[2]}" if found else ""


def _render_subject(subject: SubjectReport, width: int) -> Iterator[StyledLine]:
    head = "   ".join(part for part in (subject.name, subject.transport) if part)
    for number, text in enumerate(_wrap("   ".join(filter(None, (head, subject.location))), width, indent=2)):
        yield StyledLine(text, "bold" if not number else "")
    if subject.source:
        yield from (StyledLine(f"  {text}", "dim") for text in _wrap(f"from {subject.source}", width - 2))
    for check in subject.checks:
        yield from render_check(check, width)


def render_check(check: Check, width: int) -> Iterator[StyledLine]:
    """Render one check: its finding, its details, the remedy, and the text to copy."""
    margin = " " * CHECK_INDENT
    room = width - CHECK_INDENT
    for number, text in enumerate(_wrap(check.message, room)):
        head = f"  {STATE_SIGNS[check.state]} {check.name:<{NAME_COLUMNS - 1}} " if not number else margin
        yield StyledLine(head + text, STATE_STYLES[check.state])
    for line in check.detail.splitlines():
        for text in _wrap(line, room, indent=2):
            yield StyledLine(margin + text, "dim")
    for number, text in enumerate(_wrap(check.hint, room - 2)):
        yield StyledLine(margin + ("→ " if not number else "  ") + text, "bold")
    if check.copy:
        # If it does not fit, it starts near the left edge instead of being wrapped: it is meant to be copied.
        whole = margin + "  " + check.copy
        yield StyledLine(whole if len(whole) <= width else f"  {check.copy}", "bold")
    if check.code and check.state in ("fail", "warn"):
        yield StyledLine(f"{margin}more: toolway explain {check.code}", "dim")


def _next_steps(report: Report, rerun_command: str) -> str:
    """Return the next steps for the user; "" if there is nothing to do."""
    count, fix_count = report.count_failures(), len(report.auto_fixes)
    if not count and not fix_count:
        return ""
    first = f"Fix {count} problem{'s' if count > 1 else ''}, then run: {rerun_command}" if count else ""
    second = f"Automatic fixes available ({fix_count}): {rerun_command} --fix" if fix_count else ""
    return "\n".join(filter(None, (first, second)))


def _wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Wrap text at `width` columns. Long words such as paths are never broken."""
    if not text:
        return []
    return textwrap.wrap(
        text,
        max(20, width),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


# -- automatic fixes of `--fix` ----------------------------------------------------------------------------------------


FileChange = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class FileFix:
    """Automatic fix that changes a config file.

    The change is computed from the file's content at that time, so several fixes can be combined.
    """

    description: str
    path: Path
    change: FileChange = field(compare=False, repr=False)

    def apply(self) -> str:
        before = read_file_bytes(self.path)
        if before is None:
            raise ConfigError(f"{self.path} is gone", file=str(self.path), code="E-CONFIG-FILE")
        copy = apply_edit(Edit(self.path, before, self.change(before)))
        return (
            f"{self.description}; the old file is saved as {copy}"
            if copy is not None
            else f"{self.description}: nothing to do"
        )


@dataclass(frozen=True, slots=True)
class MakeExecutable:
    """Automatic fix that makes a server's program executable for everyone who may read it."""

    path: Path

    @property
    def description(self) -> str:
        return f"make {self.path} executable"

    def apply(self) -> str:
        mode = stat.S_IMODE(self.path.stat().st_mode)
        try:
            os.chmod(self.path, mode | (mode & 0o444) >> 2)
        except OSError as exc:
            raise ConfigError(f"{self.path} is not writable", detail=str(exc), code="E-EDIT-WRITE") from None
        return f"made {self.path} executable"


@dataclass(frozen=True, slots=True)
class EntryFix:
    """Automatic fix that sets some keys of one config entry; the rest of the file stays."""

    description: str
    path: Path
    path_in_file: tuple[str, ...]  # path of the entry in the file
    changes: tuple[tuple[tuple[str, ...], str], ...]  # (path of keys inside the entry, new value)

    def apply(self) -> str:
        document = ConfigDocument(self.path)
        for keys, value in self.changes:
            document.set((*self.path_in_file, *keys), value)
        copy = apply_edit(document.to_edit())
        return (
            f"{self.description}; the old file is saved as {copy}"
            if copy is not None
            else f"{self.description}: nothing to do"
        )
