"""Broken setups whose cause shows without a process: stderr of servers, syntax of files, keys and values of entries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from toolway.config.editing.jsonc import parse_jsonc
from toolway.config.schema import Server
from toolway.config.server_entry import parse_entry
from toolway.doctor.command_lookup import CommandMatch
from toolway.doctor.entry_checks import CheckTarget, check_command, check_env
from toolway.doctor.report import split_hint
from toolway.doctor.start_advice import refine_cause, script_problem
from toolway.errors import ConfigError
from toolway.upstream.diagnosis import Diagnosis, diagnose

#: stderr of a server that ended with exit code 1 → words of the cause, words of the fix
STDERR = {
    "a path in args that does not exist": (
        "python3: can't open file '/srv/server.py': [Errno 2] No such file or directory",
        "the file /srv/server.py does not exist",
        "fix the path in args",
    ),
    "a folder of server-filesystem that does not exist": (
        "Error accessing directory /no/such: Error: ENOENT: no such file or directory, stat '/no/such'",
        "the folder /no/such does not exist",
        "ls -ld /no/such",
    ),
    "all folders of server-filesystem are missing": (
        "Warning: Cannot access directory /no/such, skipping\nError: None of the specified directories are accessible",
        "the folder /no/such does not exist",
        "args",
    ),
    "an npm package that does not exist": (
        "npm error code E404\nnpm error 404  '@acme/nosuch@*' is not in this registry.",
        "the npm package @acme/nosuch does not exist",
        "npm view @acme/nosuch",
    ),
    "a PyPI package that does not exist": (
        "  × No solution found:\n  ╰─▶ Because nosuch was not found in the package registry and you require nosuch",
        "the Python package nosuch does not exist",
        "check the name of the package in args",
    ),
    "Node.js that is too old, and the server says so": (
        "Error: This package requires Node.js >= 20. You are using v16.20.0",
        "Node.js is too old",
        "install Node.js 22",
    ),
    "a package whose program has another name": (
        "An executable named `acme-mcp` is not provided by package `acme-mcp`.\nThe following are available:\n- acme",
        "the package has no program acme-mcp",
        "--from PACKAGE PROGRAM",
    ),
    "a server for the SDK before version 2": (
        "AttributeError: 'Server' object has no attribute 'list_resources'",
        "another version of the Python package mcp",
        "--with 'mcp<2'",
    ),
    "a module of the SDK that was removed": (
        "ModuleNotFoundError: No module named 'mcp.server.fastmcp'",
        "another version of the Python package mcp",
        "--with 'mcp<2'",
    ),
    "a server of TypeScript that is not built": (
        "Error: Cannot find module '/home/me/acme/dist/index.js'\n    at Module._resolveFilename",
        "the server is not built",
        "npm run build",
    ),
    "a path to a file of Node.js that does not exist": (
        "Error: Cannot find module '/home/me/acme/index.js'",
        "the file /home/me/acme/index.js does not exist",
        "fix the path in args",
    ),
    "Windows line endings": (
        "/usr/bin/env: ‘node\\r’: No such file or directory",
        "Windows line endings",
        "sed -i",
    ),
    "docker with a terminal": (
        "the input device is not a TTY",
        "asked for a terminal",
        "remove -t from args",
    ),
    "a browser that is not installed": (
        "Error: browserType.launch: Executable doesn't exist at /home/me/.cache/ms-playwright/chromium-1155/chrome",
        "the browser",
        "npx playwright install",
    ),
    "a version manager without a version": (
        "No version is set for command npx\nConsider adding one of the following versions",
        "the version manager has no version of npx",
        "full path",
    ),
    "a cache of npm that belongs to root": (
        "npm error code EACCES\nnpm error Your cache folder contains root-owned files, due to a bug",
        "npm's cache belongs to root",
        "chown",
    ),
    "a full disk": ("Error: ENOSPC: no space left on device, write", "the disk is full", "df -h"),
    "a folder that is not a repository": (
        "ERROR:mcp_server_git:/srv/code is not a valid Git repository",
        "is not a Git repository",
        "git init",
    ),
    "a library of the system that is missing": (
        "ImportError: libpq.so.5: cannot open shared object file: No such file or directory",
        "the system library libpq.so.5 is missing",
        "install the system package",
    ),
    "a database whose folder is missing": (
        "sqlite3.OperationalError: unable to open database file",
        "the database file cannot be opened",
        "its folder exists",
    ),
}


@pytest.mark.parametrize("setup", STDERR)
def test_known_stderr_gives_cause_and_fix(setup: str) -> None:
    stderr, cause, fix = STDERR[setup]
    found = diagnose("npx", 1, f"starting\n{stderr}\n", "E-STDIO-EXIT")
    assert found is not None and cause in found.cause and fix in found.hint, found


SYNTAX = {
    "typographic quotes": ("{“mcpServers”: {}}", "curly quotes"),
    "single quotes": ("{'mcpServers': {}}", "double quotes only"),
    "a key without quotes": ("{mcpServers: {}}", "put the key in double quotes"),
    "a word of Python": ('{"mcpServers": {"a": {"disabled": True}}}', "use true instead of True"),
    "a bracket too much": ('{"mcpServers": {}}}', "extra closing bracket"),
    "no braces around it": ('"mcpServers": {"a": {"command": "x"}}', "put { before the first key"),
    "the end is missing": ('{"mcpServers": {"a": {"command": "x"}}', "add the missing } or ]"),
    "a line break in a text": ('{"a": "x\ny"}', "on one line"),
    "an empty file": ("  \n", 'add {"mcpServers": {}}'),
    "a comma is missing": ('{"a": 1 "b": 2}', "missing comma"),
}


@pytest.mark.parametrize("setup", SYNTAX)
def test_json_mistake_is_explained(setup: str) -> None:
    text, fix = SYNTAX[setup]
    with pytest.raises(ConfigError) as caught:
        parse_jsonc(text, "mcp.json")
    assert fix in caught.value.hint


ENTRIES: dict[str, tuple[Any, str, str]] = {
    "env as quoted JSON": ({"command": "x", "env": '{"A": "b"}'}, "env must be an object", "without quotes around"),
    "env as a list": ({"command": "x", "env": ["A=b"]}, "env must be an object", '"env": {"NAME": "value"}'),
    "JSON as the value of a variable": ({"command": "x", "env": {"C": {"a": 1}}}, "env.C must be text", "in quotes"),
    "headers as a list": ({"url": "https://x.example/", "headers": ["A: b"]}, "headers must be", '"Authorization"'),
    "args as one text": ({"command": "npx", "args": "-y x"}, "args must be a list", "one word per element"),
    "the command as a list": ({"command": ["npx", "-y"]}, "command must be text", "the rest as args"),
    "true in quotes": ({"command": "x", "disabled": "true"}, "disabled must be true or false", "remove the quotes"),
    "a misspelt key": ({"comand": "npx"}, "needs a command or a url", 'use "command" instead of "comand"'),
    "a key of another program": ({"cmd": "npx"}, "needs a command or a url", 'use "command" instead of "cmd"'),
    "a whole file as one entry": ({"mcpServers": {"a": {"command": "x"}}}, "needs a command", "one level too deep"),
    "an entry in an entry": ({"acme": {"command": "x"}}, "needs a command", "one level too deep"),
    "an address as command": ({"command": "https://x.example/mcp"}, "command is the address", 'use "url"'),
    "an address without https": ({"url": "x.example/mcp"}, "must begin with http", "use the whole address"),
    "an address with a space": ({"url": " https://x.example/"}, "must begin with http", "remove the space"),
    "command and url": ({"command": "x", "url": "https://x.example/"}, "exactly one of", "keep one"),
}


@pytest.mark.parametrize("setup", ENTRIES)
def test_entry_mistake_is_explained(setup: str) -> None:
    entry, cause, fix = ENTRIES[setup]
    with pytest.raises(ConfigError) as caught:
        parse_entry(entry, {})
    assert cause in caught.value.message and fix in caught.value.hint, caught.value


def test_valid_entry_with_suspicious_keys_is_accepted() -> None:
    assert parse_entry({"command": "x", "cmd": "y", "urls": []}, {}).command == "x"


def target(server: Server, file: str = "", client: str = "") -> CheckTarget:
    return CheckTarget("acme", server, file=file, client=client)


VALUES = {
    "<YOUR_TOKEN>": "fail",
    "Bearer YOUR_API_KEY": "fail",
    "your-token-here": "fail",
    "xxxx": "fail",
    '"tok-1234"': "warn",
    "tok-1234\n": "warn",
    "my-project": "ok",
    "tok-1234": "ok",
    "<html>": "fail",
    '{"a": "b"}': "ok",
}


@pytest.mark.parametrize("value", VALUES)
def test_placeholder_values_are_named_but_not_shown(value: str) -> None:
    [check] = check_env(target(Server(command="x", env={"ACME_MODE": value})), 0.0)
    assert check.state == VALUES[value] and value not in f"{check.message}{check.detail}{check.hint}"
    assert check.state == "ok" or ("env.ACME_MODE" in check.message and check.hint and check.code)


def refined(server: Server, cause: str, *, file: str = "", exit_code: int | None = 1) -> tuple[str, str, str]:
    found = refine_cause(target(server, file), server, Diagnosis(cause, "as before"), exit_code)
    return (found.cause, *split_hint(found.hint))


def test_variable_under_another_name_is_found() -> None:
    server = Server(command="x", env={"GITHUB_TOKEN": "s", "PATH": "/bin"})
    cause, hint, _ = refined(server, "the variable GITHUB_PERSONAL_ACCESS_TOKEN is missing")
    assert "its entry has GITHUB_TOKEN" in cause
    assert hint == 'use "GITHUB_PERSONAL_ACCESS_TOKEN" instead of "GITHUB_TOKEN" in env'
    assert refined(server, "the variable SLACK_TEAM_ID is missing")[1] == "as before"


def test_relative_path_hints_at_working_directory(tmp_path: Path) -> None:
    (tmp_path / "server.py").touch()
    server = Server(command="python3", args=("server.py",))
    cause, hint, copy = refined(server, "the file /elsewhere/server.py does not exist", file=str(tmp_path / "mcp.json"))
    assert "server.py is relative to" in cause and "working directory" in hint and copy == f'"cwd": "{tmp_path}"'
    elsewhere = Server(command="python3", args=("./src/other.py",), cwd="/elsewhere")
    cause, hint, copy = refined(elsewhere, "the file /elsewhere/src/other.py does not exist")
    assert "relative to /elsewhere" in cause and "full path" in hint and not copy
    full = Server(command="python3", args=("/srv/x.py", "-v"))
    assert refined(full, "the file /srv/x.py does not exist")[1] == "as before"


@pytest.mark.parametrize("path", ["~/server.js", "$HOME/server.js"])
def test_unexpanded_shell_path_is_named(path: str) -> None:
    cause, hint, _ = refined(Server(command="node", args=(path,)), f"the file /w/{path} does not exist")
    assert "no shell expands" in cause and "${HOME}" in hint


def test_docker_without_stdin_flag_is_named() -> None:
    lacking = Server(command="docker", args=("run", "--rm", "--init", "mcp/x"))
    cause, hint, copy = refined(lacking, "the program ended by itself", exit_code=0)
    assert "has no -i" in cause and hint == "add it" and copy == '"args": ["run", "-i", "--rm", "--init", "mcp/x"]'
    for flag in ("-i", "-it", "--interactive"):
        has = Server(command="docker", args=("run", flag, "mcp/x"))
        assert refined(has, "the program ended by itself", exit_code=0)[1] == "as before"


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        (b"#!/bin/sh\r\nexec x\r\n", "Windows line endings", "sed -i"),
        (b"#!/no/such/venv/bin/python\n", "needs /no/such/venv/bin/python", "create it again"),
        (b"echo hello\n", "without an interpreter", "#!/bin/sh"),
        (b"#!/bin/sh\nexec x\n", "", ""),
        (b"\x7fELF\x02\x01\x01\0", "", ""),
    ],
)
def test_unrunnable_script_is_explained(tmp_path: Path, text: bytes, cause: str, fix: str) -> None:
    path = tmp_path / "server"
    path.write_bytes(text)
    found = script_problem(str(path)) or Diagnosis("", "")
    assert cause in found.cause and fix in found.hint and bool(cause) == bool(found.cause)


def test_folder_or_relative_command_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.path.dirname(tmp_path))
    folder = Server(command=str(tmp_path))
    assert "is a folder" in check_command(target(folder), folder, CommandMatch()).message
    (tmp_path / "server.sh").touch()
    relative = Server(command="./server.sh")
    found = check_command(target(relative, str(tmp_path / "mcp.json")), relative, CommandMatch())
    assert "is relative to" in found.message and found.copy == f'"command": "{tmp_path}/server.sh"'
