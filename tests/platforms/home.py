"""Machine of one user for one check: a home folder with a space and an umlaut in its name, and what runs in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from toolway.cli.framework import CommandSpec
from toolway.cli.table import COMMANDS

IS_WINDOWS: Final = sys.platform == "win32"
ROOT: Final = Path(__file__).resolve().parents[2]
FAKE: Final = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
TIMEOUT_S: Final = 120.0
_OURS: Final = ("TOOLWAY_", "XDG_", "NO_COLOR", "EDITOR", "VISUAL", "BROWSER")


class Home:
    """Home folder, the environment of its user, and the processes that were started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: set[str] = set()
        self.errors: set[str] = set()
        self._started: list[subprocess.Popen[bytes]] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        self.environ = {
            **kept,
            **({"APPDATA": str(folder), "LOCALAPPDATA": str(folder)} if IS_WINDOWS else {}),
            "USERPROFILE" if IS_WINDOWS else "HOME": str(folder),
            "TOOLWAY_SECRETS": "file",
            "PYTHONPATH": str(ROOT),
        }

    @property
    def config_file(self) -> Path:
        """Toolway's own file of servers."""
        return self.folder / ("toolway" if IS_WINDOWS else ".config/toolway") / "mcp.json"

    def write(self, name: str, content: object, *, newline: str = "\n") -> Path:
        """Write a file below the home: a text as it is, anything else as JSON."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        file.write_text(text, encoding="utf-8", newline=newline)
        return file

    def serve_these(self, servers: dict[str, object] | None = None, **settings: object) -> None:
        """Write servers, by default one fake, and settings to Toolway's own file."""
        content = {"mcpServers": servers or {"fake": FAKE}, **({"toolway": settings} if settings else {})}
        self.write(str(self.config_file.relative_to(self.folder)), content)

    # -- commands -----------------------------------------------------------------------------------------------------

    def toolway(self, *words: str, code: int = 0, typed: str = "", cwd: Path | None = None, **variables: str) -> str:
        """Run a command that must end with this exit code, and return what it wrote."""
        out, err = self.outputs(*words, code=code, typed=typed, cwd=cwd, **variables)
        return out + err

    def json(self, *words: str, code: int = 0, typed: str = "") -> Any:
        """Run a command with `--json`, and return its document."""
        return json.loads(self.outputs(*words, "--json", code=code, typed=typed)[0])

    def outputs(
        self, *words: str, code: int = 0, typed: str = "", cwd: Path | None = None, **variables: str
    ) -> tuple[str, str]:
        """Run a command as `toolway` does, and return its output and its messages."""
        done = subprocess.run(
            [sys.executable, "-m", "toolway.cli", *words],
            cwd=cwd or self.folder,
            env=self.environ | variables,
            input=typed.encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, f"toolway {' '.join(words)}: exit code {done.returncode}: {(out + err)[-600:]}"
        (self.commands if code in (0, 9) else self.errors).add(command_of(words))  # 9: it asks its user
        return out, err

    def start(self, *words: str, name: str = "toolway.cli", **options: Any) -> subprocess.Popen[bytes]:
        """Start a module of Python, by default a command, and kill it after the check unless it has ended."""
        return self.start_program("-m", name, *words, **options)

    def start_program(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start Python with these arguments."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [sys.executable, *words]
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, **{**pipes, **options}
        )
        self._started.append(process)
        return process

    def run_module(self, name: str, *words: str) -> str:
        """Run a module in its own process, and return what it printed."""
        return self._run_python("-m", name, *words)

    def run_program(self, text: str, *words: str) -> str:
        """Run a Python program as its user would, and return what it printed."""
        return self._run_python(str(self.write("program.py", text)), *words)

    def _run_python(self, *words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, timeout=3 * TIMEOUT_S, check=False
        )
        said = done.stderr.decode(errors="replace").strip()
        assert done.returncode == 0, f"{said.splitlines()[-1][-600:] if said else done.returncode}"
        return done.stdout.decode().strip()

    def start_gateway(self, *options: str) -> Gateway:
        """Start the gateway on a free port, and wait until it serves."""
        words = ("serve", "--port", "0", "--json", "--drain-delay", "0", *options)
        return Gateway(self, self.start(*words))

    def close(self) -> None:
        """End everything that was started."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait(TIMEOUT_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


class Gateway:
    """A gateway that runs, as its users see it."""

    def __init__(self, home: Home, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        lines: list[bytes] = []
        while not lines or lines[-1].rstrip() != b"}":
            line = process.stdout.readline()
            assert line, f"the gateway ended with {process.wait(TIMEOUT_S)}: {b''.join(lines).decode()}"
            lines.append(line)
        self.url: str = json.loads(b"".join(lines))["url"].removesuffix("/mcp")
        self.token = home.outputs("keys", "local-token")[0].strip()
        home.commands.add("serve")

    def get(
        self, path: str, token: str | None = None, *, method: str = "GET", body: object = None
    ) -> tuple[int, bytes]:
        """Return status and body of a request with a token; by default the token of the owner."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token if token is None else token}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def servers(self) -> dict[str, Any]:
        """Return the state of each server."""
        return {each["server"]: each for each in json.loads(self.get("/admin/servers")[1])["servers"]}


def command_of(words: tuple[str, ...]) -> str:
    """Return the name of the command that these words run, such as `workflow run`."""
    table: Mapping[str, CommandSpec] = COMMANDS
    found: list[str] = []
    for word in words:
        if word in table:
            found.append(word)
            entry = table[word]
            if entry.subcommands is None:
                break
            table = entry.subcommands
        elif found:
            break
    return " ".join(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_until(done: Callable[[], object], what: str, seconds: float = 60) -> float:
    """Wait until this is true, and return the milliseconds that it took."""
    began = time.perf_counter()
    while not done():
        assert time.perf_counter() - began < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
    return (time.perf_counter() - began) * 1000
