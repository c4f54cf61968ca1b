"""What is written where: data on stdout, everything about it on stderr; with `--json` stdout is one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from toolway.cli.exits import of_error
from toolway.config.problems import Problem
from toolway.errors import CallError, ConfigError, ProtocolError, TimedOut, ToolwayError
from toolway.protocol.shown import clean_text

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 1_000_000
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

    def facts(self, value: Any) -> None:
        """What we say ourselves, as JSON."""
        self.json(self._masked(value))

    def line(self, text: str = "", style: str = "") -> None:
        self._console(sys.stdout).print(self.shown(text), style=style)

    def text_of_tool(self, text: str) -> None:
        """A tool's own words: as they are for a program, without control characters for a terminal."""
        sys.stdout.write((clean_text(text, _UNLIMITED * 100) if sys.stdout.isatty() else text) + "\n")

    def table(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), cut: bool = False
    ) -> None:
        """Columns. At a terminal the last one is wrapped, or cut where a line each is better; else it is as it is."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for number, head in enumerate(heads):
            last = number == len(heads) - 1
            table.add_column(
                head,
                no_wrap=cut or not last,
                overflow="ellipsis" if cut and last else "fold",
                justify="right" if head in right else "left",
            )
        for row in rows:
            table.add_row(*(Text(self.shown(cell), style=STYLES.get(cell, "")) for cell in row))
        console = self._console(sys.stdout)
        with console.capture() as captured:
            console.print(table, soft_wrap=False)
        for line in captured.get().splitlines():
            sys.stdout.write(line.rstrip() + "\n")

    def say(self, text: str, style: str = "") -> None:
        """Something about the data, for people."""
        if not self.quiet:
            self._console(sys.stderr).print(self.shown(text), style=style)

    def problems(self, problems: Iterable[Problem]) -> None:
        colors = {"error": "red", "warning": "yellow", "note": "dim"}
        for problem in problems:
            if problem.severity != "note" or self.verbose:
                self.say(f"{problem.severity}: {problem}", colors[problem.severity])

    def error(self, error: ToolwayError) -> None:
        """The four parts: what, evidence, fix, code."""
        facts = error_facts(error)
        if self.as_json:
            self.facts({"error": facts})
            return
        console = self._console(sys.stderr)
        console.print(f"✗ {self.shown(error.what)}", style="red")
        for label, value in _parts(error):
            console.print(self.shown(f"  {label:<13}{value}"), style="bold" if label == "fix" else "")

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

        with self._console(sys.stderr).status(Text(self.shown(text))) as status:
            yield lambda new: status.update(Text(self.shown(new)))

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, dict):
            return {key: self._masked(inner) for key, inner in value.items()}
        return [self._masked(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _console(self, file: IO[str]) -> Console:
        from rich.console import Console

        return Console(
            file=file,
            color_system="auto" if self.color and not os.environ.get("NO_COLOR") else None,
            width=None if file.isatty() else _UNLIMITED,
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
    if isinstance(error, CallError):
        yield "executed", error.executed
        if error.retry_after:
            yield "retry after", f"{error.retry_after:.1f} s"
    if error.fix:
        yield "fix", error.fix
    yield "code", error.code


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
