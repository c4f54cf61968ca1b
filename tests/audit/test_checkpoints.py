"""Checkpoints of an audit log: made, noted and sent; a removed end is found by them."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolway import ConfigError, Hub
from toolway.audit.chain import AuditChain
from toolway.audit.checkpoint_notes import CheckpointNotes
from toolway.audit.checkpoint_task import CheckpointTask
from toolway.audit.checkpoints import Checkpoint, sign_checkpoint
from toolway.audit.log import create_notes, create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.signing import CommandSigner, load_signer
from toolway.audit.sink import ChainHead, StoredRecord, encode_record, link_records
from toolway.audit.verify import MissingLog, TamperedLog
from toolway.audit.writer import AuditWriter
from toolway.config.settings import AuditSettings
from toolway.parts.audit.checkpoint_checker import CheckpointChecker
from toolway.parts.audit.restart import restart_log
from toolway.parts.audit.verify import refuse_replacement, verify_log
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "jsonl"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> AuditSettings:
    return AuditSettings(to=request.param, file=str(tmp_path / f"log/audit.{request.param}")).with_folder(tmp_path)


def write(settings: AuditSettings, count: int = 5) -> ChainHead:
    chain = AuditChain(create_sink(settings), RecordMacs.load(settings), notes=create_notes(settings))
    try:
        chain.open()
        chain.write([encode_record("test", 1_700_000_000.0 + n, n, {"n": n}) for n in range(count)])
        return chain.head
    finally:
        chain.close()


def checkpoint(settings: AuditSettings, head: ChainHead) -> Checkpoint:
    signer = load_signer(settings, create=True)
    found = sign_checkpoint(settings.file, head, "2026-11-17T00:00:00.000000Z", signer.public.id, signer.sign)
    create_notes(settings).add(settings.file, found)
    return found


def rows(settings: AuditSettings) -> list[StoredRecord]:
    sink = create_sink(settings, read_only=True)
    sink.open()
    found = list(sink.read_forward())
    sink.close()
    return found


def check(settings: AuditSettings, given: list[StoredRecord]) -> CheckpointChecker:
    noted = create_notes(settings).read(settings.file)
    checker = CheckpointChecker([load_signer(settings).public], noted)
    list(checker.rows(given))
    return checker


def test_truncated_log_is_detected_and_not_opened(settings: AuditSettings) -> None:
    head = write(settings)
    checkpoint(settings, head)
    whole = rows(settings)
    check(settings, whole)
    for kept in range(head.seq):
        with pytest.raises(TamperedLog, match="was signed"):
            check(settings, whole[:kept])
    Path(settings.file).unlink()
    sink = create_sink(settings)
    sink.open()
    sink.append(whole[:3])
    sink.close()
    with pytest.raises(TamperedLog, match="end was removed"):
        write(settings)


def test_rewritten_end_is_detected(settings: AuditSettings) -> None:
    checkpoint(settings, write(settings))
    kept = rows(settings)[:2]
    Path(settings.file).unlink()
    sink = create_sink(settings)
    sink.open()
    sink.append(kept)
    sink.close()
    plain = replace(settings, checkpoints=False)
    chain = AuditChain(create_sink(plain), RecordMacs.load(plain))
    chain.open()
    chain.write([encode_record("test", 1.0, 1.0, {"other": True})] * 20)
    chain.close()
    with pytest.raises(TamperedLog, match="differs from the record that was signed"):
        check(settings, rows(settings))
    with pytest.raises(TamperedLog, match="differs"):
        write(settings)


def test_renamed_log_restarts_only_after_approval(settings: AuditSettings) -> None:
    first = write(settings)
    given = checkpoint(settings, first)
    Path(settings.file).rename(settings.file + ".kept")
    with pytest.raises(MissingLog, match="was signed"):
        write(settings, count=1)
    restart_log(settings, "ada", "the disk was replaced")
    write(settings, count=1)
    begun = rows(settings)[0].fields()
    assert begun["kind"] == "log.restart" and begun["after"] == {"seq": first.seq, "hash": first.hash}
    check(settings, rows(settings))
    with pytest.raises(TamperedLog):  # one of the earlier log is not excused
        list(CheckpointChecker([], [given]).rows(rows(settings)))


def test_log_replacing_an_unknown_log_is_rejected() -> None:
    after = ChainHead(7, "a" * 64)
    opened = encode_record("log.open", 1.0, 1.0, {"after": {"seq": after.seq, "hash": after.hash}})
    found = verify_log(link_records(ChainHead(), [opened]))
    refuse_replacement(found, {after})  # a node of a cluster that lost its log to another node
    with pytest.raises(TamperedLog, match="replaced another one"):
        refuse_replacement(found, {ChainHead(7, "b" * 64), ChainHead(8, "a" * 64)})


def test_database_log_opens_and_its_notes_are_kept(tmp_path: Path) -> None:
    """Another node may have replaced it. `verify` reports it, by the field `after`."""
    settings = AuditSettings(file=str(tmp_path / "audit.sqlite")).with_folder(tmp_path)
    load_signer(settings, create=True)
    notes = CheckpointNotes(Path(settings.signing_key_file), in_files=False)
    for number in (1, 2):
        sink = create_sink(settings)
        sink.open()
        noted = Checkpoint("audit", 10 * number, "h", "t", "k")
        notes.add(sink.location, noted)
        assert notes.check_log(sink, ChainHead()) == {"seq": noted.through, "hash": "h"}
        assert notes.read(sink.location) == []
        sink.close()
    kept = sorted(each.name.rpartition(".")[2] for each in tmp_path.glob("*.checkpoints-*"))
    assert kept == ["1", "2"]


async def test_hub_signs_end_of_log_on_close(settings: AuditSettings) -> None:
    async with Hub({"s": fake_server()}, audit_log=settings) as hub:
        await hub.wait_ready()
        await hub.call_tool("s.counter", {"nonce": "1"})
    found = check(settings, rows(settings))
    kinds = [row.fields()["kind"] for row in rows(settings)]
    assert kinds[-2:] == ["log.checkpoint", "log.close"] and found.count == 1
    assert found.newest is not None and found.newest.through == len(kinds) - 2
    key = Path(settings.signing_key_file)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


async def test_forged_checkpoint_is_detected(settings: AuditSettings) -> None:
    async with Hub({"s": fake_server()}, audit_log=settings) as hub:
        await hub.wait_ready()
    whole = rows(settings)
    for old, new in ((b'"through":', b'"through":1'), (b'"signature":"', b'"signature":"0'), (b'"key":"', b'"key":"0')):
        forged = [row._replace(body=row.body.replace(old, new)) for row in whole]
        assert forged != whole
        with pytest.raises(TamperedLog):
            check(settings, forged)


class OneLog:
    """A running writer with its checkpoint task, and what the webhook got."""

    def __init__(self, settings: AuditSettings, load: Callable[[], Any] | None = None) -> None:
        self.sent: list[bytes] = []
        self.writer = AuditWriter(create_sink(settings), RecordMacs.load(settings), notes=create_notes(settings))
        self.task = CheckpointTask(
            self.writer,
            load or (lambda: load_signer(settings, create=True)),
            create_notes(settings),
            webhook=self,  # type: ignore[arg-type]
            first_delay=3600,
        )

    def start(self) -> None: ...
    async def close(self) -> None: ...
    async def drained(self) -> None: ...

    def enqueue_body(self, name: str, body: bytes) -> None:
        self.sent.append(body)

    async def add(self, count: int) -> None:
        for n in range(count):
            await self.writer.commit(b"test", b',"n":%d}' % n)
        await self.writer.flush()


async def test_checkpoints_are_sent_only_if_log_has_grown(settings: AuditSettings) -> None:
    log = OneLog(settings)
    await log.writer.open()
    log.task.start()
    await log.add(3)
    assert await log.task.make() and await log.task.make()
    assert len(log.sent) == 1
    await log.add(3)
    assert await log.task.make()
    assert len(log.sent) == 2
    await log.task.close()
    await log.writer.close()
    given = [msgspec.json.decode(body, type=Checkpoint) for body in log.sent]
    key = load_signer(settings).public
    list(CheckpointChecker([key], given).rows(rows(settings)))
    with pytest.raises(TamperedLog):
        list(CheckpointChecker([key], given).rows(rows(settings)[: given[-1].through - 1]))


async def test_log_with_only_its_first_record_is_signed(settings: AuditSettings) -> None:
    """Otherwise a gateway without calls has no signed log in its first hour."""
    log = OneLog(settings)
    await log.writer.open()
    log.task.start()
    assert log.writer.head.seq == 1
    assert await log.task.make() and await log.task.make()
    assert len(log.sent) == 1
    await log.task.close()
    await log.writer.close()


def failing_signer() -> Any:
    raise ConfigError("no key", code="E-AUDIT-KEY")


async def test_calls_continue_without_a_signer(settings: AuditSettings, caplog: pytest.LogCaptureFixture) -> None:
    log = OneLog(settings, failing_signer)
    await log.writer.open()
    log.task.start()
    await log.add(3)
    assert not await log.task.make()
    await log.task.close()
    await log.writer.close()
    assert "no checkpoint of the audit log was made: no key" in caplog.text and log.sent == []


SIGN = """
import sys
from cryptography.hazmat.primitives.serialization import load_pem_private_key
key = load_pem_private_key(open(sys.argv[1], "rb").read(), None)
signature = key.sign(sys.stdin.buffer.read())
sys.stdout.buffer.write({"raw": signature, "hex": signature.hex().encode() + b"\\n", "wrong": bytes(64)}[sys.argv[2]])
"""


def test_signing_command_is_run_and_its_signature_verified(tmp_path: Path) -> None:
    own = load_signer(AuditSettings().with_folder(tmp_path), create=True)
    (tmp_path / "sign.py").write_text(SIGN)
    command = f"{sys.executable} {tmp_path}/sign.py {tmp_path}/audit-signing.pem"
    assert own.public.verify(CommandSigner(f"{command} raw", own.public).sign(b"text"), b"text")
    assert own.public.verify(CommandSigner(f"{command} hex", own.public).sign(b"text"), b"text")
    for line, reason in (
        (f"{command} wrong", "does not match"),
        (f"{command} nothing", "ended with code 1"),
        ("/no/such/program", "cannot be started"),
        ("/bin/echo hello", "not an Ed25519 signature"),
    ):
        with pytest.raises(ConfigError) as failed:
            CommandSigner(line, own.public).sign(b"text")
        assert failed.value.code == "E-AUDIT-KEY" and reason in str(failed.value.detail)
    with pytest.raises(ConfigError, match="signer"):
        CommandSigner("/bin/sleep 60", own.public).sign(b"text", timeout=0.05)


def test_cluster_nodes_sign_with_the_same_key(tmp_path: Path) -> None:
    nodes = [AuditSettings().with_folder(tmp_path / name).for_cluster(b"tenant") for name in "ab"]
    assert len({load_signer(node).public.id for node in nodes}) == 1
    assert load_signer(AuditSettings().for_cluster(b"other")).public.id != load_signer(nodes[0]).public.id


def test_untrusted_signer_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failed:
        load_signer(AuditSettings(signer="command:/bin/true", signer_key="k", signer_held=True).with_folder(tmp_path))
    assert "toolway trust toolway.audit.signer" in str(failed.value.hint)


def test_notes_are_bounded_and_survive_a_torn_line(settings: AuditSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.audit.checkpoint_notes.MAX_NOTES", 3)
    notes = create_notes(settings)
    load_signer(settings, create=True)
    for seq in range(1, 6):
        notes.add(settings.file, Checkpoint("audit", seq, "h", "t", "k"))
    [file] = Path(settings.signing_key_file).parent.glob("*.checkpoints-*")
    file.write_bytes(file.read_bytes() + b'{"log":"au')
    assert [each.through for each in notes.read(settings.file)] == [3, 4, 5]
