"""What is written where: data on stdout, everything about it on stderr; with `--json` stdout is one JSON document."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from toolway.cli import layout
from toolway.cli.exits import of_error
from toolway.config.problems import Problem
from toolway.errors import CallError, ConfigError, NotFound, ProtocolError, TimedOut, ToolwayError
from toolway.protocol.shown import clean_text

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 1_000_000
_LABEL = 13  # columns of the name of a part of an error
STDERR_LINES = 5
STYLES = {
    "ready": "green",
    "idle": "cyan",
    "starting": "yellow",
    "backing_off": "red",
    "failed": "bold red",
    "disabled": "dim",
    "stopped": "dim",
}


@dataclass
class Output:
    """How this command talks. `mask` hides the secrets of the configured servers."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool = True
    mask: Callable[[str], str] = field(default=lambda text: text)

    def json(self, value: Any) -> None:
        """A tool's answer: as it is."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")

    def json_line(self, value: Any) -> None:
        """One of many documents that come by and by: a line each."""
        sys.stdout.write(json.dumps(self._masked(value), ensure_ascii=False) + "\n")

    def facts(self, value: Any) -> None:
        """What we say ourselves, as JSON."""
        self.json(self._masked(value))

    def line(self, text: str = "", style: str = "") -> None:
        self._write(sys.stdout, self.shown(text), style)

    def prose(self, text: str, style: str = "", indent: str = "  ") -> None:
        """A longer sentence on stderr; at a terminal its lines end between words."""
        if not self.quiet:
            self._write(sys.stderr, self._folded(self.shown(text), indent), style)

    def text_of_tool(self, text: str) -> None:
        """A tool's own words: as they are for a program, without control characters for a terminal."""
        sys.stdout.write((clean_text(text, _UNLIMITED * 100) if sys.stdout.isatty() else text) + "\n")

    def table(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), cut: bool = False
    ) -> None:
        """Columns. At a terminal the last one is wrapped, or cut where a line each is better; else it is as it is."""
        shown = [[self.shown(cell) for cell in row] for row in (heads, *rows)]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        places = frozenset(number for number, head in enumerate(heads) if head in right)
        indent = ""
        for number, row in enumerate(layout.rows_of(shown, width, right=places, cut=cut)):
            styles = ["dim" if number == 0 else STYLES.get(cell, "") for cell in shown[number]]
            front = [self._styled(sys.stdout, cell, style) for [cell], style in zip(row[:-1], styles, strict=False)]
            first, *more = row[-1]
            last = self._styled(sys.stdout, first, styles[-1])
            sys.stdout.write(layout.GAP.join([*front, last]).rstrip() + "\n")
            indent = indent or " " * sum(layout.columns_of(cell) + len(layout.GAP) for [cell] in row[:-1])
            for line in more:
                sys.stdout.write(indent + line + "\n")

    def say(self, text: str, style: str = "") -> None:
        """Something about the data, for people."""
        if not self.quiet:
            self._write(sys.stderr, self.shown(text), style)

    def problems(self, problems: Iterable[Problem], *, notes: bool = False) -> None:
        colors = {"error": "red", "warning": "yellow", "note": "dim"}
        for problem in problems:
            if problem.severity != "note" or self.verbose or notes:
                self.prose(f"{problem.severity}: {problem}", colors[problem.severity])

    def error(self, error: ToolwayError) -> None:
        """The four parts: what, evidence, fix, code."""
        facts = error_facts(error)
        if self.as_json:
            self.facts({"error": facts})
            return
        self._write(sys.stderr, self._folded(f"✗ {self.shown(error.what)}", "  "), "red")
        for label, value in _parts(error):
            text = self.shown(f"  {label:<{_LABEL}}{value}")
            if label != "fix" or ": " not in value:  # else there is something to be copied as it is
                text = self._folded(text, " " * (_LABEL + 2))
            self._write(sys.stderr, text, "bold" if label == "fix" else "")

    def shown(self, text: str) -> str:
        """Text of a server or an error made fit to be shown."""
        return clean_text(self.mask(text), _UNLIMITED)

    @contextmanager
    def spinner(self, text: str) -> Iterator[Callable[[str], None]]:
        """Something is going on; at a terminal only. Gives a function that changes the text."""
        if self.quiet or self.as_json or not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.text import Text

        def fit(said: str) -> Text:
            return Text(layout.cut_to(self.shown(said).replace("\n", " "), shutil.get_terminal_size().columns - 3))

        with self._console(sys.stderr).status(fit(text)) as status:
            yield lambda new: status.update(fit(new))

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, dict):
            return {key: self._masked(inner) for key, inner in value.items()}
        return [self._masked(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _folded(self, text: str, indent: str) -> str:
        """Lines that end between words, where somebody looks at them."""
        if not sys.stderr.isatty() or len(text) <= (width := shutil.get_terminal_size().columns):
            return text
        return "\n".join(
            textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        )

    def _write(self, file: IO[str], text: str, style: str) -> None:
        file.write(self._styled(file, text, style) + "\n")

    def _styled(self, file: IO[str], text: str, style: str) -> str:
        return layout.painted(text, style) if style and self._has_color(file) else text

    def _has_color(self, file: IO[str]) -> bool:
        plain = not self.color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not plain and file.isatty()

    def _console(self, file: IO[str]) -> Console:
        from rich.console import Console

        return Console(
            file=file,
            color_system="auto" if self._has_color(file) else None,
            soft_wrap=True,
            highlight=False,
            markup=False,
            emoji=False,
        )


def last_lines(stderr: str) -> list[str]:
    """What of a server's stderr is worth showing unasked."""
    return [line for line in stderr.splitlines() if line.strip()][-STDERR_LINES:]


def _parts(error: ToolwayError) -> Iterator[tuple[str, str]]:
    if isinstance(error, ConfigError) and error.file:
        yield "file", f"{error.file}:{error.line}" if error.line else error.file
    if error.evidence:
        yield "evidence", error.evidence
    for line in getattr(error, "__notes__", ()):
        yield "stderr", f"| {line}"
    if isinstance(error, CallError) and (error.tool or not isinstance(error, NotFound)):
        yield "executed", error.executed
    if isinstance(error, CallError) and error.retry_after:
        yield "retry after", f"{error.retry_after:.1f} s"
    if error.fix:
        yield "fix", error.fix
    yield "code", f"{error.code} (toolway explain {error.code})"


def error_facts(error: ToolwayError) -> dict[str, Any]:
    """An error as `--json` shows it."""
    facts: dict[str, Any] = {
        "code": error.code,
        "what": error.what,
        "evidence": error.evidence,
        "fix": error.fix,
        "exit": int(of_error(error)),
    }
    if isinstance(error, ConfigError):
        facts |= {"file": error.file, "line": error.line}
    if isinstance(error, CallError):
        facts |= {
            "server": error.server,
            "tool": error.tool,
            "executed": error.executed,
            "attempts": error.attempts,
            "retry_after": error.retry_after,
            "stderr": getattr(error, "__notes__", []),
        }
    if isinstance(error, TimedOut):
        facts["phase"] = error.phase
    if isinstance(error, ProtocolError):
        facts |= {"rpc_code": error.rpc_code, "data": error.data}
    return facts


def problem_facts(problem: Problem) -> dict[str, Any]:
    """A problem of a file as `--json` shows it."""
    return {
        "server": problem.server,
        "severity": problem.severity,
        "code": problem.code,
        "what": problem.what,
        "evidence": problem.evidence,
        "fix": problem.fix,
        "file": problem.file,
        "line": problem.line,
    }
