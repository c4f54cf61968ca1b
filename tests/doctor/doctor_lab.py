"""A user's machine in a folder: a home, files of servers, programs on PATH. The doctor is called there."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolway.doctor.client_checks import plan_client_files
from toolway.doctor.file_checks import plan_own_files
from toolway.doctor.report import CHECK_INDENT, Check, Report, render_report
from toolway.doctor.run import run_checks

SMALL = Path(__file__).with_name("small_server.py")
PYTHON = sys.executable
SYSTEM = "/usr/bin:/bin"


def small(*args: str) -> dict[str, Any]:
    """The entry of a server that works. Tests next to this one have other commands: they may leave processes behind."""
    return {"command": PYTHON, "args": ["-I", "-S", str(SMALL), *args, f"of-{os.getpid()}"]}


@dataclass
class Seen:
    """What the doctor said."""

    report: Report
    lines: list[str]

    @property
    def first(self) -> str:
        """The first line, as far as a narrow screen breaks it."""
        end = self.lines.index("") if "" in self.lines else len(self.lines)
        return " ".join(line.strip() for line in self.lines[:end])

    @property
    def check(self) -> Check:
        """The one that the first line is about."""
        checks = [check for subject in self.report.subjects for check in subject.checks]
        return next(check for state in ("fail", "warn") for check in checks if check.state == state)


@dataclass
class Lab:
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("home", "bin", "work"):
            (self.folder / name).mkdir(parents=True)
        self.environ |= {
            "HOME": str(self.folder / "home"),
            "XDG_CONFIG_HOME": str(self.folder / "home" / ".config"),
            "XDG_STATE_HOME": str(self.folder / "home" / ".local" / "state"),
            "PATH": f"{self.folder / 'bin'}:{SYSTEM}",
            "LANG": "C.UTF-8",
        }

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def work(self) -> Path:
        """The folder in which the person works."""
        return self.folder / "work"

    @property
    def file(self) -> Path:
        """The user's own file of servers."""
        return self.home / ".config" / "toolway" / "mcp.json"

    # -- making things ------------------------------------------------------------------------------------------------

    def write(self, text: str | bytes, path: Path | None = None) -> Path:
        path = path or self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def servers(self, path: Path | None = None, root: str = "mcpServers", **entries: Any) -> Path:
        """A file with these servers; `_` in a name stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in entries.items()}
        return self.write(json.dumps({root: named}, indent=2), path)

    def program(self, path: Path, text: str, *, executable: bool = True) -> Path:
        self.write(text, path)
        if executable:
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def script(self, name: str, before: str, *, then: str = "") -> Path:
        """A Python program that does something and then becomes a server that works; `then` are its arguments."""
        text = f"#!{PYTHON} -IS\nimport os, sys, time\n{before}\n"
        text += f"os.execv({PYTHON!r}, [{PYTHON!r}, '-I', '-S', {str(SMALL)!r}{', ' + repr(then) if then else ''}])\n"
        return self.program(self.work / name, text)

    # -- the doctor ---------------------------------------------------------------------------------------------------

    async def doctor(self, client: str | None = None, *, machine: bool = False) -> Seen:
        found = (
            plan_client_files(client, self.environ, self.work, include_untrusted=True)
            if client
            else plan_own_files(self.environ, self.work)
        )
        report = await run_checks(found.targets, self.environ, files=found.files, check_machine=machine)
        return Seen(report, [line.text for line in render_report(report.with_tilde(self.environ["HOME"]), 80)])

    async def finds(self, *words: str, client: str | None = None, machine: bool = False) -> Check:
        """The first line has these words, and the check it is about has a fix. What is shown fits 80 columns."""
        seen = await self.doctor(client, machine=machine)
        text = "\n".join(seen.lines)
        for word in words:
            assert word in seen.first, text
        assert seen.report.state in ("fail", "warn"), text
        assert seen.check.hint, text
        assert seen.check.code, text
        self._fits(seen)
        return seen.check

    def _fits(self, seen: Seen) -> None:
        copies = {check.copy for subject in seen.report.subjects for check in subject.checks if check.copy}
        for line in seen.lines:
            # A word that is longer than the room it has, and what is to be copied, is left whole.
            words = line.split()
            whole = len(words) <= 1 or len(words[-1]) > 80 - CHECK_INDENT
            assert len(line) <= 80 or line.strip() in copies or whole, line

    async def is_well(self, client: str | None = None, *, machine: bool = False) -> None:
        seen = await self.doctor(client, machine=machine)
        assert seen.report.state == "ok", "\n".join(seen.lines)

    # -- doing what it says -------------------------------------------------------------------------------------------

    def take_over(self, check: Check, name: str, path: Path | None = None) -> None:
        """Put the keys that the doctor wrote into the entry."""
        path = path or self.file
        document = json.loads(path.read_text())
        entries = next(iter(document.values()))
        new = json.loads("{" + check.copy + "}")
        kept = {} if "url" in new or "command" not in entries[name] else {"env": entries[name].get("env", {})}
        if "url" in new:
            entries[name].pop("command", None)
            entries[name].pop("args", None)
        elif "command" in new and "url" in entries[name]:
            entries[name].pop("url")
        env = {**kept.get("env", {}), **new.pop("env", {})}
        entries[name] |= {**new, **({"env": env} if env else {})}
        path.write_text(json.dumps(document, indent=2))

    def edit(self, old: str, new: str, path: Path | None = None) -> None:
        path = path or self.file
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new, 1))

    async def run(self, command: str) -> str:
        """A command that the doctor wrote, as a user would run it."""
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            cwd=self.work,
            env=self.environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    def repair(self, check: Check) -> None:
        """What `--fix` does."""
        assert check.auto_fix is not None
        before = dict(os.environ)
        assert check.auto_fix.description
        check.auto_fix.apply()
        assert dict(os.environ) == before
