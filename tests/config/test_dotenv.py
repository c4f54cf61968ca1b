"""`.env` next to a config file, and the path of `envFile`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolway.config.admission.entry import AdmissionPolicy, check_entry
from toolway.config.dotenv import MAX_ENV_FILE_BYTES, DotenvVariables, parse_env_file, read_env_file
from toolway.config.loader import load_file, parse_config
from toolway.config.scopes import load_scopes, open_trust_store
from toolway.config.secret_refs import SecretTemplate, find_unset_variables
from toolway.config.server_entry import parse_entry, parse_entry_with_issues
from toolway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1\nB = two words \n", {"A": "1", "B": "two words"}),
        ("export A=1\r\n\r\n# comment\r\nB=", {"A": "1", "B": ""}),
        ("A=x # comment\nB=x#y\nC=#z", {"A": "x", "B": "x#y", "C": ""}),
        ('A=\'# $x \\n\' # c\nB="a\\nb \\"q\\" \\$"', {"A": "# $x \\n", "B": 'a\nb "q" $'}),
        ('KEY="-----BEGIN\nx\n-----END"\nB=2', {"KEY": "-----BEGIN\nx\n-----END", "B": "2"}),
        ("A=1\nA=2", {"A": "2"}),
        ("\ufeffA=${B}", {"A": "${B}"}),
    ],
)
def test_env_file_syntax(text: str, values: dict[str, str]) -> None:
    assert parse_env_file(text) == parse_env_file(text) and parse_env_file(text).values == values
    assert parse_env_file(text).bad_lines == ()


def test_invalid_line_is_skipped_and_reported() -> None:
    found = parse_env_file('A=1\nwhat is this\n\n1X=2\nB=\'unclosed\nC="x" y\nD=4')
    assert (found.values, found.bad_lines) == ({"A": "1", "D": "4"}, (2, 4, 5, 6))


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    found = parse_env_file(text)
    assert all("\0" not in value for value in found.values.values())
    assert all(1 <= line <= text.count("\n") + 1 for line in found.bad_lines)


def test_unusable_env_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"A=" + b"x" * MAX_ENV_FILE_BYTES)
    (tmp_path / "binary").write_bytes(b"A=\xff")
    os.mkfifo(tmp_path / "pipe")
    for name in ("big", "binary", "pipe", "missing"):
        with pytest.raises(ConfigError) as caught:
            read_env_file(str(tmp_path / name))
        assert caught.value.code == "E-CONFIG-ENV-FILE" and str(tmp_path / name) in caught.value.message


def write(folder: Path, config: object, dotenv: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mcp.json").write_text(json.dumps(config))
    if dotenv is not None:
        (folder / ".env").write_text(dotenv)
    return folder / "mcp.json"


@pytest.mark.promise("C14")
def test_dotenv_fills_references_and_environment_wins(tmp_path: Path) -> None:
    entry = {"command": "x", "args": ["${A}"], "env": {"TOKEN": "${TOKEN}", "B": "${B}"}}
    file = write(tmp_path, {"mcpServers": {"s": entry}}, "TOKEN=from-file\nA=a\nB=file\nbad line\n")
    loaded = load_file(file, {"B": "real"})
    server = loaded.servers["s"]
    assert (server.args, server.env) == (("a",), {"TOKEN": "from-file", "B": "real"})
    assert [(issue.severity, issue.location) for issue in loaded.issues] == [("note", f"{tmp_path}/.env:4")]
    assert loaded.watched_files == (str(tmp_path / ".env"), str(tmp_path / "toolway.lock"))
    assert "UNUSED" not in server.env


def test_folder_named_env_is_ignored(tmp_path: Path) -> None:
    file = write(tmp_path, {"mcpServers": {}})
    (tmp_path / ".env").mkdir()
    assert load_file(file, {}).issues == ()


@pytest.mark.promise("C14")
def test_env_file_is_relative_and_missing_one_is_reported(tmp_path: Path) -> None:
    entries = {"s": {"command": "x", "envFile": "conf/.env"}, "t": {"command": "x", "envFile": "~/x.env"}}
    loaded = load_file(write(tmp_path, {"mcpServers": entries}), {"HOME": "/home/nobody-here"})
    assert loaded.servers["s"].env_file == f"{tmp_path}/conf/.env"
    assert loaded.servers["t"].env_file == "/home/nobody-here/x.env"
    assert [(issue.server, issue.severity, f"{tmp_path}/conf/.env" in issue.message) for issue in loaded.issues] == [
        ("s", "warning", True),
        ("t", "warning", False),
    ]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / ".env").touch()
    assert [issue.server for issue in load_file(tmp_path / "mcp.json", {"HOME": "/h"}).issues] == ["t"]


# -- projects ---------------------------------------------------------------------------------------------------------


def test_project_env_needs_trust_and_cannot_set_commands(tmp_path: Path) -> None:
    project = tmp_path / "project"
    entry = {"command": "${TOOL:-safe}", "args": ["${ARG}"], "env": {"TOKEN": "${TOKEN}"}}
    file = write(project, {"mcpServers": {"s": entry}}, "TOOL=evil\nARG=evil\nTOKEN=t\n")
    environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    assert load_scopes(environment, project).servers == {}
    open_trust_store(environment).trust(file, file.read_bytes())
    server = load_scopes(environment, project).servers["s"]
    assert (server.command, server.args, server.env) == ("safe", ("${ARG}",), {"TOKEN": "t"})
    assert find_unset_variables(server) == {"ARG": "args"}


@pytest.mark.parametrize("path", ["../outside.env", "/etc/hostname", "link.env", "~/x.env", "${UNSET}/x.env"])
def test_project_env_file_must_be_inside_project(tmp_path: Path, path: str) -> None:
    project = tmp_path / "project"
    entries = {"bad": {"command": "x", "envFile": path}, "good": {"command": "x", "envFile": "own.env"}}
    file = write(project, {"mcpServers": entries})
    (project / "own.env").write_text("A=1")
    (tmp_path / "outside.env").write_text("A=1")
    (project / "link.env").symlink_to(tmp_path / "outside.env")
    environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    open_trust_store(environment).trust(file, file.read_bytes())
    merged = load_scopes(environment, project)
    assert list(merged.servers) == ["good"]
    assert [(issue.server, issue.severity, issue.code) for issue in merged.issues if issue.severity == "error"] == [
        ("bad", "error", "E-CONFIG-ENV-FILE")
    ]


def test_project_dotenv_symlink_is_not_read(tmp_path: Path) -> None:
    project = tmp_path / "project"
    file = write(project, {"mcpServers": {"s": {"command": "x", "env": {"T": "${SECRET}"}}}})
    (tmp_path / "private").write_text("SECRET=x")
    (project / ".env").symlink_to(tmp_path / "private")
    environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    open_trust_store(environment).trust(file, file.read_bytes())
    merged = load_scopes(environment, project)
    assert find_unset_variables(merged.servers["s"]) == {"SECRET": "env.T"}
    assert "E-CONFIG-ENV-FILE" in {issue.code for issue in merged.issues}


# -- variables that are not set ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"command": "${X}"}, "command"),
        ({"command": "x", "args": ["-t", "a${X}b"]}, "args"),
        ({"command": "x", "env": {"T": "${X}"}}, "env.T"),
        ({"command": "x", "cwd": "~/${X}"}, "cwd"),
        ({"command": "x", "envFile": "${X}/.env"}, "envFile"),
        ({"url": "${X}"}, "url"),
        ({"url": "https://h/${X}"}, "url"),
        ({"url": "https://h", "headers": {"Authorization": "Bearer ${X}"}}, "headers.Authorization"),
        ({"url": "https://h", "auth": {"type": "oauth", "clientId": "${X}"}}, "auth.clientId"),
        ({"url": "https://h", "tls": {"caFile": "${X}"}}, "tls.caFile"),
        ({"openapi": {"url": "${X}"}}, "openapi.url"),
        ({"openapi": {"file": "${X}"}}, "openapi.file"),
        ({"openapi": {"url": "https://h", "security": {"k": "${X}"}}}, "openapi.credentials.value"),
        ({"openapi": {"url": "https://h", "include": {"tags": ["${X}"]}}}, "openapi.include.tags"),
        ({"command": "x", "idempotencyMetaKey": "${X}"}, "idempotencyMetaKey"),
    ],
)
def test_unset_variable_is_found_in_every_field(entry: dict[str, object], key: str) -> None:
    server, issues = parse_entry_with_issues(entry, {})
    assert find_unset_variables(server) == {"X": key}
    assert [issue.message for issue in issues if issue.severity == ("note" if "envFile" in entry else "warning")] == [
        "the variable X is not set"
    ]
    assert not find_unset_variables(parse_entry(entry, {"X": "https://set.example/x"}))
    assert "X" in str(check_entry(server, AdmissionPolicy(("x", "${X}"))))


def test_unset_variable_in_enum_field_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the variable X is not set") as caught:
        parse_entry({"command": "x", "era": "${X}"}, {})
    assert caught.value.code == "E-CONFIG-VARIABLE"
    with pytest.raises(ConfigError, match="the variable X is not set"):
        parse_entry({"command": "x", "healthCheckUrl": "${X}"}, {})


def test_unset_gateway_variable_is_named() -> None:
    text = '{"mcpServers": {}, "toolway": {"alerts": {"webhook": "https://h", "headers": {"T": "${X}"}}}}'
    issues = parse_config(text, "f.json", {}).issues
    assert [(issue.code, issue.detail) for issue in issues] == [
        ("E-CONFIG-VARIABLE", "toolway.alerts.headers.T uses ${X}")
    ]


def test_unset_variable_is_kept_as_text() -> None:
    text = parse_entry({"command": "x", "env": {"T": "a ${X} ${keyring:k}"}}, {}).env["T"]
    assert isinstance(text, SecretTemplate) and text == "a ${X} ${keyring:k}"
    assert [str(ref) for ref in text.references] == ["${keyring:k}"]


def test_environment_overrides_dotenv() -> None:
    variables = DotenvVariables({"A": "1"}, {"A": "2", "B": "3"}, is_project=True)
    assert dict(variables) == {"A": "1", "B": "3"} and len(variables) == 2
    assert dict(variables.for_key("command")) == {"A": "1"} and variables.for_key("env.X") is variables
