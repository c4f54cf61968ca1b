"""Agents in a terminal that keep JSON. Codex and its kin keep TOML: `tables.py`."""

from __future__ import annotations

import sys
from typing import Final

from toolway.config.clients.dialect import OAUTH_KEYS, Dialect, Timeout, Value
from toolway.config.clients.paths import Paths, place
from toolway.config.clients.values import Client, Place
from toolway.config.syntaxes import CURLY, DOLLARS, PERCENT


def _copilot(paths: Paths) -> list[Place]:
    name = "copilot-cli"
    projects = [paths.nearest(".mcp.json"), paths.nearest(".github/mcp.json")]
    folders = [projects[0].parent, projects[1].parent.parent]
    return [
        place(name, "user", paths.named("COPILOT_HOME", paths.home / ".copilot") / "mcp-config.json"),
        *(place(name, "project", path, directory=folder) for path, folder in zip(projects, folders, strict=True)),
    ]


def _gemini(paths: Paths) -> list[Place]:
    project = paths.nearest(".gemini/settings.json")
    return [
        place("gemini-cli", "user", paths.home / ".gemini" / "settings.json"),
        place("gemini-cli", "project", project, directory=project.parent.parent),
    ]


def _antigravity(paths: Paths) -> list[Place]:
    return [
        place("antigravity", "user", paths.home / ".gemini" / folder / "mcp_config.json")
        for folder in ("config", "antigravity")
    ]


def _opencode(paths: Paths) -> list[Place]:
    folder = paths.config / "opencode"
    projects = [paths.nearest(f"opencode.{ending}") for ending in ("json", "jsonc")]
    return [
        *(place("opencode", "user", folder / f"opencode.{ending}", root=("mcp",)) for ending in ("json", "jsonc")),
        *(place("opencode", "project", path, root=("mcp",), directory=path.parent) for path in projects),
    ]


def _kilo(paths: Paths) -> list[Place]:
    project = paths.nearest("kilo.json")
    return [
        *(place("kilo", "user", paths.config / "kilo" / f"kilo.{end}", root=("mcp",)) for end in ("json", "jsonc")),
        place("kilo", "project", project, root=("mcp",), directory=project.parent),
    ]


def _crush(paths: Paths) -> list[Place]:
    projects = [paths.nearest(name) for name in (".crush.json", "crush.json")]
    local = paths.environment.get("LOCALAPPDATA")
    folder = paths.home if local is None else paths.named("LOCALAPPDATA", paths.home)
    user = folder / "crush" if paths.platform == "win32" else paths.config / "crush"
    return [
        place("crush", "user", user / "crush.json", root=("mcp",)),
        *(place("crush", "project", path, root=("mcp",), directory=path.parent) for path in projects),
    ]


def _amp(paths: Paths) -> list[Place]:
    root = ("amp.mcpServers",)  # one key with a dot in it
    folder = paths.support if paths.platform == "win32" else paths.config
    project = paths.nearest(".amp/settings.json")
    return [
        place("amp", "user", folder / "amp" / "settings.json", root=root),
        place("amp", "project", project, root=root, directory=project.parent.parent),
    ]


def _factory(paths: Paths) -> list[Place]:
    project = paths.nearest(".factory/mcp.json")
    return [
        place("factory", "user", paths.home / ".factory" / "mcp.json"),
        place("factory", "project", project, directory=project.parent.parent),
    ]


def _kimi(paths: Paths) -> list[Place]:
    newer = paths.named("KIMI_CODE_HOME", paths.home / ".kimi-code")
    project = paths.nearest(".kimi-code/mcp.json")
    return [
        *(place("kimi", "user", folder / "mcp.json") for folder in (newer, paths.home / ".kimi")),
        place("kimi", "project", project, directory=project.parent.parent),
    ]


def _lift_gemini(value: Value, left: Value) -> None:
    """A `url` alone is SSE for older versions; newer ones try both."""
    if "type" not in left and str(value.get("url", "")).endswith("/sse"):
        value["type"] = "sse"


_OPENCODE: Final = Dialect(
    joined=True,
    env="environment",
    types={"stdio": "local", "http": "remote"},
    urls={"http": "url"},
    enabled="enabled",
    says_enabled=True,
    start_timeout=Timeout("timeout"),
    oauth="oauth",
    oauth_keys={"clientId": "clientId", "clientSecret": "clientSecret", "scope": "scopes"},
    oauth_text=True,
    syntax=CURLY,
)

CLIENTS: Final = (
    Client(
        "copilot-cli",
        "GitHub Copilot CLI",
        _copilot,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse"},
            fixed={"tools": ["*"]},
            allow="tools",
        ),
    ),
    Client(
        "gemini-cli",
        "Gemini CLI",
        _gemini,
        Dialect(
            types={"http": "http", "sse": "sse"},
            cwd="cwd",
            timeout=Timeout("timeout"),
            allow="includeTools",
            deny="excludeTools",
            oauth="oauth",
            oauth_keys={**OAUTH_KEYS, "redirectUri": "redirectUri"},
            syntax=PERCENT if sys.platform == "win32" else DOLLARS,
            lift=_lift_gemini,
        ),
    ),
    Client("antigravity", "Antigravity", _antigravity, Dialect(urls={"http": "serverUrl", "sse": "serverUrl"})),
    Client("opencode", "OpenCode", _opencode, _OPENCODE),
    Client("kilo", "Kilo", _kilo, _OPENCODE),
    Client(
        "crush",
        "Crush",
        _crush,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse"},
            timeout=Timeout("timeout", 1000),
            disabled="disabled",
            deny="disabled_tools",
            syntax=DOLLARS,
        ),
    ),
    Client("amp", "Amp", _amp, Dialect(allow="includeTools")),
    Client(
        "factory",
        "Factory Droid",
        _factory,
        Dialect(types={"stdio": "stdio", "http": "http", "sse": "sse"}, disabled="disabled", says_enabled=True),
    ),
    Client(
        "kimi",
        "Kimi Code",
        _kimi,
        Dialect(
            type_key="transport",
            types={"http": "http", "sse": "sse"},
            cwd="cwd",
            timeout=Timeout("toolTimeoutMs"),
            start_timeout=Timeout("startupTimeoutMs"),
            enabled="enabled",
            allow="enabledTools",
            deny="disabledTools",
        ),
    ),
)
