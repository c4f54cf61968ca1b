"""Attacks by someone who can write to the files of an audit log, but not to its gateway's notes: remove the whole log,
empty it, or replace it, without being noticed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from toolway import CallError, ConfigError, Hub
from toolway.audit import file_sinks
from toolway.audit.checkpoints import Checkpoint
from toolway.audit.log import create_notes, create_sink
from toolway.audit.signing import load_signer
from toolway.cli.app import app
from toolway.config.settings import AuditSettings
from toolway.testing import fake_server

ALTERED = 9


class Place:
    """A gateway whose log is in one folder, and whose keys and notes are in another one."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.log_folder, self.state = folder / "log", folder / "state"
        self.settings = AuditSettings(to=kind, file=str(self.log_folder / f"audit.{kind}")).with_folder(self.state)
        self.file = Path(self.settings.file)

    def run(self, calls: int = 3) -> None:
        """One run of a gateway, which signs the end of its log when it stops."""

        async def go() -> None:
            async with Hub({"s": fake_server()}, audit_log=self.settings) as hub:
                await hub.wait_ready()
                for n in range(calls):
                    await hub.call_tool("s.counter", {"nonce": str(n)})

        asyncio.run(go())

    def refused(self) -> str:
        """Start a gateway, and return the code of its error; "" if it starts."""
        try:
            self.run(0)
        except ConfigError as exc:
            return exc.code
        return ""

    def toolway(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["audit", *words], catch_exceptions=False)

    def verify(self, *words: str) -> Result:
        return self.toolway("verify", *words)

    def noted(self) -> list[Checkpoint]:
        return create_notes(self.settings).read(self.settings.file)

    def kept_notes(self) -> int:
        """How many checkpoints all notes have, also those that were put aside."""
        files = self.state.glob("*.checkpoints-*")
        return len({line for file in files for line in file.read_bytes().splitlines()})

    def records(self) -> list[dict[str, Any]]:
        sink = create_sink(self.settings, read_only=True)
        sink.open()
        with closing(sink):
            return [row.fields() for row in sink.read_forward()]

    def log_files(self) -> list[Path]:
        return [each for each in self.log_folder.iterdir() if each.is_file()]

    def remove(self) -> None:
        for each in self.log_files():
            each.unlink()


@pytest.fixture(params=["sqlite", "jsonl"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path, request.param)
    monkeypatch.setenv("TOOLWAY_STATE", str(found.state))
    monkeypatch.setenv("TOOLWAY_CONFIG", str(tmp_path / "mcp.json"))
    block = {"audit": {"to": request.param, "file": found.settings.file}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {}, "toolway": block}))
    found.run()
    assert found.verify().exit_code == 0
    return found


def empty(place: Place) -> None:
    place.remove()
    place.file.touch()


def empty_in_its_own_form(place: Place) -> None:
    place.remove()
    sink = create_sink(place.settings)
    sink.open()
    sink.close()


def swap_the_form(place: Place) -> None:
    """JSON lines in place of SQLite, and the other way round."""
    other = AuditSettings(to="jsonl" if place.settings.to == "sqlite" else "sqlite", file=place.settings.file)
    rows = _rows(place)
    place.remove()
    sink = create_sink(other)
    sink.open()
    with closing(sink):
        sink.append(rows)


def link_to_an_empty_one(place: Place) -> None:
    place.remove()
    (place.log_folder / "elsewhere").touch()
    place.file.symlink_to(place.log_folder / "elsewhere")


def link_to_nothing(place: Place) -> None:
    place.remove()
    place.file.symlink_to(place.log_folder / "nowhere")


def _rows(place: Place) -> list[Any]:
    sink = create_sink(place.settings, read_only=True)
    sink.open()
    with closing(sink):
        return list(sink.read_forward())


REMOVALS = [Place.remove, empty, empty_in_its_own_form, swap_the_form, link_to_an_empty_one, link_to_nothing]


@pytest.mark.attack("A2-F3")
@pytest.mark.parametrize("removal", REMOVALS, ids=lambda each: each.__name__)
def test_removed_log_is_detected(place: Place, removal: Callable[[Place], None]) -> None:
    kept = place.kept_notes()
    for _ in range(2):
        removal(place)
        assert place.verify().exit_code == ALTERED
        assert place.refused() in ("E-AUDIT-MISSING", "E-AUDIT-ALTERED")
        assert place.refused() in ("E-AUDIT-MISSING", "E-AUDIT-ALTERED")  # the first attempt has changed nothing
        assert place.verify().exit_code == ALTERED
        found = place.toolway("restart")
        assert found.exit_code == 0, found.stderr + found.output
        assert place.verify().exit_code == 0
        assert place.refused() == ""
        place.run()
        assert place.verify().exit_code == 0
        assert place.kept_notes() > kept  # those of each log before are still there
        kept = place.kept_notes()


@pytest.mark.attack("A2-F3")
def test_log_removed_again_after_a_restart_is_detected(place: Place) -> None:
    """The second removal follows at once, before a gateway has signed anything in the new log."""
    place.remove()
    assert place.toolway("restart").exit_code == 0
    place.remove()
    assert place.refused() == "E-AUDIT-MISSING"
    assert place.verify().exit_code == ALTERED


@pytest.mark.attack("A2-F3")
def test_replaced_log_put_back_is_detected(place: Place, tmp_path: Path) -> None:
    shutil.copytree(place.log_folder, tmp_path / "copy")
    place.remove()
    assert place.toolway("restart", "--reason", "the disk was lost").exit_code == 0
    place.run()
    for each in place.log_files():
        each.unlink()
    for each in (tmp_path / "copy").iterdir():
        shutil.copy(each, place.log_folder)
    assert place.verify().exit_code == ALTERED
    assert place.refused() == "E-AUDIT-ALTERED"


@pytest.mark.attack("A2-F3")
def test_new_log_fails_against_checkpoints_kept_elsewhere(place: Place, tmp_path: Path) -> None:
    """Checkpoints on the command line always apply, even after an administrator has agreed to a new log."""
    elsewhere, key = tmp_path / "received.jsonl", tmp_path / "public.pem"
    elsewhere.write_text("".join(json.dumps(_as_json(each)) + "\n" for each in place.noted()))
    key.write_text(load_signer(place.settings).public.pem())
    words = ("--checkpoints", str(elsewhere), "--public-key", str(key))
    assert place.verify(*words).exit_code == 0
    place.remove()
    assert place.verify(*words).exit_code == ALTERED
    assert place.toolway("restart").exit_code == 0
    assert place.verify().exit_code == 0
    assert place.verify(*words).exit_code == ALTERED
    for note in place.state.glob("*.checkpoints-*"):  # with write access to the notes too
        note.unlink()
    place.remove()
    assert place.verify(*words).exit_code == ALTERED
    place.run(12)
    assert place.verify().exit_code == 0  # documented: then only what is stored elsewhere finds it
    assert place.verify(*words).exit_code == ALTERED


def _as_json(found: Checkpoint) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


@pytest.mark.attack("A2-F3")
def test_log_removed_while_written_is_detected(place: Place) -> None:
    async def call(hub: Hub, nonce: str) -> str:
        try:
            await hub.call_tool("s.counter", {"nonce": nonce})
        except CallError as exc:
            return exc.code
        return ""

    async def go() -> str:
        async with Hub({"s": fake_server()}, audit_log=place.settings) as hub:
            await hub.wait_ready()
            assert await call(hub, "before") == ""
            place.remove()
            for n in range(100):
                if code := await call(hub, f"after-{n}"):
                    return code
                await asyncio.sleep(0.05)
        return ""

    assert asyncio.run(go()) == "E-AUDIT"
    assert place.verify().exit_code == ALTERED
    assert place.refused() in ("E-AUDIT-MISSING", "E-AUDIT-ALTERED")


@pytest.mark.attack("A2-F3")
@pytest.mark.parametrize("place", ["jsonl"], indirect=True)  # SQLite has one file
def test_removed_part_of_a_split_log_is_detected(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sinks, "MAX_FILE_BYTES", 1)
    monkeypatch.setattr(file_sinks.JsonlSink.__init__, "__kwdefaults__", {"read_only": False, "max_file_bytes": 1})
    for _ in range(3):
        place.run(1)
    parts = sorted(place.log_folder.glob("audit-*.jsonl"))
    assert len(parts) >= 3 and place.verify().exit_code == 0
    for part in parts:
        kept = part.read_bytes()
        part.unlink()
        assert place.verify().exit_code == ALTERED, part.name
        part.write_bytes(kept)
    for part in [*parts, place.file]:
        part.unlink()
    assert place.refused() == "E-AUDIT-MISSING"


def test_restarted_log_records_its_restart(place: Place) -> None:
    before = place.noted()[-1]
    place.remove()
    done = place.toolway("restart", "--reason", "the disk was lost", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["after"] == {"seq": before.through, "hash": before.hash}
    first, second = place.records()
    assert (first["kind"], first["why"]) == ("log.restart", "the disk was lost") and first["who"] and first["mac"]
    assert first["after"] == {"seq": before.through, "hash": before.hash}
    assert (second["kind"], second["through"]) == ("log.checkpoint", 1)
    said = place.verify()
    assert said.exit_code == 0 and "started over at" in said.stdout and "the disk was lost" in said.stdout
    assert json.loads(place.verify("--json").stdout)["restarted"]["after"] == f"{before.through}:{before.hash}"


def test_altered_log_is_kept_when_restarted(place: Place) -> None:
    data = bytearray(place.file.read_bytes())
    data[data.index(b'"kind":"call.intent"') + 9] ^= 4
    place.file.write_bytes(data)
    assert place.refused() == "E-AUDIT-ALTERED"
    moved_to = json.loads(place.toolway("restart", "--json").stdout)["movedTo"]
    assert (Path(moved_to) / place.file.name).read_bytes() == bytes(data)
    assert place.refused() == ""


def test_intact_log_is_not_restarted(place: Place) -> None:
    before = place.file.read_bytes()
    refused = place.toolway("restart")
    assert refused.exit_code == 3 and "E-AUDIT-INTACT" in refused.stderr
    assert place.file.read_bytes() == before
    place.remove()
    for note in place.state.glob("*.checkpoints-*"):
        note.unlink()
    assert "E-AUDIT-NONE" in place.toolway("restart").stderr


def test_log_in_use_is_not_restarted(place: Place) -> None:
    async def go() -> Result:
        async with Hub({}, audit_log=place.settings):
            return await asyncio.to_thread(place.toolway, "restart")

    refused = asyncio.run(go())
    assert refused.exit_code == 3 and "E-AUDIT-IN-USE" in refused.stderr


def test_interrupted_restart_is_completed_at_the_next_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after it has written the log, before it has written the notes."""
    place.remove()
    with monkeypatch.context() as patch:
        patch.setattr("toolway.audit.checkpoint_notes.CheckpointNotes.begin_again", _die)
        assert place.toolway("restart").exit_code == 1
    assert place.verify().exit_code == 0
    assert place.refused() == ""
    assert place.verify().exit_code == 0
    place.remove()
    assert place.refused() == "E-AUDIT-MISSING"


def _die(*args: object) -> None:
    raise SystemExit(1)


def test_doctor_reports_a_removed_log(place: Place) -> None:
    place.remove()
    found = CliRunner().invoke(app, ["doctor", "--json"], catch_exceptions=False)
    checks = [check for subject in json.loads(found.stdout)["subjects"] for check in subject["checks"]]
    [audit] = [check for check in checks if check["name"] == "audit"]
    assert (audit["state"], audit["code"], audit["copy"]) == ("fail", "E-AUDIT-MISSING", "toolway audit restart")
