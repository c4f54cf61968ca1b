"""An audit sink of another distribution: found by its entry point, used by the library and by a gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import start, until
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import StoredRecord
from toolway.parts.audit.verify import verify_log

SHELF = """
from pathlib import Path
from toolway.part_api import ChainHead, StoredRecord

def create(settings, read_only):
    return Shelf(Path(settings.address or settings.file), settings.name)

class Shelf:
    def __init__(self, path, name):
        self.path, self.location = path, f"the shelf {name}"
    def open(self):
        self.path.touch()
    def head(self):
        return next((ChainHead(row.seq, row.hash) for row in self.read_backward()), ChainHead())
    def append(self, rows):
        if self.path.with_suffix(".full").exists():
            raise OSError("the shelf is full")
        with self.path.open("ab") as file:
            file.writelines(b"%d %s %s\\n" % (row.seq, row.hash.encode(), row.body) for row in rows)
    def read_forward(self, after=0):
        for line in self.path.read_bytes().splitlines():
            seq, hash, body = line.split(b" ", 2)
            if int(seq) > after:
                yield StoredRecord(int(seq), hash.decode(), body)
    def read_backward(self):
        return reversed(list(self.read_forward()))
    def prunable(self, before):
        return None
    def remove(self, through):
        raise NotImplementedError
    def close(self):
        pass
"""
FAKE: dict[str, Any] = {"fake": {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}}
LIBRARY = f"""
import sys
from toolway import SyncHub
from toolway.part_api import AuditSettings
log = AuditSettings(to="shelf", address=sys.argv[1] + "/log").with_folder(sys.argv[1])
with SyncHub({FAKE!r}, audit_log=log) as hub:
    for number in range(3):
        hub.call_tool("fake.counter", {{"nonce": str(number)}})
"""
UNKNOWN = """
import sys
from toolway import ConfigError, SyncHub
from toolway.part_api import AuditSettings
try:
    with SyncHub({}, audit_log=AuditSettings(to="shelv").with_folder(sys.argv[1])):
        pass
except ConfigError as exc:
    print(exc.message, "|", exc.hint)
"""
NOT_READ = """
import sys
from toolway.audit.log import create_sink
from toolway.config.settings import parse_audit
for kind in ("sqlite", "jsonl"):
    create_sink(parse_audit({"to": kind, "file": sys.argv[1]}, {}))
parse_audit({"to": "postgresql", "address": "postgresql://host/log"}, {})
assert "importlib.metadata" not in sys.modules
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = tmp_path / "site" / "shelf-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "shelf.py").write_text(SHELF)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[toolway.audit_sinks]\nshelf = shelf:create\nbroken = shelf:nothing\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]))
    return tmp_path


def run(*words: str, folder: Path) -> str:
    environ = {**os.environ, "TOOLWAY_STATE": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run([sys.executable, *words], env=environ, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def records(file: Path, key: Path) -> list[dict[str, Any]]:
    """The records, whose order, hashes and MACs are right."""
    parts = (line.split(b" ", 2) for line in file.read_bytes().splitlines())
    rows = [StoredRecord(int(seq), hash.decode(), body) for seq, hash, body in parts]
    macs = RecordMacs(key.read_bytes())
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert all(macs.check(row.body) for row in rows)
    verify_log(iter(rows))
    return [row.fields() for row in rows]


def test_library_records_calls_in_foreign_sink(site: Path) -> None:
    assert run("-c", LIBRARY, str(site), folder=site) == ""
    found = records(site / "log", site / "audit.key")
    assert (found[0]["kind"], found[-1]["kind"]) == ("log.open", "log.close")
    intents, outcomes = (
        [each["call"] for each in found if each["kind"] == f"call.{end}"] for end in ("intent", "outcome")
    )
    assert intents == outcomes
    assert len(intents) == 3


def test_metadata_is_not_read_for_known_kinds(site: Path) -> None:
    assert run("-c", NOT_READ, str(site / "log"), folder=site) == ""


def test_unknown_kind_names_similar_one(site: Path) -> None:
    assert run("-c", UNKNOWN, str(site), folder=site) == "unknown kind of audit log: 'shelv' | did you mean 'shelf'?\n"
    (site / "mcp.json").write_text('{"mcpServers": {}, "toolway": {"audit": {"to": "shelv"}}}')
    found = " ".join(run("-m", "toolway.cli", "config", "validate", "-c", str(site / "mcp.json"), folder=site).split())
    assert "to must be one of sqlite, jsonl, postgresql, broken, shelf" in found
    assert "did you mean 'shelf'?" in found


def test_sink_that_cannot_be_loaded_is_named(site: Path) -> None:
    found = run("-c", UNKNOWN.replace("shelv", "broken"), str(site), folder=site)
    assert found == "the audit log of kind 'broken' cannot be loaded | reinstall its package\n"


@pytest.mark.anyio
async def test_gateway_uses_foreign_sink_and_doctor_lists_it(site: Path) -> None:
    program = await start(site, FAKE, audit={"to": "shelf", "address": str(site / "log")})
    call = {"server": "fake", "tool": "counter", "arguments": {"nonce": "hello"}}
    try:
        await program.announced()
        await program.until_ready("fake")
        assert "E-AUDIT" not in str(await program.request("POST", "/admin/call", call))
        (site / "log.full").touch()
        assert "E-AUDIT" in str(await program.request("POST", "/admin/call", call))
        (site / "log.full").unlink()
        await until(lambda: b"log.resumed" in (site / "log").read_bytes())
        assert "E-AUDIT" not in str(await program.request("POST", "/admin/call", call))
    finally:
        await program.stop()
    found = records(site / "log", site / "state" / "audit.key")
    assert [each["kind"] for each in found].count("call.intent") == 2
    config = ("-c", str(program.file))
    assert run("-m", "toolway.cli", "audit", "verify", *config, folder=site).startswith(f"intact: {len(found)} records")
    shown = " ".join(run("-m", "toolway.cli", "doctor", *config, folder=site).split())
    assert "the audit log shelf comes from another distribution: shelf 1.0" in shown
