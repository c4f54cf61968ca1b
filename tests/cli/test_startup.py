"""What makes the command line quick: what is known is not asked, and what is not needed is not loaded."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
HEAVY = {
    "mcp",
    "mcp_types",
    "pydantic",
    "rich",
    "httpx2",
    "cryptography",
    "toolway.hub.core",
    "toolway.hub.hub",
    "nats",
    "sqlalchemy",
    "psycopg",
}


def loaded_by(*words):
    """The heavy modules that a command loads."""
    program = (
        "import sys\n"
        f"sys.argv[1:] = {list(words)!r}\n"
        "from toolway.cli import main\n"
        "try: main()\n"
        "except SystemExit as exc: assert not exc.code, exc.code\n"
        f"print(sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [("tools", "echo"), ("tools", "-s", "fake", "--json"), (), ("show", "fake", "--entry"), ("config",)]
)
def test_cached_output_does_not_load_the_core(machine, words):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"fake": FAKE}})
    machine.toolway("tools")
    assert loaded_by(*words) == "[]"


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("call", "--help"),
        ("--version",),
        ("config", "path"),
        ("explain", "E-USAGE"),
        ("serve", "--help"),
        ("cluster", "keygen"),
    ],
)
def test_command_without_servers_loads_no_core(machine, words):
    assert loaded_by(*words) == "[]"


def test_plain_options_are_still_validated(machine):
    machine.write(".config/toolway/mcp.json", {"mcpServers": {}})
    assert machine.toolway("tools", "--wait", "soon").exit_code == 2
    assert machine.toolway("tools", "--wait", "-1").exit_code == 2
    assert machine.toolway("config", "diff", "0").exit_code == 2
    assert machine.toolway("tools", "--wait", "1").exit_code == 0


@pytest.mark.slow
def test_help_is_quick_and_tools_starts_no_server(tmp_path):
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps({"servers": [{"tools": 3}, {"tools": 4}]}))
    words = [sys.executable, str(ROOT / "scripts/startup.py"), "--rounds", "5", "--corpus", str(corpus)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "2 servers, 7 tools, none started" in result.stdout, result.stderr
    times = re.search(r"([0-9.]+) × import typer", result.stdout)
    assert times is not None
    assert float(times[1]) < 2.5
