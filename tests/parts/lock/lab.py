"""A home folder with a config file, a registry, and the commands of Toolway in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from tests.parts.lock.registry import Registry
from toolway import Hub
from toolway.cli.app import app
from toolway.errors import ConfigError
from toolway.parts.lock.lock_file import find_locks
from toolway.parts.lock.pypi import find_python
from toolway.parts.lock.start import locked_command

ROOT = Path(__file__).resolve().parents[3]
UV = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".uv/bin"))  # of scripts/install
ENTRIES = {
    "npm": {"command": "npx", "args": ["-y", "acme-tiny", "hello"]},
    "python": {"command": "uvx", "args": ["acme-tiny", "hello"]},
}


class Lab:
    """One machine. `environ` is the environment of its commands."""

    def __init__(self, folder: Path, registry: Registry) -> None:
        self.folder = folder
        self.registry = registry
        self.config = folder / "mcp.json"
        self.lock = folder / "toolway.lock"
        home = folder / "home"
        home.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environ = {
            **kept,
            **registry.environment(),
            "HOME": str(home),
            "npm_config_userconfig": str(home / ".npmrc"),
        }
        if pip_version(self.environ) == 0 and UV is not None:
            self.environ["PATH"] = f"{Path(UV).parent}:{self.environ['PATH']}"
        self.trees = home / ".local/share/toolway/packages"
        self.records = home / ".local/state/toolway/packages"

    def write(self, **servers: Any) -> None:
        self.config.write_text(json.dumps({"mcpServers": servers}))

    @contextmanager
    def as_user(self) -> Iterator[None]:
        """Replace the environment of this process by the environment of the machine."""
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.environ)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def toolway(self, *words: str) -> Result:
        """Run a command on this machine, with the config file."""
        with self.as_user():
            return CliRunner().invoke(app, [*words, "-c", str(self.config)], catch_exceptions=False)

    def locked(self, *words: str) -> Any:
        """Run a command that must succeed, and return its JSON."""
        result = self.toolway(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def start(self, name: str, **options: bool) -> list[str] | None:
        """Return the command line that a start of a server would run. Raises `ConfigError` if it is refused."""
        entry = json.loads(self.config.read_text())["mcpServers"][name]
        lock = find_locks(str(self.config), [name])[name]
        settings = {"required": False, "exempt": False} | options
        return locked_command([entry["command"], *entry["args"]], lock, self.environ, **settings)

    def refusal(self, name: str, **options: bool) -> str:
        """Return the code and text of the refusal to start a server; "" if it may start."""
        try:
            self.start(name, **options)
        except ConfigError as exc:
            return f"{exc.code} {exc}"
        return ""

    async def call(self, name: str) -> Any:
        """Start a server in a hub, call its tool, and return the result."""
        with self.as_user():
            async with Hub(self.config, token_store=None, catalog_storage=None) as hub:
                result = await hub.call_tool(f"{name}.words", {}, timeout=30)
                return json.loads(result.text)


def pip_version(environ: Mapping[str, str]) -> int:
    """Return the first number of the version of pip that a lock uses without uv; 0 if there is none."""
    python = find_python("", environ).path
    done = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[1].partition(".")[0]) if done.returncode == 0 else 0


has_npm = shutil.which("npm") is not None
