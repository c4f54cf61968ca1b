"""First steps: help, `init`, and the commands for servers and their tools."""

from __future__ import annotations

import json
import os
import sys

from tests.platforms.checks import check
from tests.platforms.home import FAKE, IS_WINDOWS, Home
from tests.platforms.servers import call_and_doctor

EVERY_COMMAND = "tests.platforms.programs.every_command"


@check("Start", "`toolway --version`, and `--help` of every command", quick=True)
def every_help(home: Home) -> str:
    assert home.toolway("--version").startswith("toolway ")
    assert "Import the servers" in home.toolway("--help")
    shown = json.loads(home.run_module(EVERY_COMMAND, "--help"))
    wrong = [name for name, code in shown.items() if code != 0]
    assert not wrong, wrong
    return f"{len(shown)} commands"


@check("Start", "every command once, with `--json`: a result, or the error that it should have")
def every_command(home: Home) -> str:
    ended = json.loads(home.run_module(EVERY_COMMAND, "--json"))
    assert not ended["wrong"], ended["wrong"]
    home.commands.update(ended["works"])
    home.errors.update(ended["errors"])
    return f"{len(ended['works'])} results, {len(ended['errors'])} errors"


@check("Start", "`toolway init` imports from Claude Desktop, then `toolway ls`", quick=True)
def init(home: Home) -> str:
    folder = {"win32": "Claude", "darwin": "Library/Application Support/Claude"}.get(sys.platform, ".config/Claude")
    home.write(f"{folder}/claude_desktop_config.json", {"mcpServers": {"fake": FAKE}})
    home.toolway("init", "--yes")
    assert "ready" in home.toolway("ls", "--wait", "60")
    assert "fake" in json.loads(home.config_file.read_text(encoding="utf-8"))["mcpServers"]
    return str(home.config_file.relative_to(home.folder))


@check("Start", "`ls`, `show`, `tools`, `search`, `call` and `doctor` with a server that is a command", quick=True)
def first_calls(home: Home) -> str:
    home.serve_these()
    assert "ready" in home.toolway("ls", "--wait", "60")
    assert "fake.echo" in home.toolway("tools", "--wait", "60")
    assert home.toolway("call", "fake.echo", "text=hällo ✓", "-q").strip() == "hällo ✓"
    home.toolway("show", "fake")
    home.toolway("search", "repeat my text")
    return call_and_doctor(home, "fake")


@check("Start", "`add`, `disable`, `enable`, `edit`, `rm`, and `config` with its history")
def change_servers(home: Home) -> str:
    home.serve_these()
    home.toolway("add", "other", "--yes", "--", *command_words())
    home.toolway("disable", "other")
    home.toolway("enable", "other")
    editor = home.write("editor.py", "import sys; open(sys.argv[1], 'a').write('\\n')")
    home.toolway("edit", EDITOR=f'"{sys.executable}" "{editor}"')
    home.toolway("rm", "other")
    assert "other" not in home.toolway("config", "validate")
    versions = home.json("config", "history")["versions"]
    assert len(versions) >= 4, versions
    home.toolway("config", "diff", "1")
    home.toolway("config", "rollback", "1")
    assert "other" in home.config_file.read_text(encoding="utf-8")
    home.toolway("config", "path")
    return f"{len(versions)} versions"


def command_words() -> list[str]:
    return [str(FAKE["command"]), *FAKE["args"]]


@check("Start", "`toolway new` creates a server, and a call reaches it")
def new_server(home: Home) -> str:
    made = home.json("new", "my-notes")
    folder = home.folder / "my-notes"
    assert made["package"] == "my_notes_server"
    lines = home.toolway("tools", "--wait", "60", cwd=folder).splitlines()
    return f"{sum(line.startswith('my-notes.') for line in lines)} tools"


@check("Start", "`toolway completion` writes a script for the shell")
def completion(home: Home) -> str:
    shell = "powershell" if IS_WINDOWS else "bash"
    assert "toolway" in home.toolway("completion", shell)
    assert "E-STDIO-ENOENT" in home.toolway("explain", "E-STDIO-ENOENT")
    home.toolway("help", "--all")
    return shell


@check("Start", "a config file with Windows line ends keeps them when `add` and `rm` edit it", quick=True)
def line_ends(home: Home) -> str:
    home.serve_these()
    text = home.config_file.read_text(encoding="utf-8")
    home.config_file.write_text(text, encoding="utf-8", newline="\r\n")
    home.toolway("add", "other", "--yes", "--", *command_words())
    added = home.config_file.read_bytes()
    assert b"other" in added and added.count(b"\n") == added.count(b"\r\n") > 5, added
    home.toolway("rm", "other")
    assert home.config_file.read_bytes() == text.replace("\n", "\r\n").encode()
    return "the same bytes after add and rm"


@check("Start", "servers, folders and files with spaces and umlauts in their paths", quick=True)
def paths(home: Home) -> str:
    assert " " in str(home.folder) and "ö" in str(home.folder)
    folder = home.folder / "Größe & Maß"
    folder.mkdir()
    program = home.write(
        "Größe & Maß/mein server.py", "from toolway.testing import command_line\ncommand_line.main()\n"
    )
    effects = folder / "wirkung ü.txt"
    server = {"command": sys.executable, "args": [str(program), "--effects", str(effects)], "cwd": str(folder)}
    file = home.write("Größe & Maß/meine server.json", {"mcpServers": {"s": server}})
    assert home.toolway("call", "s.echo", "text=ü", "-q", "-c", str(file)).strip() == "ü"
    home.toolway("call", "s.counter", "nonce=n1", "-c", str(file))
    assert "n1" in effects.read_text(encoding="utf-8")
    return os.path.basename(file)
