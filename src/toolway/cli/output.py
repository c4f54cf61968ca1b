"""Terminal output of commands: data on stdout, messages on stderr.

With `--json`, stdout is one JSON document. Tables and colors are formatted here: a terminal library takes longer to
load than most commands run.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from toolway.cli.exit_codes import exit_code_for
from toolway.config.schema import ConfigIssue
from toolway.errors import (
    CallError,
    CallTimeout,
    ConfigError,
    InvalidArguments,
    NotFound,
    ProtocolError,
    ToolwayError,
)
from toolway.protocol.sanitize import escape_invisible, map_texts, remove_controls, sanitize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

_NO_LIMIT = 1_000_000
_LABEL_WIDTH = 13  # width of the label column in a printed error
MAX_STDERR_LINES = 5
STATE_STYLES = {
    "ready": "green",
    "idle": "cyan",
    "starting": "yellow",
    "down": "red",
    "disabled": "dim",
}


@dataclass
class Output:
    """Output settings of a command (JSON, quiet, verbose, colors), and methods that print.

    `mask` hides the secrets of the configured servers.
    """

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool = True
    mask: Callable[[str], str] = field(default=lambda text: text)
    _status: Status | None = field(default=None, repr=False)  # the spinner that is shown now
    _told: set[str] = field(default_factory=set, repr=False)  # messages of `info_once`

    def print_raw_json(self, value: Any) -> None:
        """Print a value as JSON on stdout without masking secrets, such as the result of a tool.

        Invisible characters are written as JSON escapes: the value stays exact, and the terminal shows them.
        """
        sys.stdout.write(escape_invisible(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")

    def print_json_line(self, value: Any) -> None:
        """Print one JSON document of a stream on stdout as a single line, sanitized."""
        sys.stdout.write(json.dumps(map_texts(value, self.sanitize), ensure_ascii=False) + "\n")

    def print_json(self, value: Any) -> None:
        """Print a JSON document on stdout, with secrets masked and control and invisible characters removed."""
        self.print_raw_json(map_texts(value, self.sanitize))

    def print_line(self, text: str = "", style: str = "") -> None:
        """Print one line of data on stdout, with secrets masked and control characters removed."""
        self._write(sys.stdout, self.sanitize(text), style)

    def print_wrapped(self, text: str, style: str = "", indent: str = "  ") -> None:
        """Print data on stdout; at a terminal, wrapped between words."""
        self._write(sys.stdout, self._wrap(self.sanitize(text), indent, sys.stdout), style)

    def info_wrapped(self, text: str, style: str = "", indent: str = "  ") -> None:
        """Print a message on stderr unless --quiet is set; at a terminal, wrapped between words."""
        if not self.quiet:
            self._write(sys.stderr, self._wrap(self.sanitize(text), indent), style)

    def print_tool_text(self, text: str) -> None:
        """Print the text of a tool result on stdout, without characters that control a terminal.

        If stdout is not a terminal, all other characters stay: the text may be the content of a file.
        """
        sys.stdout.write((sanitize(text, _NO_LIMIT * 100) if sys.stdout.isatty() else remove_controls(text)) + "\n")

    def print_table(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Sequence[str] = (),
        cut: bool = False,
        drop: Sequence[str] = (),
    ) -> None:
        """Print a table with aligned columns on stdout.

        At a terminal the last column is wrapped, or truncated if `cut`. Else it is printed whole. In a terminal that is
        too narrow, the columns in `drop` are left out, the first one first, until the rest fits.
        """
        cells = [[self.sanitize(cell).replace("\n", " ") for cell in row] for row in (heads, *rows)]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        if width is not None and drop:
            cells = drop_columns(cells, width, drop)
            heads = cells[0]
        right_columns = frozenset(number for number, head in enumerate(heads) if head in right)
        indent = ""
        for number, row in enumerate(format_rows(cells, width, right=right_columns, cut=cut)):
            styles = ["dim" if number == 0 else STATE_STYLES.get(cell, "") for cell in cells[number]]
            front = [self._style(sys.stdout, cell, style) for [cell], style in zip(row[:-1], styles, strict=False)]
            first, *more = row[-1]
            last = self._style(sys.stdout, first, styles[-1])
            sys.stdout.write(COLUMN_GAP.join([*front, last]).rstrip() + "\n")
            indent = indent or " " * sum(display_width(cell) + len(COLUMN_GAP) for [cell] in row[:-1])
            for line in more:
                sys.stdout.write(indent + line + "\n")

    def info(self, text: str, style: str = "") -> None:
        """Print a message for the user on stderr, unless --quiet is set."""
        if not self.quiet:
            self._write(sys.stderr, self.sanitize(text), style)

    def print_question(self, text: str, style: str = "") -> None:
        """Print part of a question on stderr, even with --quiet: the command needs the answer."""
        self._write(sys.stderr, self._wrap(self.sanitize(text), "  "), style)

    def info_once(self, text: str, style: str = "") -> None:
        """Print a message like `info`, unless this command printed it before."""
        if text not in self._told:
            self._told.add(text)
            self.info(text, style)

    def print_problems(self, problems: Iterable[ConfigIssue], *, notes: bool = False) -> None:
        """Print config problems on stderr. Notes are printed only with --verbose or `notes`."""
        colors = {"error": "red", "warning": "yellow", "note": "dim"}
        for problem in problems:
            if problem.severity != "note" or self.verbose or notes:
                self.info_wrapped(f"{problem.severity}: {problem}", colors[problem.severity])

    def print_error(self, error: ToolwayError) -> None:
        """Print an error on stderr: message, detail, hint, code. With --json, print it on stdout."""
        document = error_to_json(error)
        if self.as_json:
            self.print_json({"error": document})
            return
        self._write(sys.stderr, self._wrap(f"✗ {self.sanitize(error.message)}", "  "), "red")
        for label, value in _error_parts(error):
            text = self.sanitize(f"  {label:<{_LABEL_WIDTH}}{value}")
            if label != "hint" or ": " not in value:  # a hint with a command stays on one line, to be copied
                text = self._wrap(text, " " * (_LABEL_WIDTH + 2))
            self._write(sys.stderr, text, "bold" if label == "hint" else "")

    def sanitize(self, text: str) -> str:
        """Return `text` with secrets masked, and without control, direction and invisible characters."""
        return sanitize(self.mask(text), _NO_LIMIT)

    @property
    def shows_spinner(self) -> bool:
        return not self.quiet and not self.as_json and sys.stderr.isatty()

    @contextmanager
    def spinner(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with `text` while the block runs, if stderr is a terminal.

        Yields a function that changes the text.
        """
        if not self.shows_spinner:
            yield lambda _: None
            return
        from rich.text import Text

        def fit(message: str) -> Text:
            return Text(truncate(self.sanitize(message).replace("\n", " "), shutil.get_terminal_size().columns - 3))

        with self._console(sys.stderr).status(fit(text)) as status:
            self._status = status
            try:
                yield lambda new: status.update(fit(new))
            finally:
                self._status = None

    @contextmanager
    def paused_spinner(self) -> Iterator[None]:
        """Hide the spinner while the block asks the user."""
        if self._status is None:
            yield
            return
        self._status.stop()
        try:
            yield
        finally:
            self._status.start()

    def _wrap(self, text: str, indent: str, file: IO[str] | None = None) -> str:
        """Wrap `text` to the width of the terminal; unchanged if the file (stderr by default) is not a terminal."""
        if not (file or sys.stderr).isatty() or len(text) <= (width := shutil.get_terminal_size().columns):
            return text
        return "\n".join(
            textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        )

    def _write(self, file: IO[str], text: str, style: str) -> None:
        file.write(self._style(file, text, style) + "\n")

    def _style(self, file: IO[str], text: str, style: str) -> str:
        return apply_style(text, style) if style and self._has_color(file) else text

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


def last_stderr_lines(stderr: str) -> list[str]:
    """Return the last non-empty lines of a server's stderr, at most `MAX_STDERR_LINES`."""
    return [line for line in stderr.splitlines() if line.strip()][-MAX_STDERR_LINES:]


# -- errors and config problems ----------------------------------------------------------------------------------------


def _error_parts(error: ToolwayError) -> Iterator[tuple[str, str]]:
    if isinstance(error, ConfigError) and error.file:
        yield "file", f"{error.file}:{error.line}" if error.line else error.file
    if isinstance(error, InvalidArguments) and error.violations:
        yield from (("argument", str(violation)) for violation in error.violations)
        if error.omitted:
            yield "argument", f"and {error.omitted} more"
    elif error.detail:
        yield "detail", error.detail
    for line in getattr(error, "__notes__", ()):
        yield "stderr", f"| {line}"
    if isinstance(error, CallError) and (error.tool or not isinstance(error, NotFound)):
        yield "executed", error.executed
    if isinstance(error, CallError) and error.retry_after:
        yield "retry after", f"{error.retry_after:.1f} s"
    if error.hint:
        yield "hint", error.hint
    yield "code", f"{error.code} (toolway explain {error.code})"


def error_to_json(error: ToolwayError) -> dict[str, Any]:
    """Return an error as the JSON object that commands print with `--json`."""
    document: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "exit": int(exit_code_for(error)),
    }
    if isinstance(error, ConfigError):
        document |= {"file": error.file, "line": error.line}
    if isinstance(error, CallError):
        document |= {
            "server": error.server,
            "tool": error.tool,
            "executed": error.executed,
            "attempts": error.attempts,
            "retry_after": error.retry_after,
            "stderr": getattr(error, "__notes__", []),
        }
    if isinstance(error, CallTimeout):
        document["phase"] = error.phase
    if isinstance(error, InvalidArguments):
        document |= {"violations": [each._asdict() for each in error.violations], "omitted": error.omitted}
    if isinstance(error, ProtocolError):
        document |= {"rpc_code": error.rpc_code, "data": error.data}
    return document


def problem_to_json(problem: ConfigIssue) -> dict[str, Any]:
    """Return a config problem as the JSON object that commands print with `--json`."""
    return {
        "server": problem.server,
        "severity": problem.severity,
        "code": problem.code,
        "message": problem.message,
        "detail": problem.detail,
        "hint": problem.hint,
        "file": problem.file,
        "line": problem.line,
    }


# -- columns and ANSI colors ------------------------------------------------------------------------------------------


COLUMN_GAP: Final = "  "
MIN_COLUMN_WIDTH: Final = 16  # minimum width: kept free for the last column, and other columns do not shrink below it
_MIN_LAST_COLUMN_WIDTH: Final = 4  # minimum width of the last column in a very narrow terminal
_ANSI_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def apply_style(text: str, style: str) -> str:
    """Return `text` with the ANSI codes of a style such as `bold red`."""
    codes = ";".join(_ANSI_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def display_width(text: str) -> int:
    """Return the number of terminal columns that `text` occupies."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def truncate(text: str, width: int) -> str:
    """Return `text` truncated to `width` columns; a truncated text ends with `…`."""
    if display_width(text) <= width:
        return text
    kept_text, used = "", 1
    for char in text:
        used += _char_width(char)
        if used > width:
            break
        kept_text += char
    return kept_text.rstrip() + "…"


def wrap_lines(text: str, width: int) -> list[str]:
    """Wrap `text` into lines of at most `width` columns. Returns at least one line."""
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, width, break_on_hyphens=False) or [""]]
    return lines or [""]


def format_rows(
    cells: Sequence[Sequence[str]], width: int | None, *, right: frozenset[int] = frozenset(), cut: bool = False
) -> list[list[list[str]]]:
    """Return the cells of a table, by row and column, each as a list of padded lines.

    Without `width` nothing is cut or wrapped.
    """
    if not cells:
        return []
    last = len(cells[0]) - 1
    widths = [max(display_width(row[number]) for row in cells) for number in range(last)]
    if width is not None:
        widths = _shrink_columns(widths, width)
    last_width = None if width is None else max(_MIN_LAST_COLUMN_WIDTH, width - sum(widths) - len(COLUMN_GAP) * last)
    found = []
    for row in cells:
        leading = [
            _pad(truncate(cell, size), size, n in right)
            for n, (cell, size) in enumerate(zip(row, widths, strict=False))
        ]
        last_lines = (
            [row[last]]
            if last_width is None
            else [truncate(row[last], last_width)]
            if cut
            else wrap_lines(row[last], last_width)
        )
        found.append([[cell] for cell in leading] + [last_lines])
    return found


def drop_columns(cells: Sequence[Sequence[str]], width: int, drop: Sequence[str]) -> list[list[str]]:
    """Return the cells of a table without the columns in `drop`, as many of them as must go for the rest to fit.

    The first row has the heads. The last column, and a column wider than it need be, can shrink to the minimum width.
    """
    found = [list(row) for row in cells]
    for head in drop:
        widths = [max(map(display_width, column)) for column in zip(*found, strict=True)]
        if sum(min(each, MIN_COLUMN_WIDTH) for each in widths) + len(COLUMN_GAP) * (len(widths) - 1) <= width:
            break
        if head in found[0]:
            number = found[0].index(head)
            found = [row[:number] + row[number + 1 :] for row in found]
    return found


def _shrink_columns(widths: list[int], width: int) -> list[int]:
    """Shrink the widest table columns until `width` leaves enough room for the last column."""
    widths = list(widths)
    while (
        widths
        and sum(widths) + len(COLUMN_GAP) * len(widths) + MIN_COLUMN_WIDTH > width
        and max(widths) > MIN_COLUMN_WIDTH
    ):
        widths[widths.index(max(widths))] -= 1
    return widths


def _pad(text: str, width: int, right: bool) -> str:
    fill = " " * (width - display_width(text))
    return fill + text if right else text + fill


# -- durations and ages ------------------------------------------------------------------------------------------------


_DURATION_UNITS = ((60, 1, "s"), (3600, 60, "min"), (2 * 86400, 3600, "h"))  # (upper limit in s, unit in s, unit name)


def format_duration(seconds: float) -> str:
    """Format a duration: `5 s`, `12 min`, `30 h`, `12 days`."""
    for limit, size, unit in _DURATION_UNITS:
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} days"


def format_age(seconds: float) -> str:
    """Format the age of an event: `just now`, `5 min ago`."""
    return "just now" if seconds < 10 else f"{format_duration(seconds)} ago"
