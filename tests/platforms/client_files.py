"""Config files of clients: what they hold on this system is imported, and what is exported starts a server."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.platforms.checks import check
from tests.platforms.home import FAKE, IS_WINDOWS, Home

APP_SUPPORT: Final = {"win32": ".", "darwin": "Library/Application Support"}.get(sys.platform, ".config")
#: Of each client: file below the home, and key of its servers.
CLIENTS: Final = {
    "claude-desktop": (f"{APP_SUPPORT}/Claude/claude_desktop_config.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (f"{APP_SUPPORT}/Code/User/mcp.json", "servers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "windsurf": (".codeium/windsurf/mcp_config.json", "mcpServers"),
}
TITLES: Final = {
    "claude-desktop": "Claude Desktop",
    "cursor": "Cursor",
    "vscode": "VS Code",
    "codex": "Codex",
    "windsurf": "Windsurf",
}


def read(file: Path, key: str) -> dict[str, Any]:
    """Return the servers in a file of a client."""
    text = file.read_text(encoding="utf-8")
    found: dict[str, Any] = (tomllib.loads(text) if file.suffix == ".toml" else json.loads(text))[key]
    return found


def write(home: Home, client: str, name: str, command: str, args: Sequence[str], *, newline: str = "\n") -> Path:
    file, key = CLIENTS[client]
    if client == "codex":
        text = f'model = "x"\n\n[{key}.{name}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(list(args))}\n'
        return home.write(file, text, newline=newline)
    return home.write(file, {"theme": "dark", key: {name: {"command": command, "args": list(args)}}}, newline=newline)


def add_checks(client: str) -> None:
    title = TITLES[client]

    @check("Files of clients", f"import a server with paths of this system from {title}, and call it")
    def import_(home: Home) -> str:
        program = home.write(
            "Mein Ordner ü/server.py", "from toolway.testing import command_line\ncommand_line.main()\n"
        )
        file = write(home, client, "mine", str(FAKE["command"]), [str(program), "--name", r"a\b ü"])
        before = file.read_bytes()
        home.toolway("clients", "import", client, "--yes")
        assert home.toolway("call", "mine.echo", "text=ü", "-q").strip() == "ü"
        entry = read(home.config_file, "mcpServers")["mine"]
        assert entry["args"] == [str(program), "--name", r"a\b ü"], entry
        assert file.read_bytes() == before
        return str(file.relative_to(home.folder))

    @check("Files of clients", f"export a server to {title}, whose file keeps its line ends and the rest")
    def export(home: Home) -> str:
        file = write(home, client, "theirs", "x", [], newline="\r\n" if IS_WINDOWS else "\n")
        path = str(home.folder / "Ordner ü" / "daten.txt")
        home.serve_these({"fake": {**FAKE, "args": [*FAKE["args"], "--effects", path]}})
        home.toolway("clients", "export", client, "--yes")
        data = file.read_bytes()
        assert data.count(b"\r\n") == (data.count(b"\n") if IS_WINDOWS else 0), data
        servers = read(file, CLIENTS[client][1])
        assert set(servers) == {"theirs", "fake"}, servers
        assert servers["fake"]["args"][-1] == path, servers
        assert b'"theme": "dark"' in data or b'model = "x"' in data
        return str(file.relative_to(home.folder))


for each in CLIENTS:
    add_checks(each)


@check("Files of clients", "`toolway clients sync`, and `toolway connect` a client to the gateway")
def sync(home: Home) -> str:
    write(home, "cursor", "mine", str(FAKE["command"]), FAKE["args"])
    home.write(CLIENTS["windsurf"][0], {"mcpServers": {}})
    home.toolway("clients", "sync", "--yes")
    assert "mine" in read(home.folder / CLIENTS["windsurf"][0], "mcpServers")
    home.start_gateway()
    home.toolway("connect", "windsurf", "--yes")
    return "Cursor to Windsurf"
