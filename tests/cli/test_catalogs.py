"""Tools in detail, names of arguments, servers by URL, prompts, resources and generated clients."""

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from toolway.catalog.catalog import Tool
from toolway.cli.commands.catalogs.client_module import client_source
from toolway.cli.commands.catalogs.tool_details import argument_rows, check_names, example_words, find_shown, type_text
from toolway.cli.commands.catalogs.url_hints import hint_for_url
from toolway.cli.commands.tools import parse_arguments

FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
CLIENT = Path(__file__).resolve().parent.parent / "typing" / "issues_client.py"
SCHEMA = {
    "type": "object",
    "properties": {
        "labels": {"type": "array", "items": {"enum": ["bug", "idea"]}},
        "title": {"type": "string", "description": "One line.\nNo more."},
        "count": {"type": ["integer", "null"], "default": 5},
    },
    "required": ["title", "labels"],
}
# Names and descriptions that a server may use to break a generated module.
TOOLS = [
    {"name": "create-issue", "description": 'Create """one""".\n\n\\x00 More.', "inputSchema": SCHEMA},
    {
        "name": "create.issue",
        "inputSchema": {
            "type": "object",
            "properties": {
                "class": {"type": "boolean"},
                "self": {"const": 'a"b\\\n'},
                "timeout": {"type": "number"},
                "filter": {
                    "type": "object",
                    "properties": {"from-date": {"type": "string"}, "tree": {"$ref": "#/$defs/Tree"}},
                    "required": ["from-date"],
                },
            },
            "$defs": {
                "Tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
            },
        },
    },
    {"name": "import", "inputSchema": {"type": "object"}},
]


def tool(schema, name="create_issue"):
    return Tool("git", name, {"name": name, "inputSchema": schema})


def test_argument_rows_show_type_required_and_default():
    assert list(argument_rows(SCHEMA)) == [
        ("labels", 'array of "bug" | "idea"', "yes", ""),
        ("title", "string", "yes", "One line. No more."),
        ("count", "integer or null", "", "default 5"),
    ]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        (True, "any"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"const": 1}, "1"),
    ],
)
def test_every_schema_has_a_readable_type(schema, text):
    assert type_text(schema) == text


def test_example_call_has_required_arguments_and_is_valid():
    words = shlex.split(example_words(SCHEMA))
    assert parse_arguments(words) == {"title": "TITLE", "labels": []}


def test_misspelled_argument_suggests_nearest_name():
    error = check_names(tool(SCHEMA), ["titel", "labels"])
    assert error is not None and error.executed == "no"
    assert str(error.violations[0]) == "$.titel is unknown (did you mean 'title'?)"
    assert check_names(tool(SCHEMA), ["title", "count"]) is None


@pytest.mark.parametrize("more", [{"additionalProperties": True}, {"patternProperties": {"^x": {}}}, {"allOf": [{}]}])
def test_open_schema_accepts_unknown_names(more):
    assert check_names(tool({**SCHEMA, **more}), ["titel"]) is None


def test_search_shows_a_list_and_full_name_shows_one_tool():
    found = [tool(SCHEMA, "add"), tool(SCHEMA, "add_all")]
    assert find_shown(found, "add") is None
    assert find_shown(found, "git.add") is found[0]
    assert find_shown(found[:1], "add") is found[0]


def test_generated_client_is_the_one_mypy_checks():
    source = client_source("my-issues", TOOLS, "0")
    assert source == CLIENT.read_text()


def test_generated_client_contains_no_server_code():
    hostile = [
        {"name": 'x"):\n    import os #', "description": '"""\nimport os\n"""', "inputSchema": {"type": "object"}}
    ]
    [module] = [ast.parse(client_source("s", hostile, "0"))]
    assert [type(node).__name__ for node in module.body] == [
        "Expr",
        "ImportFrom",
        "ImportFrom",
        "ImportFrom",
        "Assign",
        "ClassDef",
    ]
    imported = [node.module for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    assert imported == ["__future__", "typing", "toolway"] and not any(
        isinstance(n, ast.Import) for n in ast.walk(module)
    )


@pytest.fixture
def ready(machine):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"fake": FAKE}})
    return machine


def test_tools_prompts_resources_and_codegen_of_a_server(ready):
    shown = ready.toolway("tools", "fake.add").stdout
    assert re.search(r"^a +number", shown, re.MULTILINE) and "\ntoolway call fake.add a:=1 b:=1\n" in shown
    refused = ready.toolway("call", "fake.echo", "txt=hello")
    assert refused.exit_code == 2 and "did you mean 'text'?" in refused.stderr
    assert ready.toolway("call", "fake.echo", '{"txt": "hello"}').exit_code == 0
    assert "fake.greet" in ready.toolway("prompts").stdout
    assert ready.toolway("prompts", "fake.greet", "name=Bo").stdout == "user: Greet Bo in a warm tone.\n"
    assert ready.toolway("prompts", "greet").exit_code == 2
    assert ready.toolway("resources", "fake://text").stdout == "hello, world\n"
    assert "toolway resources" in ready.toolway("resources", "fake://none").stderr
    written = ready.toolway("tools", "codegen", "python", "fake", "--out", "client.py")
    assert written.exit_code == 0 and "class FakeClient:" in (ready.project / "client.py").read_text()
    assert ready.toolway("tools", "codegen", "cobol", "fake").exit_code == 2


def test_server_can_be_used_by_url_without_config(machine, monkeypatch):
    monkeypatch.setenv("TOOLWAY_TOKEN", "the-gateways-own")
    words = [sys.executable, "-m", "toolway.testing.http_server"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{process.stdout.readline().split()[1]}/mcp"
            assert machine.toolway("call", url, "add", "a=1", "b=2").stdout == "3\n"
            assert f"\ntoolway call {url} add a:=1 b:=1\n" in machine.toolway("tools", url, "add").stdout
            document = json.loads(machine.toolway("tools", url, "--json").stdout)
            assert "add" in [each["tool"] for each in document["tools"]]
            assert "toolway tools" in machine.toolway("call", url).stderr
            assert machine.toolway("call", url, "add", "-H", "no header").exit_code == 2
            assert f"show its arguments: toolway tools {url} add;" in machine.toolway("call", url, "add", "a=x").stderr
            checked = machine.toolway("doctor", url, "--json")
            assert checked.exit_code == 0 and json.loads(checked.stdout)["subjects"][0]["state"] in ("ok", "warn")
        finally:
            process.kill()
    assert machine.toolway("tools", "-H", "A: b").exit_code == 2
    failed = machine.toolway("tools", url).stderr  # nothing listens there now
    assert f"find the cause and a fix: toolway doctor {url}\n" in failed
    report = machine.toolway("doctor", url)
    assert report.exit_code == 4 and "connection refused" in report.stdout and f"toolway doctor {url}" in report.stdout
    other = "http://127.0.0.1:9/mcp"  # it was never asked, so no list of it is cached
    assert f"toolway doctor {other}" in machine.toolway("tools", "codegen", "python", other).stderr


def test_doctor_does_not_combine_url_with_files(machine):
    assert machine.toolway("doctor", "http://127.0.0.1:1/mcp", "--all").exit_code == 2
    assert machine.toolway("doctor", "git", "-H", "A: b").exit_code == 2


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("list its tools: toolway tools --server acme", "list its tools: toolway tools 'https://a.example/mcp?x=1'"),
        ("show it: toolway tools acme.add; then", "show it: toolway tools 'https://a.example/mcp?x=1' add; then"),
        ("find the cause: toolway show acme", "find the cause: toolway doctor 'https://a.example/mcp?x=1'"),
        ("toolway login acme", "toolway add acme 'https://a.example/mcp?x=1' && toolway login acme"),
        ("toolway login acme2", "toolway login acme2"),
    ],
)
def test_hints_for_unnamed_server_use_its_url(hint, shown):
    assert hint_for_url(hint, "acme", "https://a.example/mcp?x=1") == shown
