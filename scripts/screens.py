"""Record the command line in a real terminal of 80 columns (tmux), into docs/screens.

    python scripts/screens.py [NAME …]

Each screen is stored as text without color and as an SVG with color. It is captured when the prompt is back, or when
a given text appears, such as the progress of a running call.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
SCREENS_DIR = ROOT / "docs" / "screens"
COLUMNS, LINES = 80, 100
PROMPT = "$ "
COMMAND_TIMEOUT_S = 60.0  # seconds per command


@dataclass(frozen=True)
class Screen:
    name: str
    title: str
    commands: tuple[str, ...]
    capture_text: str = ""  # capture when this text appears; if empty, when the prompt is back
    color: bool = True


SCREENS = (
    Screen("begin", "The first minute", ("toolway", "toolway init --yes")),
    Screen("toolway", "toolway", ("toolway ls", "clear", "toolway")),
    Screen("ls", "toolway ls", ("toolway ls",)),
    Screen("tools", "toolway tools", ("toolway tools",)),
    Screen("tools-tokens", "toolway tools --tokens", ("toolway tools file --tokens",)),
    Screen(
        "call-progress",
        "toolway call, while it runs",
        ("toolway call files.index_folder path=/books",),
        "chapter-19.md",
    ),
    Screen("call", "toolway call", ("toolway call files.index_folder path=/books",)),
    Screen("error", "An error", ("toolway call files.raed_file path=/etc/hosts",)),
    Screen("doctor", "toolway doctor", ("toolway doctor",)),
    Screen("doctor-one", "toolway doctor NAME", ("toolway doctor github",)),
    Screen("doctor-plain", "toolway doctor, without color", ("toolway doctor github",), color=False),
    Screen("toolway-plain", "toolway, without color", ("toolway",), color=False),
    Screen("tools-plain", "toolway tools, without color", ("toolway tools",), color=False),
    Screen("help", "toolway --help", ("toolway --help",)),
)


def main() -> None:
    chosen = sys.argv[1:]
    if shutil.which("tmux") is None:
        sys.exit("tmux is not installed; nothing was recorded")
    SCREENS_DIR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screens") as name:
        home = Path(name)
        prepare(home)
        for screen in SCREENS:
            if not chosen or screen.name in chosen:
                record(screen, home)
    (SCREENS_DIR / "index.md").write_text(page())


def page() -> str:
    """Return the Markdown page with all screens."""
    parts = [
        "# Screens",
        "",
        "The command line in a terminal of 80 columns, recorded by `make docs ARGS=screens`; also available as text.",
    ]
    for screen in SCREENS:
        kind = "svg" if screen.color else "txt"
        shown = f"![{screen.title}]({screen.name}.svg)" if screen.color else _as_text(screen)
        parts += ["", f"## {screen.title}", "", shown, *([f"\n[as text]({screen.name}.txt)"] if kind == "svg" else [])]
    return "\n".join(parts) + "\n"


def _as_text(screen: Screen) -> str:
    return f"```text\n{(SCREENS_DIR / f'{screen.name}.txt').read_text().rstrip()}\n```"


def prepare(home: Path) -> None:
    """Create a home folder with config files of two clients; one of their servers lacks its token."""
    for folder in ("bin", ".cursor", "work"):
        (home / folder).mkdir()
    demo = home / "bin" / "demo"
    demo.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "scripts" / "demo_server.py"} "$@"\n')
    demo.chmod(0o755)
    toolway = Path(sys.executable).with_name("toolway")
    (home / "bin" / "toolway").symlink_to(toolway)
    entries = {name: {"command": "demo", "args": [name]} for name in ("files", "github", "weather")}
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": entries}, indent=2))
    github = {"command": "demo", "args": ["github"]}
    claude = {"mcpServers": {"github": github, "files": {"command": "demo", "args": ["files"]}}}
    (home / ".claude.json").write_text(json.dumps(claude, indent=2))


def record(screen: Screen, home: Path) -> None:
    if screen.name != "begin" and not (home / ".config/toolway/mcp.json").exists():
        subprocess.run(
            [str(home / "bin" / "toolway"), "init", "-q", "--yes"],
            env=environ(home, True),
            cwd=home / "work",
            check=True,
        )
    terminal = Terminal(home, screen.color)
    try:
        for command in screen.commands:
            terminal.type(command)
            terminal.wait(screen.capture_text or None)
        captured = terminal.capture(home)
    finally:
        terminal.close()
    plain = Text.from_ansi(captured).plain
    (SCREENS_DIR / f"{screen.name}.txt").write_text("\n".join(line.rstrip() for line in plain.splitlines()) + "\n")
    if screen.color:
        write_svg(screen.name, captured)
    wide = [line for line in plain.splitlines() if len(line) > COLUMNS]
    print(f"{screen.name}: {len(plain.splitlines())} lines{', TOO WIDE' if wide else ''}")


def environ(home: Path, color: bool) -> dict[str, str]:
    path = os.pathsep.join([str(home / "bin"), os.defpath])
    variables = {"HOME": str(home), "PATH": path, "PS1": PROMPT, "TERM": "screen-256color", "LANG": "C.UTF-8"}
    return variables if color else {**variables, "NO_COLOR": "1"}


class Terminal:
    """A shell in a separate tmux server."""

    def __init__(self, home: Path, color: bool) -> None:
        self._socket = str(home / f"tmux-{time.monotonic_ns()}")  # the previous server may still be running
        assignments = [f"{name}={value}" for name, value in environ(home, color).items()]
        shell = shlex.join(["env", "-i", *assignments, "sh"])
        size = ["-x", str(COLUMNS), "-y", str(LINES)]
        self._tmux("-f", os.devnull, "new-session", "-d", *size, "-c", str(home / "work"), shell)
        self.wait(None)

    def type(self, command: str) -> None:
        self._tmux("send-keys", "-l", command)
        self._tmux("send-keys", "Enter")
        time.sleep(0.3)

    def wait(self, capture_text: str | None) -> None:
        """Wait until the prompt is back, or until the text `capture_text` is on the screen."""
        end = time.monotonic() + COMMAND_TIMEOUT_S
        lines: list[str] = []
        while time.monotonic() < end:
            lines = [line for line in self._tmux("capture-pane", "-p").splitlines() if line.strip()]
            if capture_text is not None and any(capture_text in line for line in lines):
                return
            if capture_text is None and lines and lines[-1] == PROMPT.rstrip():
                return
            time.sleep(0.05)
        raise SystemExit(f"the expected screen did not appear: {lines}")

    def capture(self, home: Path) -> str:
        """Return the screen with colors, without the last prompt and without the temporary path."""
        text = self._tmux("capture-pane", "-p", "-e").replace(str(home), "/home/me")
        lines = text.rstrip().splitlines()
        if re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip() == PROMPT.strip():
            lines.pop()
        return "\n".join(lines)

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *words], capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout


# -- SVG --------------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 8.4, 19, 14  # of a character, of a line, around the screen
COLORS = {1: "#f07178", 2: "#a5d467", 3: "#ffcb6b", 4: "#82aaff", 6: "#7fdbca"}


def write_svg(name: str, captured: str) -> None:
    """Write the screen as SVG. Every word has its own position, so it is aligned with any font."""
    rows = list(AnsiDecoder().decode(captured))
    size = f"{COLUMNS * WIDTH + 2 * MARGIN:.0f}", f"{len(rows) * HEIGHT + 2 * MARGIN}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}">',
        f"<title>toolway: {name}</title>",
        '<rect width="100%" height="100%" rx="8" fill="#1e2127"/>',
        '<g font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14" fill="#dcdfe4">',
    ]
    for number, row in enumerate(rows):
        y = MARGIN + number * HEIGHT + 14
        lines += [_word(y, column, text, style) for column, text, style in _words(row)]
    (SCREENS_DIR / f"{name}.svg").write_text("\n".join([*lines, "</g>", "</svg>"]) + "\n")


def _words(row: Text) -> Iterator[tuple[int, str, Style]]:
    """Yield the words of a line, each with the column where it begins."""
    column = 0
    console = Console(width=10 * COLUMNS, color_system="standard", force_terminal=True)
    for segment in row.render(console):
        for part in re.findall(r"\s+|\S+", segment.text):
            if part.strip():
                yield column, part, segment.style or Style()
            column += cell_len(part)


def _word(y: int, column: int, text: str, style: Style) -> str:
    number = style.color.number if style.color is not None else None
    marks = f' fill="{COLORS[number]}"' if number in COLORS else ""
    marks += ' font-weight="bold"' if style.bold else ""
    marks += ' opacity="0.6"' if style.dim else ""
    return f'<text x="{MARGIN + column * WIDTH:.1f}" y="{y}"{marks}>{html.escape(text, quote=False)}</text>'


if __name__ == "__main__":
    main()
