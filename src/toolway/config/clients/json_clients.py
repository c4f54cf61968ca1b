"""MCP clients with JSON config files: Claude, editors, terminal agents, and desktop programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolway._os import SYSTEM_NAME
from toolway.config.clients.models import (
    OAUTH_KEYS,
    Client,
    ClientConfigFile,
    ClientPaths,
    Dialect,
    EntryDict,
    TimeoutKey,
    make_config_file,
)
from toolway.config.variables import (
    BRACES_SYNTAX,
    CURSOR_SYNTAX,
    DOLLAR_SYNTAX,
    NO_SYNTAX,
    OPENCODE_SYNTAX,
    PERCENT_SYNTAX,
    VSCODE_SYNTAX,
    WINDSURF_SYNTAX,
)

# -- Claude -----------------------------------------------------------------------------------------------------------

_CLAUDE_MANAGED_FILES: Final = {
    "linux": "/etc/claude-code/managed-mcp.json",
    "darwin": "/Library/Application Support/ClaudeCode/managed-mcp.json",
    "win32": "C:\\Program Files\\ClaudeCode\\managed-mcp.json",
}


def _claude_code_files(paths: ClientPaths) -> list[ClientConfigFile]:
    name = "claude-code"
    user = paths.folder_from_env("CLAUDE_CONFIG_DIR", paths.home) / ".claude.json"
    project = paths.find_nearest(".mcp.json")
    local = ("projects", str(paths.directory), "mcpServers")
    return [
        make_config_file(name, "user", user),
        make_config_file(name, "user", paths.config_home / "claude-code" / "mcp.json"),
        make_config_file(name, "local", user, root=local, directory=paths.directory),
        make_config_file(name, "project", project, directory=project.parent),
        make_config_file(name, "managed", Path(_CLAUDE_MANAGED_FILES[paths.platform])),
    ]


def _claude_desktop_files(paths: ClientPaths) -> list[ClientConfigFile]:
    folders = ["Claude", "claude"] if paths.platform == "linux" else ["Claude"]  # both spellings exist
    return [
        make_config_file("claude-desktop", "user", paths.app_support / folder / "claude_desktop_config.json")
        for folder in folders
    ]


CLAUDE_CLIENTS: Final = (
    Client(
        "claude-code",
        "Claude Code",
        _claude_code_files,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse", "ws": "ws"},
            urls={"http": "url", "sse": "url", "ws": "url"},
            headers_helper="headersHelper",
            timeout=TimeoutKey("timeout"),
            oauth="oauth",
            oauth_keys={"clientId": "clientId", "scopes": "scopes"},
            oauth_scopes_as_text=True,
            syntax=BRACES_SYNTAX,
            implicit_cwd=True,
        ),
    ),
    Client("claude-desktop", "Claude Desktop", _claude_desktop_files, Dialect(urls={})),
)


# -- editors and editor extensions ------------------------------------------------------------------------------------


def _vscode_files(paths: ClientPaths) -> list[ClientConfigFile]:
    users = [
        *(paths.app_support / flavour / "User" / "mcp.json" for flavour in ("Code", "Code - Insiders")),
        paths.home / ".vscode-server" / "data" / "User" / "mcp.json",
    ]
    project = paths.find_nearest(".vscode/mcp.json")
    return [
        *(make_config_file("vscode", "user", path, root=("servers",)) for path in users),
        make_config_file("vscode", "project", project, root=("servers",), directory=project.parent.parent),
    ]


def _cursor_files(paths: ClientPaths) -> list[ClientConfigFile]:
    project = paths.find_nearest(".cursor/mcp.json")
    return [
        make_config_file("cursor", "user", paths.home / ".cursor" / "mcp.json"),
        make_config_file("cursor", "project", project, directory=project.parent.parent),
    ]


def _windsurf_files(paths: ClientPaths) -> list[ClientConfigFile]:
    folders = (Path(".codeium", "windsurf"), Path(".codeium"))  # the second belongs to the plugin for JetBrains
    return [make_config_file("windsurf", "user", paths.home / folder / "mcp_config.json") for folder in folders]


def _zed_files(paths: ClientPaths) -> list[ClientConfigFile]:
    users = {"linux": [paths.config_home / "zed"], "win32": [paths.app_support / "Zed"]}.get(
        paths.platform, [paths.home / ".config" / "zed", paths.app_support / "Zed"]
    )
    project = paths.find_nearest(".zed/settings.json")
    root = ("context_servers",)
    return [
        *(make_config_file("zed", "user", folder / "settings.json", root=root) for folder in users),
        make_config_file("zed", "project", project, root=root, directory=project.parent.parent),
    ]


def _extension_paths(paths: ClientPaths, publisher: str, file: str) -> list[Path]:
    """Return the settings files of a VS Code extension, one for each editor that supports it."""
    inner = Path("User", "globalStorage", publisher, "settings", file)
    return [paths.app_support / editor / inner for editor in ("Code", "Code - Insiders", "Cursor")]


def _cline_files(paths: ClientPaths) -> list[ClientConfigFile]:
    file = "cline_mcp_settings.json"
    standalone = paths.folder_from_env("CLINE_DIR", paths.home / ".cline") / "data" / "settings" / file
    return [
        make_config_file("cline", "user", path)
        for path in (*_extension_paths(paths, "saoudrizwan.claude-dev", file), standalone)
    ]


def _roo_files(paths: ClientPaths) -> list[ClientConfigFile]:
    project = paths.find_nearest(".roo/mcp.json")
    return [
        *(
            make_config_file("roo", "user", path)
            for path in _extension_paths(paths, "rooveterinaryinc.roo-cline", "mcp_settings.json")
        ),
        make_config_file("roo", "project", project, directory=project.parent.parent),
    ]


EDITOR_CLIENTS: Final = (
    Client(
        "vscode",
        "VS Code",
        _vscode_files,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse"},
            cwd="cwd",
            env_file="envFile",
            oauth="oauth",
            oauth_keys={"clientId": "clientId"},
            syntax=VSCODE_SYNTAX,
        ),
    ),
    Client(
        "cursor",
        "Cursor",
        _cursor_files,
        Dialect(
            env_file="envFile",
            oauth="auth",
            oauth_keys={"CLIENT_ID": "clientId", "CLIENT_SECRET": "clientSecret", "scopes": "scopes"},
            syntax=CURSOR_SYNTAX,
        ),
    ),
    Client(
        "windsurf",
        "Windsurf",
        _windsurf_files,
        Dialect(
            urls={"http": "serverUrl", "sse": "serverUrl"},
            disabled="disabled",
            deny="disabledTools",
            syntax=WINDSURF_SYNTAX,
        ),
    ),
    Client(
        "zed",
        "Zed",
        _zed_files,
        Dialect(fixed={"source": "custom"}, enabled="enabled", urls={"http": "url"}, syntax=NO_SYNTAX),
    ),
    Client(
        "cline",
        "Cline",
        _cline_files,
        Dialect(
            types={"http": "streamableHttp", "sse": "sse"},
            timeout=TimeoutKey("timeout", 1000),
            disabled="disabled",
            writes_enabled=True,
        ),
    ),
    Client(
        "roo",
        "Roo Code",
        _roo_files,
        Dialect(
            types={"http": "streamable-http", "sse": "sse"},
            cwd="cwd",
            timeout=TimeoutKey("timeout", 1000),
            disabled="disabled",
            deny="disabledTools",
            syntax=CURSOR_SYNTAX,
        ),
    ),
)


# -- terminal agents --------------------------------------------------------------------------------------------------


def _copilot_files(paths: ClientPaths) -> list[ClientConfigFile]:
    name = "copilot-cli"
    projects = [paths.find_nearest(".mcp.json"), paths.find_nearest(".github/mcp.json")]
    folders = [projects[0].parent, projects[1].parent.parent]
    return [
        make_config_file(
            name, "user", paths.folder_from_env("COPILOT_HOME", paths.home / ".copilot") / "mcp-config.json"
        ),
        *(
            make_config_file(name, "project", path, directory=folder)
            for path, folder in zip(projects, folders, strict=True)
        ),
    ]


def _gemini_files(paths: ClientPaths) -> list[ClientConfigFile]:
    project = paths.find_nearest(".gemini/settings.json")
    return [
        make_config_file("gemini-cli", "user", paths.home / ".gemini" / "settings.json"),
        make_config_file("gemini-cli", "project", project, directory=project.parent.parent),
    ]


def _antigravity_files(paths: ClientPaths) -> list[ClientConfigFile]:
    return [
        make_config_file("antigravity", "user", paths.home / ".gemini" / folder / "mcp_config.json")
        for folder in ("config", "antigravity")
    ]


def _opencode_files(paths: ClientPaths) -> list[ClientConfigFile]:
    folder = paths.config_home / "opencode"
    projects = [paths.find_nearest(f"opencode.{ending}") for ending in ("json", "jsonc")]
    return [
        *(
            make_config_file("opencode", "user", folder / f"opencode.{ending}", root=("mcp",))
            for ending in ("json", "jsonc")
        ),
        *(make_config_file("opencode", "project", path, root=("mcp",), directory=path.parent) for path in projects),
    ]


def _kilo_files(paths: ClientPaths) -> list[ClientConfigFile]:
    project = paths.find_nearest("kilo.json")
    return [
        *(
            make_config_file("kilo", "user", paths.config_home / "kilo" / f"kilo.{end}", root=("mcp",))
            for end in ("json", "jsonc")
        ),
        make_config_file("kilo", "project", project, root=("mcp",), directory=project.parent),
    ]


def _crush_files(paths: ClientPaths) -> list[ClientConfigFile]:
    projects = [paths.find_nearest(name) for name in (".crush.json", "crush.json")]
    local = paths.environment.get("LOCALAPPDATA")
    folder = paths.home if local is None else paths.folder_from_env("LOCALAPPDATA", paths.home)
    user = folder / "crush" if paths.platform == "win32" else paths.config_home / "crush"
    return [
        make_config_file("crush", "user", user / "crush.json", root=("mcp",)),
        *(make_config_file("crush", "project", path, root=("mcp",), directory=path.parent) for path in projects),
    ]


def _amp_files(paths: ClientPaths) -> list[ClientConfigFile]:
    root = ("amp.mcpServers",)  # one key with a dot in it
    folder = paths.app_support if paths.platform == "win32" else paths.config_home
    project = paths.find_nearest(".amp/settings.json")
    return [
        make_config_file("amp", "user", folder / "amp" / "settings.json", root=root),
        make_config_file("amp", "project", project, root=root, directory=project.parent.parent),
    ]


def _factory_files(paths: ClientPaths) -> list[ClientConfigFile]:
    project = paths.find_nearest(".factory/mcp.json")
    return [
        make_config_file("factory", "user", paths.home / ".factory" / "mcp.json"),
        make_config_file("factory", "project", project, directory=project.parent.parent),
    ]


def _kimi_files(paths: ClientPaths) -> list[ClientConfigFile]:
    newer = paths.folder_from_env("KIMI_CODE_HOME", paths.home / ".kimi-code")
    project = paths.find_nearest(".kimi-code/mcp.json")
    return [
        *(make_config_file("kimi", "user", folder / "mcp.json") for folder in (newer, paths.home / ".kimi")),
        make_config_file("kimi", "project", project, directory=project.parent.parent),
    ]


def _gemini_to_common(value: EntryDict, unread: EntryDict) -> None:
    """Set the type of a Gemini CLI entry to SSE if it has no type and its URL ends with `/sse`.

    Older versions of Gemini CLI use SSE for `url`; newer ones try both transports.
    """
    if "type" not in unread and str(value.get("url", "")).endswith("/sse"):
        value["type"] = "sse"


_OPENCODE_DIALECT: Final = Dialect(
    joined_command=True,
    env="environment",
    types={"stdio": "local", "http": "remote"},
    urls={"http": "url"},
    enabled="enabled",
    writes_enabled=True,
    start_timeout=TimeoutKey("timeout"),
    root_tools="tools",
    oauth="oauth",
    oauth_keys={"clientId": "clientId", "clientSecret": "clientSecret", "scope": "scopes"},
    oauth_scopes_as_text=True,
    syntax=OPENCODE_SYNTAX,
)

TERMINAL_CLIENTS: Final = (
    Client(
        "copilot-cli",
        "GitHub Copilot CLI",
        _copilot_files,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse"},
            fixed={"tools": ["*"]},
            allow="tools",
        ),
    ),
    Client(
        "gemini-cli",
        "Gemini CLI",
        _gemini_files,
        Dialect(
            types={"http": "http", "sse": "sse"},
            cwd="cwd",
            timeout=TimeoutKey("timeout"),
            allow="includeTools",
            deny="excludeTools",
            oauth="oauth",
            oauth_keys={**OAUTH_KEYS, "redirectUri": "redirectUri"},
            syntax={"win32": PERCENT_SYNTAX}.get(SYSTEM_NAME, DOLLAR_SYNTAX),
            to_common=_gemini_to_common,
        ),
    ),
    Client("antigravity", "Antigravity", _antigravity_files, Dialect(urls={"http": "serverUrl", "sse": "serverUrl"})),
    Client("opencode", "OpenCode", _opencode_files, _OPENCODE_DIALECT),
    Client("kilo", "Kilo", _kilo_files, _OPENCODE_DIALECT),
    Client(
        "crush",
        "Crush",
        _crush_files,
        Dialect(
            types={"stdio": "stdio", "http": "http", "sse": "sse"},
            timeout=TimeoutKey("timeout", 1000),
            disabled="disabled",
            deny="disabled_tools",
            syntax=DOLLAR_SYNTAX,
        ),
    ),
    Client("amp", "Amp", _amp_files, Dialect(allow="includeTools", tool_patterns=True)),
    Client(
        "factory",
        "Factory Droid",
        _factory_files,
        Dialect(types={"stdio": "stdio", "http": "http", "sse": "sse"}, disabled="disabled", writes_enabled=True),
    ),
    Client(
        "kimi",
        "Kimi Code",
        _kimi_files,
        Dialect(
            type_key="transport",
            types={"http": "http", "sse": "sse"},
            cwd="cwd",
            timeout=TimeoutKey("toolTimeoutMs"),
            start_timeout=TimeoutKey("startupTimeoutMs"),
            enabled="enabled",
            allow="enabledTools",
            deny="disabledTools",
        ),
    ),
)


# -- desktop programs -------------------------------------------------------------------------------------------------


def _files_in_home(name: str, *candidates: str) -> Callable[[ClientPaths], list[ClientConfigFile]]:
    return lambda paths: [make_config_file(name, "user", paths.home / candidate) for candidate in candidates]


def _kiro_files(paths: ClientPaths) -> list[ClientConfigFile]:
    inner = Path(".kiro", "settings", "mcp.json")
    project = paths.find_nearest(str(inner))
    return [
        make_config_file("kiro", "user", paths.home / inner),
        make_config_file("kiro", "project", project, directory=project.parent.parent.parent),
    ]


def _trae_files(paths: ClientPaths) -> list[ClientConfigFile]:
    project = paths.find_nearest(".trae/mcp.json")
    return [
        make_config_file("trae", "user", paths.app_support / "Trae" / "User" / "mcp.json"),
        make_config_file("trae", "project", project, directory=project.parent.parent),
    ]


def _qoder_files(paths: ClientPaths) -> list[ClientConfigFile]:
    windows = paths.app_support / "Qoder" / "SharedClientCache"
    return [
        make_config_file(
            "qoder", "user", (windows if paths.platform == "win32" else paths.home / ".qoder") / "mcp.json"
        )
    ]


DESKTOP_CLIENTS: Final = (
    Client(
        "kiro",
        "Kiro",
        _kiro_files,
        Dialect(disabled="disabled", deny="disabledTools", timeout=TimeoutKey("timeout"), syntax=BRACES_SYNTAX),
    ),
    Client(
        "lm-studio",
        "LM Studio",
        _files_in_home("lm-studio", ".lmstudio/mcp.json", ".cache/lm-studio/mcp.json"),
        Dialect(),
    ),
    Client("trae", "Trae", _trae_files, Dialect()),
    Client("qoder", "Qoder", _qoder_files, Dialect(types={"http": "http", "sse": "sse"})),
)
