"""New server project from the files in `templates/`: an SDK server, its tests and its config entry.

The templates are plain text. `{{name}}` and the like are replaced, nothing runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from toolway.cli.exit_codes import UsageError
from toolway.config.schema import check_server_name
from toolway.config.scopes import open_trust_store

TEMPLATES: Final = Path(__file__).parent / "templates"
DEFAULT_PORT: Final = 8000
CONFIG_FILE: Final = ".mcp.json"  # Claude Code and other clients read it too
_PLACEHOLDER: Final = re.compile(r"\{\{(\w+)\}\}")
_SECRET_FIXES: Final = {
    False: f"Set it, and name it under env in {CONFIG_FILE}.",
    True: "Set it and restart the server.",
}


@dataclass(frozen=True)
class NewServer:
    """Name and transport of a server to be created, and the names that its files use."""

    name: str
    http: bool = False

    def __post_init__(self) -> None:
        check_server_name(self.name)

    @property
    def package(self) -> str:
        """Return the name of the new server's Python package.

        It ends in `_server`, so it hides no other module such as `json` or `mcp`.
        """
        stem = self.name.replace("-", "_").removesuffix("_server")
        return f"server_{stem}" if stem[:1].isdigit() else f"{stem}_server"

    @property
    def prefix(self) -> str:
        """Return the name prefix of the new server's environment variables."""
        return self.package.upper()

    @property
    def entry(self) -> dict[str, Any]:
        """Return the config entry of the new server. Its command is the Python of this process, which has the SDK."""
        if self.http:
            return {"type": "http", "url": f"http://127.0.0.1:${{{self.prefix}_PORT:-{DEFAULT_PORT}}}/mcp"}
        return {"command": sys.executable or "python3", "args": ["-m", self.package]}

    @property
    def next_steps(self) -> list[str]:
        """Return the commands that the user should run next in the folder of the new project, in this order."""
        python = shlex.quote(sys.executable or "python3")
        start = [f"{python} -m {self.package}    # in another terminal"] if self.http else []
        pytest = [] if find_spec("pytest") else [f"{python} -m pip install pytest"]
        return [*start, "toolway doctor", *pytest, f"{python} -m pytest"]

    def render(self) -> dict[str, str]:
        """Return the text of every file of the new project, by its path below the project folder."""
        kind = "http" if self.http else "stdio"
        templates = {
            "README.md": f"README_{kind}.md",
            "pyproject.toml": "pyproject.toml",
            ".gitignore": "gitignore",
            f"{self.package}/server.py": "server.py",
            f"{self.package}/__main__.py": f"main_{kind}.py",
            "tests/test_server.py": "test_server.py",
            **({"tests/test_http.py": "test_http.py"} if self.http else {}),
        }
        files = {path: self._fill(template) for path, template in templates.items()}
        files[f"{self.package}/__init__.py"] = f'"""MCP server {self.name}."""\n'
        files[CONFIG_FILE] = json.dumps({"mcpServers": {self.name: self.entry}}, indent=2) + "\n"
        return files

    def _fill(self, template: str) -> str:
        values = {
            "name": self.name,
            "package": self.package,
            "prefix": self.prefix,
            "port": str(DEFAULT_PORT),
            "secret_fix": _SECRET_FIXES[self.http],
        }
        text = (TEMPLATES / f"{template}.tmpl").read_text(encoding="utf-8")
        return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def create_project(server: NewServer, folder: Path) -> list[str]:
    """Write the files of a new server to `folder`, trust its config file, and return their paths.

    Raises `UsageError` if the folder is not empty or cannot be written. No existing file is changed.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(
            f"{folder} already exists and is not an empty folder",
            detail="toolway new never overwrites files",
            hint=f"pick another folder: toolway new {server.name} --dir PATH",
        )
    files = server.render()
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / path, "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
    except OSError as exc:
        raise UsageError(
            f"{folder} cannot be written",
            detail=f"{exc.filename}: {exc.strerror}",
            hint=f"pick another folder: toolway new {server.name} --dir PATH",
        ) from None
    open_trust_store(os.environ).trust(folder / CONFIG_FILE, files[CONFIG_FILE].encode())
    return sorted(files)
