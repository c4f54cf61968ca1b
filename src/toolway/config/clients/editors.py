"""Editors, and what lives inside of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolway.config.clients.dialect import Dialect, Timeout
from toolway.config.clients.paths import Paths, place
from toolway.config.clients.values import Client, Place
from toolway.config.syntaxes import CURSOR, EDITOR, FILES, NONE


def _vscode(paths: Paths) -> list[Place]:
    users = [
        *(paths.support / flavour / "User" / "mcp.json" for flavour in ("Code", "Code - Insiders")),
        paths.home / ".vscode-server" / "data" / "User" / "mcp.json",
    ]
    project = paths.nearest(".vscode/mcp.json")
    return [
        *(place("vscode", "user", path, root=("servers",)) for path in users),
        place("vscode", "project", project, root=("servers",), directory=project.parent.parent),
    ]


def _cursor(paths: Paths) -> list[Place]:
    project = paths.nearest(".cursor/mcp.json")
    return [
        place("cursor", "user", paths.home / ".cursor" / "mcp.json"),
        place("cursor", "project", project, directory=project.parent.parent),
    ]


def _windsurf(paths: Paths) -> list[Place]:
    folders = (Path(".codeium", "windsurf"), Path(".codeium"))  # the second belongs to the plugin for JetBrains
    return [place("windsurf", "user", paths.home / folder / "mcp_config.json") for folder in folders]


def _zed(paths: Paths) -> list[Place]:
    users = {"linux": [paths.config / "zed"], "win32": [paths.support / "Zed"]}.get(
        paths.platform, [paths.home / ".config" / "zed", paths.support / "Zed"]
    )
    project = paths.nearest(".zed/settings.json")
    root = ("context_servers",)
    return [
        *(place("zed", "user", folder / "settings.json", root=root) for folder in users),
        place("zed", "project", project, root=root, directory=project.parent.parent),
    ]


def _extension(paths: Paths, publisher: str, file: str) -> list[Path]:
    """The settings of an extension, in each editor that can have it."""
    inner = Path("User", "globalStorage", publisher, "settings", file)
    return [paths.support / editor / inner for editor in ("Code", "Code - Insiders", "Cursor")]


def _cline(paths: Paths) -> list[Place]:
    file = "cline_mcp_settings.json"
    alone = paths.named("CLINE_DIR", paths.home / ".cline") / "data" / "settings" / file
    return [place("cline", "user", path) for path in (*_extension(paths, "saoudrizwan.claude-dev", file), alone)]


def _roo(paths: Paths) -> list[Place]:
    project = paths.nearest(".roo/mcp.json")
    return [
        *(place("roo", "user", path) for path in _extension(paths, "rooveterinaryinc.roo-cline", "mcp_settings.json")),
        place("roo", "project", project, directory=project.parent.parent),
    ]


CLIENTS: Final = (
    Client(
        "vscode",
        "VS Code",
        _vscode,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse"},
            cwd="cwd",
            env_file="envFile",
            oauth="oauth",
            oauth_keys={"clientId": "clientId"},
            syntax=EDITOR,
        ),
    ),
    Client(
        "cursor",
        "Cursor",
        _cursor,
        Dialect(
            env_file="envFile",
            oauth="auth",
            oauth_keys={"CLIENT_ID": "clientId", "CLIENT_SECRET": "clientSecret", "scopes": "scopes"},
            syntax=CURSOR,
        ),
    ),
    Client(
        "windsurf",
        "Windsurf",
        _windsurf,
        Dialect(
            urls={"http": "serverUrl", "sse": "serverUrl"}, disabled="disabled", deny="disabledTools", syntax=FILES
        ),
    ),
    Client(
        "zed", "Zed", _zed, Dialect(fixed={"source": "custom"}, enabled="enabled", urls={"http": "url"}, syntax=NONE)
    ),
    Client(
        "cline",
        "Cline",
        _cline,
        Dialect(
            types={"http": "streamableHttp", "sse": "sse"},
            timeout=Timeout("timeout", 1000),
            disabled="disabled",
            says_enabled=True,
        ),
    ),
    Client(
        "roo",
        "Roo Code",
        _roo,
        Dialect(
            types={"http": "streamable-http", "sse": "sse"},
            cwd="cwd",
            timeout=Timeout("timeout", 1000),
            disabled="disabled",
            deny="disabledTools",
            syntax=CURSOR,
        ),
    ),
)
