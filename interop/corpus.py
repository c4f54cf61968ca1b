"""The corpus of real MCP servers: their installation, commands and scratch folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_SERVERS = Path(__file__).resolve().parents[2] / "shared" / "real-servers.json"

# A fixed author and date give the scratch repository the same commit hash in every run.
_GIT_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "interop",
    "GIT_AUTHOR_EMAIL": "interop@example.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "interop",
    "GIT_COMMITTER_EMAIL": "interop@example.invalid",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00+0000",
}

# The corpus runs offline and repeatedly: no usage statistics, no update checks.
_QUIET = {
    "DO_NOT_TRACK": "1",
    "OTEL_SDK_DISABLED": "true",
    "CHROME_DEVTOOLS_MCP_NO_USAGE_STATISTICS": "1",
    "CHROME_DEVTOOLS_MCP_NO_UPDATE_CHECKS": "1",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
}


@dataclass(frozen=True)
class Package:
    """One entry of the corpus file: the package to install and the call to make."""

    name: str
    package: str
    registry: str
    bin: str
    protocol: str
    tools: int
    args: tuple[str, ...] = ()
    also_install: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    tool: str | None = None
    arguments: dict[str, Any] | None = None

    def folder(self, installed: Path) -> Path:
        return installed / "servers" / self.name


@dataclass(frozen=True)
class CorpusServer:
    """An installed server, ready to start: absolute command, {work} replaced."""

    name: str
    command: str
    args: tuple[str, ...]
    env: dict[str, str]
    work: Path
    protocol: str
    tools: int
    tool: str | None = None
    arguments: dict[str, Any] | None = None

    @property
    def era(self) -> str:
        """Return the era of this server according to the corpus file."""
        return "modern" if self.protocol >= "2026-07-28" else "legacy"


def read_packages(file: Path = DEFAULT_SERVERS, *, only_callable: bool = False) -> list[Package]:
    """Return the entries of the corpus file in their order."""
    entries = json.loads(file.read_text(encoding="utf-8"))["servers"]
    packages = [_package(entry) for entry in entries]
    names = [package.name for package in packages]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"duplicate package names: {sorted(twice)}")
    return [package for package in packages if package.tool or not only_callable]


def load(packages: list[Package], *, installed: Path, work: Path) -> list[CorpusServer]:
    """Return the servers as installed under `installed`, each with a scratch folder under `work`."""
    # With a shared folder, a server could list or read files that another server has just written.
    return [_installed(package, installed.resolve(), work.resolve() / package.name) for package in packages]


def make_work(folder: Path) -> None:
    """Reset `folder` to a new scratch folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "a.js").write_text("var a = 1\n", encoding="utf-8")
    memory = {"type": "entity", "name": "a", "entityType": "letter", "observations": ["first"]}
    (folder / "mem.json").write_text(json.dumps(memory) + "\n", encoding="utf-8")
    (folder / "t.db").touch()
    (folder / "home").mkdir()
    _make_repo(folder / "repo")


def short_name(package: str) -> str:
    """Return a short name: `@scope/mcp` -> `scope-mcp`, `@scope/x` -> `x`, `vendor.x` -> `x`."""
    scope, _, last = package.lower().lstrip("@").rpartition("/")
    last = last.rpartition(".")[2]
    name = f"{scope}-{last}" if scope and last == "mcp" else last
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _package(entry: dict[str, Any]) -> Package:
    call = entry.get("call") or {}
    return Package(
        name=short_name(entry["package"]),
        package=entry["package"],
        registry=entry["registry"],
        bin=entry["bin"],
        protocol=entry["protocol"],
        tools=entry["tools"],
        args=tuple(entry["args"]),
        also_install=tuple(entry.get("also_install", ())),
        env=entry.get("env", {}),
        tool=call.get("tool"),
        arguments=call.get("arguments"),
    )


def _installed(package: Package, installed: Path, work: Path) -> CorpusServer:
    folder = package.folder(installed)
    launcher: tuple[str, ...]
    if package.registry == "npm":
        # Run Node explicitly: the script's `#!/usr/bin/env node` would use the machine's Node, which may be too old.
        launcher = (str(installed / "bin" / "node"), str(folder / "node_modules" / ".bin" / package.bin))
    else:
        launcher = (str(folder / "bin" / package.bin),)
    path = os.pathsep.join([str(installed / "bin"), os.environ.get("PATH", os.defpath)])
    env = {"PATH": path, **environment(package, work)}
    return CorpusServer(
        name=package.name,
        command=launcher[0],
        args=(*launcher[1:], *fill(list(package.args), work)),
        env=env,
        work=work,
        protocol=package.protocol,
        tools=package.tools,
        tool=package.tool,
        arguments=fill(package.arguments, work),
    )


def environment(package: Package, work: Path) -> dict[str, str]:
    """Return the variables of a server with the scratch folder `work`."""
    return {"HOME": str(work / "home"), **_QUIET, **fill(package.env, work)}


def fill(value: Any, work: Path) -> Any:
    """Replace {work} in all strings of a value."""
    if isinstance(value, str):
        return value.replace("{work}", str(work))
    if isinstance(value, list):
        return [fill(item, work) for item in value]
    if isinstance(value, dict):
        return {key: fill(item, work) for key, item in value.items()}
    return value


def _make_repo(folder: Path) -> None:
    folder.mkdir()
    (folder / "readme.txt").write_text("hello\n", encoding="utf-8")
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=folder, env={**os.environ, **_GIT_ENV}, check=True)
