"""The program as a user runs it."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.doctor.doctor_lab import Lab, small
from tests.orphans import no_other_orphans

SECRET = "ghp_canary0123456789canary0123456789abcd"


@pytest.fixture
def lab(tmp_path):
    with no_other_orphans():
        yield Lab(tmp_path / "lab")


def toolway(lab, *words, command="doctor"):
    environ = {**lab.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = [sys.executable, "-m", "toolway.cli", command, *words]
    return subprocess.run(program, cwd=lab.work, env=environ, capture_output=True, text=True, timeout=60)


def test_working_setup_exits_with_0(lab):
    lab.servers(acme=small())
    result = toolway(lab, "acme")
    assert result.stdout.startswith("✓ acme: no problem found\n")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout


def test_exit_code_shows_the_kind_of_problem(lab):
    lab.servers(acme={"command": "no-such-program"})
    assert toolway(lab).returncode == 4
    lab.servers(acme={"command": "no-such-program"}, other=small())
    held = toolway(lab)  # the test wrote the entry, not `toolway`
    digest = re.search(r"[0-9a-f]{64}", toolway(lab, "other", command="trust").stderr)
    assert held.returncode == 4 and "other needs your review" in held.stdout and digest is not None
    assert toolway(lab, "other", "--digest", digest[0], command="trust").returncode == 0
    assert toolway(lab).returncode == 8
    lab.servers(acme={"type": "teleport", "command": "x"})
    assert toolway(lab).returncode == 3
    lab.write("{")
    assert toolway(lab).returncode == 3


def test_json_is_one_document_with_stable_keys(lab):
    lab.servers(acme={**small(), "env": {"T": "${NOT_SET}"}})
    result = toolway(lab, "--json")
    facts = json.loads(result.stdout)
    assert facts.keys() == {"state", "first_line", "subjects", "fixed"}
    server = facts["subjects"][1]
    assert server.keys() == {"kind", "name", "transport", "location", "source", "state", "checks"}
    assert server["checks"][0].keys() == {"name", "state", "message", "detail", "hint", "copy", "code", "fixable"}
    assert facts["first_line"] == "acme: the variable NOT_SET is not set"


def test_fix_repairs_file_and_keeps_backup(lab):
    text = json.dumps({"mcpServer": {"acme": small()}})
    lab.write(b"\xef\xbb\xbf" + text.encode())
    result = toolway(lab, "--fix")
    assert result.stdout.startswith("✓ acme: no problem found\n"), result.stdout
    assert result.stderr.count("fixed: ") == 2
    assert lab.file.read_text() == text.replace("mcpServer", "mcpServers")
    kept = [path for path in lab.home.rglob("*") if path.is_file() and path != lab.file]
    assert b"\xef\xbb\xbf" + text.encode() in [path.read_bytes() for path in kept]


def test_unknown_server_suggests_closest_name(lab):
    lab.servers(github=small())
    result = toolway(lab, "gihub")
    assert result.returncode == 1
    assert "gihub" in result.stderr
    assert "github" in result.stderr


def test_unknown_client_suggests_closest_name(lab):
    result = toolway(lab, "--client", "cursr")
    assert "did you mean 'cursor'?" in result.stderr
    assert result.returncode == 3


def test_client_without_files_lists_searched_paths(lab):
    result = toolway(lab, "--client", "cursor")
    assert result.stdout.startswith("✗ cursor: Cursor has no MCP config file here\n")
    assert ".cursor/mcp.json" in result.stdout


def test_all_checks_every_client_and_reports_duplicates(lab):
    lab.servers(acme=small())
    lab.servers(lab.home / ".cursor" / "mcp.json", same=small())
    lab.servers(lab.home / ".gemini" / "settings.json", other=small("x"))
    result = toolway(lab, "--all", "--json")
    servers = [each for each in json.loads(result.stdout)["subjects"] if each["kind"] == "server"]
    assert [each["name"] for each in servers] == ["acme", "same", "other"]
    assert servers[0]["checks"][0]["message"] == "valid; the same server as cursor:same"
    assert result.returncode == 0


def test_without_config_checks_client_files(lab):
    lab.servers(lab.home / ".cursor" / "mcp.json", acme=small())
    result = toolway(lab)
    assert result.stdout.startswith("✓ acme: no problem found\n")
    assert "no Toolway config yet" in result.stderr


def test_no_config_at_all_exits_with_3(lab):
    result = toolway(lab)
    assert result.returncode == 3
    assert "E-CONFIG-NONE" in result.stderr


def test_no_secret_is_shown_in_any_output(lab):
    lab.environ["ACME_TOKEN"] = SECRET
    shout = lab.script("server", "print(os.environ['T'], file=sys.stderr); sys.exit(os.environ['T'])")
    lab.servers(
        a={"command": str(shout), "env": {"T": "${ACME_TOKEN}"}},
        b={"command": str(shout), "args": ["--token", SECRET], "env": {"T": SECRET}},
        c={"url": f"http://127.0.0.1:9/{SECRET}", "headers": {"Authorization": f"Bearer {SECRET}"}},
    )
    for words in (("-v",), ("--json",), ("--fix", "--all")):
        result = toolway(lab, *words)
        assert SECRET not in result.stdout + result.stderr


@pytest.mark.user_trial("20")
def test_several_servers_are_checked_by_name(lab):
    lab.servers(acme=small(), other={"command": "no-such-program"}, third={"command": "no-such-program-either"})
    result = toolway(lab, "acme", "other")
    assert "acme" in result.stdout and "no-such-program is not installed" in result.stdout
    assert "third" not in result.stdout and result.returncode == 8
    assert toolway(lab, "acme", "othr").returncode == 1


@pytest.mark.user_trial("20")
def test_same_command_with_other_env_is_not_a_duplicate(lab):
    lab.servers(acme={**small(), "env": {"ACCOUNT": "one"}}, other={**small(), "env": {"ACCOUNT": "two"}})
    result = toolway(lab, "--json")
    assert "E-DOCTOR-DUPLICATE" not in result.stdout


@pytest.mark.user_trial("20")
def test_missing_model_package_is_named(lab):
    lab.write(json.dumps({"mcpServers": {"acme": small()}, "toolway": {"search": {"model": "minilm"}}}))
    for words in ((), ("--json",)):
        result = toolway(lab, *words)
        assert "toolway-search-minilm" in result.stdout and "found by words alone" in result.stdout
