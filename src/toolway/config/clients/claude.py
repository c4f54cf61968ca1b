"""Claude Code and Claude Desktop."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolway.config.clients.dialect import Dialect, Timeout
from toolway.config.clients.paths import Paths, place
from toolway.config.clients.values import Client, Place
from toolway.config.syntaxes import BRACES

_MANAGED: Final = {
    "linux": "/etc/claude-code/managed-mcp.json",
    "darwin": "/Library/Application Support/ClaudeCode/managed-mcp.json",
    "win32": "C:\\Program Files\\ClaudeCode\\managed-mcp.json",
}


def _code(paths: Paths) -> list[Place]:
    name = "claude-code"
    user = paths.named("CLAUDE_CONFIG_DIR", paths.home) / ".claude.json"
    project = paths.nearest(".mcp.json")
    local = ("projects", str(paths.directory), "mcpServers")
    return [
        place(name, "user", user),
        place(name, "local", user, root=local, directory=paths.directory),
        place(name, "project", project, directory=project.parent),
        place(name, "managed", Path(_MANAGED[paths.platform])),
    ]


def _desktop(paths: Paths) -> list[Place]:
    folders = ["Claude", "claude"] if paths.platform == "linux" else ["Claude"]  # both have been seen
    return [
        place("claude-desktop", "user", paths.support / folder / "claude_desktop_config.json") for folder in folders
    ]


CLIENTS: Final = (
    Client(
        "claude-code",
        "Claude Code",
        _code,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse", "ws": "ws"},
            urls={"http": "url", "sse": "url", "ws": "url"},
            headers_helper="headersHelper",
            timeout=Timeout("timeout"),
            oauth="oauth",
            oauth_keys={"clientId": "clientId", "scopes": "scopes"},
            oauth_text=True,
            syntax=BRACES,
            implicit_cwd=True,
        ),
    ),
    Client("claude-desktop", "Claude Desktop", _desktop, Dialect(urls={})),
)
