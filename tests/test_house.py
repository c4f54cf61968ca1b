"""What holds for the repository and the package as a whole."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import toolway

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"mcp", "mcp_types", "pydantic", "rich", "opentelemetry", "sqlalchemy", "httpx2"}
HEAVY |= {"toolway.workflows", "toolway.agents", "cel_expr_python", "temporalio"}
#: What a hub loads when it needs it: for a schema, a failure, an audit log, a config file, a URL.
LATER = {
    *("jsonschema_rs", "ctypes", "tempfile", "shutil", "difflib", "email", "typer", "http.client"),
    *("toolway.audit", "toolway.config.loader", "toolway.config.scopes", "toolway.config.admission"),
    *("toolway.upstream.diagnosis", "toolway.http.client", "toolway.search"),
}
# Split, so this file does not find itself.
ADDRESSES = re.compile(
    r"pypi\.org" + r"/simple|files\.python" + r"hosted\.org|registry\.npm" + r"js\.org|index-" + r"url\b"
)


def test_public_names_are_as_listed():
    assert set(toolway.__all__) == {
        *("Hub", "SyncHub", "ToolResult", "ResourceResult", "PromptResult"),
        *("Server", "Timeout", "RetryPolicy", "RestartPolicy", "HealthCheck", "Limits", "ToolSettings", "Effect"),
        "SandboxGrants",
        *("Tool", "ToolRef", "Prompt", "Resource", "ServerStatus", "NetworkPolicy", "AlertSettings", "HealthResult"),
        *("Call", "CallHandler", "CallResult", "Middleware", "ToolMatch"),
        *("ToolwayError", "ConfigError", "CallError", "NotFound", "AccessDenied", "ServerUnavailable", "Overloaded"),
        *("CallTimeout", "OutcomeUnknown", "ProtocolError", "ToolError", "InvalidArguments", "ArgumentViolation"),
        *("Event", "EventSink", "CallFinished", "StateChanged", "HealthChanged", "ServerPaused", "CatalogChanged"),
        *("ServerLog", "Alert", "AlertResolved", "EventsMissed", "ServerInfo", "SqliteIdempotencyStore"),
        *("CallStarted", "AttemptFinished", "StoreInUse"),
        *("Transport", "InProcessServer", "InboundHandler", "Request", "TransportError", "TransportInfo"),
        *("Disconnect", "JSONRPCError", "Certainty"),
        *("to_json_rpc", "__version__"),
    }
    assert list(toolway.__all__) == sorted(toolway.__all__)
    assert dir(toolway) == toolway.__all__


@pytest.mark.parametrize("name", toolway.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(toolway, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = toolway.nonsense


HELP = "sys.argv[1:] = ['call', '--help']; from toolway.cli import main; main()"


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("import toolway", HEAVY),
        ("from toolway import ConfigError, Server, Timeout, ToolwayError", HEAVY),
        ("sys.argv[1:] = ['--version']; from toolway.cli import main; main()", HEAVY),
        ("sys.argv[1:] = ['--help']; from toolway.cli import main; main()", HEAVY),
        ("from toolway import Hub", HEAVY | LATER | {"toolway.hub.core"}),
        ("import toolway.hub.core", HEAVY | LATER),
        ("import toolway.serve.process, toolway.gateway.gateway, toolway.telemetry.logging", HEAVY),
        (HELP, HEAVY),
    ],
)
def test_slow_modules_are_imported_only_where_used(program, heavy):
    script = f"""
import atexit, os, sys
def look():
    loaded = {heavy!r} & sys.modules.keys()
    if loaded:
        print(loaded, file=sys.stderr, flush=True)
        os._exit(99)
atexit.register(look)
{program}
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("modules", "most"), [("toolway.hub.hub", 20), ("toolway.hub.core", 21), ("toolway.serve.process", 35)]
)
def test_few_dataclasses_are_created_at_import(modules, most):
    """One takes half a millisecond, a `msgspec.Struct` almost nothing."""
    script = f"""
import dataclasses, sys
import asyncio, ssl, msgspec, httptools, typer
made = []
def noting(cls, *options, real=dataclasses._process_class):
    made.append(cls.__module__)
    return real(cls, *options)
dataclasses._process_class = noting
import {modules}
print(sum(name.startswith("toolway") for name in made))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stderr == ""
    assert 0 < int(result.stdout) <= most


def own_files():
    """The files that are or will be tracked, without binary files."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if result.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, result.stdout.split("\0")):
        path = ROOT / name
        data = path.read_bytes() if path.is_file() else b"\0"
        if b"\0" not in data:
            yield name, data.decode(errors="replace")


def test_no_file_names_a_registry():
    found = {name: match[0] for name, text in own_files() if (match := ADDRESSES.search(text))}
    # The script that writes the pins says that no address is to be written. Attackers name one by a flag.
    assert found.keys() <= {"scripts/pin", "tests/attacks/test_admission.py", "tests/attacks/test_runners.py"}


def test_no_file_names_a_local_folder():
    common = {Path("/"), Path(tempfile.gettempdir()), Path("/tmp")}  # a page may name these
    folders = [f"{folder}/" for folder in (ROOT.parent, Path.home()) if folder not in common]
    own = [
        (name, text) for name, text in own_files() if not name.startswith("bench/search/data/")
    ]  # its tasks name folders
    assert [(name, folder) for name, text in own for folder in folders if folder in text] == []


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_every_requirement_is_pinned_with_hashes(name):
    text = (ROOT / "requirements" / name).read_text()
    entries = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n?", "", text, flags=re.MULTILINE).strip())
    assert len(entries) > 10
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==\S+ (?:; [^\\]+ )?\\\n    --hash=sha256:[0-9a-f]{64}", entry), entry


def test_license_is_complete():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
