"""A report as lines for people: aligned, and no wider than the screen. What is to be copied is never broken."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from toolway.doctor.report import Check, Report, Subject

SIGNS: Final = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "–"}
NAME: Final = 11  # columns of a check's name
INDENT: Final = 2 + 2 + NAME
STYLES: Final = {"ok": "", "warn": "yellow", "fail": "red", "skip": "dim"}


class Line(NamedTuple):
    text: str
    style: str = ""


def lines(report: Report, width: int = 80, *, verbose: bool = False, again: str = "toolway doctor") -> Iterator[Line]:
    """The report: the cause first, then all that was looked at, then what to do next."""
    sign, style = SIGNS[report.state], STYLES[report.state] or "green"
    for number, text in enumerate(_wrapped(report.first_line, width - 2)):
        yield Line(f"{sign} {text}" if not number else f"  {text}", style)
    shown = [subject for subject in report.subjects if subject.kind != "file" or subject.state != "ok" or verbose]
    several = sum(subject.kind == "server" for subject in shown) > 1 and not verbose
    calm = [subject for subject in shown if several and _is_calm(subject)]
    for subject in shown:
        if subject not in calm:
            yield Line("")
            yield from _subject(subject, width)
    if calm:
        yield Line("")
        yield from _in_one_line(calm, width)
    last = _last(report, again)
    if last:
        yield Line("")
        yield from (Line(text) for said in last.splitlines() for text in _wrapped(said, width))


def _is_calm(subject: Subject) -> bool:
    """Nothing to say but that it works, or that it is switched off."""
    return subject.kind == "server" and not subject.of("warn", "fail")


def _in_one_line(subjects: Sequence[Subject], width: int) -> Iterator[Line]:
    """All that is well, a line each."""
    names = min(30, max(len(subject.name) for subject in subjects))
    for subject in subjects:
        said = {check.name: check.what for check in subject.checks}
        off = subject.of("skip")
        parts = (said.get("handshake", ""), said.get("tools", ""), _tokens(said.get("tokens", "")))
        text = off[0].what if off else "; ".join(filter(None, parts))
        sign = SIGNS["skip" if off else "ok"]
        yield Line(f"{sign} {subject.name:<{names}}  {text}"[:width].rstrip(), "dim" if off else "")


def _tokens(text: str) -> str:
    """The one that is dearest, for a line."""
    found = re.findall(r"[\d,]+(?= \()", text)
    return f"about {max(found, key=lambda each: int(each.replace(',', '')))} tokens" if found else ""


def _subject(subject: Subject, width: int) -> Iterator[Line]:
    head = "   ".join(part for part in (subject.name, subject.transport) if part)
    for number, text in enumerate(_wrapped("   ".join(filter(None, (head, subject.way))), width, indent=2)):
        yield Line(text, "bold" if not number else "")
    if subject.source:
        yield from (Line(f"  {text}", "dim") for text in _wrapped(f"from {subject.source}", width - 2))
    for check in subject.checks:
        yield from _check(check, width)


def _check(check: Check, width: int) -> Iterator[Line]:
    margin = " " * INDENT
    room = width - INDENT
    for number, text in enumerate(_wrapped(check.what, room)):
        head = f"  {SIGNS[check.state]} {check.name:<{NAME - 1}} " if not number else margin
        yield Line(head + text, STYLES[check.state])
    for said in check.evidence.splitlines():
        for text in _wrapped(said, room, indent=2):
            yield Line(margin + text, "dim")
    for number, text in enumerate(_wrapped(check.fix, room - 2)):
        yield Line(margin + ("→ " if not number else "  ") + text, "bold")
    if check.copy:
        # On a line of its own from the left edge where it would be broken else: it is meant to be copied.
        whole = margin + "  " + check.copy
        yield Line(whole if len(whole) <= width else f"  {check.copy}", "bold")
    if check.code and check.state in ("fail", "warn"):
        yield Line(f"{margin}more: toolway explain {check.code}", "dim")


def _last(report: Report, again: str) -> str:
    """What to do next."""
    count, repairs = report.problems(), len(report.repairs)
    if not count and not repairs:
        return ""
    first = f"Fix {count} problem{'s' if count > 1 else ''}, then run: {again}" if count else ""
    second = f"What can be fixed without you ({repairs}): {again} --fix" if repairs else ""
    return "\n".join(filter(None, (first, second)))


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most `width`; long words such as paths are left whole."""
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
