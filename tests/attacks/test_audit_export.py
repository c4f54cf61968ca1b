"""Attacks by someone who can write to an audit log, or to an export of it, to get false records signed and believed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from tests.attacks.test_audit_removal import Place, place
from toolway.audit import file_sinks
from toolway.audit.chain import AuditChain
from toolway.audit.log import create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.signing import KeySigner
from toolway.audit.sink import ChainHead, SinkBroken, StoredRecord, encode_record, link_records
from toolway.parts.audit import whole_logs
from toolway.parts.audit.signed_export import AlteredExport, check_file, write_export, write_proofs

__all__ = ["place"]  # the fixture

ALTERED = 9


def keep(place: Place, choose: Callable[[list[bytes]], list[bytes]]) -> None:
    """Rewrite the log with some of its records, each as it is."""
    rows = _rows(place)
    chosen = set(choose([row.body for row in rows]))
    place.remove()
    sink = create_sink(place.settings)
    sink.open()
    with closing(sink):
        sink.append([row for row in rows if row.body in chosen])


def _rows(place: Place) -> list[StoredRecord]:
    sink = create_sink(place.settings, read_only=True)
    sink.open()
    with closing(sink):
        return list(sink.read_forward())


def signed(place: Place, to: Path) -> Result:
    return place.toolway("export", "--sign", "-o", str(to))


@pytest.mark.attack("A2-NA2")
@pytest.mark.parametrize("cut", ["end", "beginning", "all", "key"])
def test_incomplete_log_is_not_signed(place: Place, tmp_path: Path, cut: str) -> None:
    """The operator signs what is left, and the export counts as whole."""
    file = tmp_path / "export.jsonl"
    assert signed(place, file).exit_code == 0
    file.unlink()
    if cut == "key":
        Path(place.settings.digest_key_file).unlink()
    elif cut == "all":
        place.remove()
    else:
        keep(place, lambda bodies: bodies[:3] if cut == "end" else bodies[3:])
    refused = signed(place, file)
    assert refused.exit_code == ALTERED, refused.stdout
    assert not file.exists()


@pytest.mark.attack("A2-NA2")
def test_log_cut_between_verify_and_sign_is_not_signed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = whole_logs.WholeLogs.verify

    def then_cut(self: whole_logs.WholeLogs) -> object:
        found = verify(self)
        keep(place, lambda bodies: bodies[:3])
        return found

    monkeypatch.setattr(whole_logs.WholeLogs, "verify", then_cut)
    refused = signed(place, tmp_path / "export.jsonl")
    assert refused.exit_code == ALTERED and "removed while the log was read" in re.sub(r"\s+", " ", refused.stderr)
    assert not (tmp_path / "export.jsonl").exists()


@pytest.mark.attack("A2-NA2")
def test_log_signed_with_an_earlier_key_needs_its_public_key(place: Place, tmp_path: Path) -> None:
    old = tmp_path / "old.pem"
    old.write_text(place.toolway("key").stdout)
    Path(place.settings.signing_key_file).unlink()
    place.toolway("key")
    file = tmp_path / "export.jsonl"
    assert signed(place, file).exit_code == ALTERED and not file.exists()
    done = place.toolway("export", "--sign", "-o", str(file), "--public-key", str(old))
    assert done.exit_code == 0 and file.exists()


@pytest.mark.attack("A2-NA4")
@pytest.mark.parametrize("where", [0, 3, -1])
def test_deeply_nested_record_is_detected_as_altered(place: Place, where: int) -> None:
    rows = _rows(place)
    entries = [re.sub(rb'^\{"seq":\d+,"prev":"\w+",', b"{", row.body) for row in rows]
    entries[where] = (
        encode_record("call.outcome", 1.0, 1.0, {})[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    )
    place.remove()
    sink = create_sink(place.settings)
    sink.open()
    with closing(sink):
        sink.append(link_records(ChainHead(), entries))
    assert place.verify().exit_code == ALTERED
    assert place.verify("--without-key").exit_code == ALTERED
    assert place.refused() == "E-AUDIT-ALTERED"
    assert place.toolway("ls").exit_code == 0


@pytest.mark.attack("A2-NA4")
@pytest.mark.parametrize("place", ["jsonl"], indirect=True)  # rows of SQLite are read in pages
def test_huge_log_file_is_rejected_at_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are read backward, so a file of JSON lines is in memory as a whole."""
    monkeypatch.setattr(file_sinks, "_MAX_READ_BYTES", place.file.stat().st_size)
    assert place.refused() == ""
    assert place.refused() == "E-AUDIT-ALTERED"  # the file has grown


@pytest.mark.attack("A2-NA5")
def test_second_writer_without_the_lock_keeps_the_chain_intact(place: Place) -> None:
    """Only one of them continues. The other one writes nothing, and what is stored stays a chain."""
    first, second = (AuditChain(create_sink(place.settings), RecordMacs.load(place.settings)) for _ in range(2))
    first.open()
    os.unlink(f"{place.settings.file}.lock")
    second.open()
    second.write([encode_record("test", 1.0, 1.0, {"by": "second"})])
    for _ in range(3):
        with pytest.raises((OSError, sqlite3.Error, SinkBroken)):
            first.write([encode_record("test", 1.0, 1.0, {"by": "first"})])
    second.write([encode_record("test", 1.0, 1.0, {"by": "second"})])
    second.close()
    with contextlib.suppress(OSError, sqlite3.Error, SinkBroken):
        first.close()
    assert [each["by"] for each in place.records() if each["kind"] == "test"] == ["second", "second"]
    assert place.verify().exit_code == 0


@pytest.mark.attack("A2-NA5")
def test_end_cut_while_a_gateway_writes_is_detected(place: Place) -> None:
    chain = AuditChain(create_sink(place.settings), RecordMacs.load(place.settings))
    chain.open()
    if place.settings.to == "sqlite":
        with closing(sqlite3.connect(place.file)) as db, db:
            db.execute("DELETE FROM records WHERE seq > 3")
    else:
        os.truncate(place.file, len(b"".join(place.file.read_bytes().splitlines(keepends=True)[:3])))
    written = 0
    with contextlib.suppress(OSError, sqlite3.Error, SinkBroken):
        for _ in range(3):
            chain.write([encode_record("test", 1.0, 1.0, {})])
            written += 1
    chain.sink.close()
    assert place.verify().exit_code == ALTERED
    assert written == 0 or place.settings.to == "sqlite"  # SQLite continues, with a gap that `verify` finds


@pytest.mark.attack("A2-held-A2")
def test_signed_files_of_another_kind_are_rejected(place: Place, tmp_path: Path) -> None:
    """Checkpoints, exports, and proofs are not accepted for each other, and neither is a part or a double of one."""
    key, file = tmp_path / "public.pem", tmp_path / "export.jsonl"
    key.write_text(place.toolway("key").stdout)
    assert signed(place, file).exit_code == 0
    lines = file.read_bytes().splitlines(keepends=True)
    call = next(json.loads(line)["call"] for line in lines if b"call.intent" in line)
    proof = place.toolway("prove", str(file), call).stdout.encode().splitlines(keepends=True)
    noted = b"".join(each.read_bytes() for each in place.state.glob("*.checkpoints-*"))

    def check(*parts: bytes) -> int:
        (tmp_path / "given").write_bytes(b"".join(parts))
        return place.toolway("check", str(tmp_path / "given"), "--key", str(key)).exit_code

    assert check(*lines) == check(*proof) == 0
    forged = [
        (noted,),
        (*lines[:-1], noted.splitlines(keepends=True)[-1]),
        (*lines, lines[-1]),
        (*lines, *lines),
        (lines[-1],),
        (*lines[1:],),
        (*lines[:-2], lines[-1]),
        (*proof, *lines),
        (*lines[:-1], *proof),
        (b"\xef\xbb\xbf", *lines),
        (b"\n", *lines),
        (*lines, b"\n"),
        (lines[0].replace(b"\n", b"\r\n"), *lines[1:]),
    ]
    assert [check(*parts) for parts in forged] == [ALTERED] * len(forged)
    (tmp_path / "as-checkpoints").write_bytes(lines[-1])
    assert place.verify("--checkpoints", str(tmp_path / "as-checkpoints")).exit_code in (2, ALTERED)


@pytest.mark.attack("A2-held-A3")
def test_signed_export_replaces_a_link_instead_of_following_it(place: Place, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "export.jsonl"
    target.write_text("untouched")
    link.symlink_to(target)
    assert signed(place, link).exit_code == 0
    assert target.read_text() == "untouched" and not link.is_symlink() and link.stat().st_mode & 0o077 == 0


@pytest.mark.attack("A2-held-A4")
def test_huge_file_is_rejected_by_check_prove_and_verify(place: Place, tmp_path: Path) -> None:
    key, file = tmp_path / "public.pem", tmp_path / "huge"
    key.write_text(place.toolway("key").stdout)
    with file.open("wb") as out:
        out.truncate(16 * 1024**3)
    assert place.toolway("check", str(file), "--key", str(key)).exit_code == ALTERED
    assert place.toolway("prove", str(file), "1").exit_code == ALTERED
    assert place.toolway("verify", "--log", str(file)).exit_code != 0


@pytest.mark.attack("A2-held-A1")
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # only SQLite has views
def test_records_hidden_by_a_database_view_are_detected(place: Place) -> None:
    """A view or a trigger in the file must not hide or add records."""
    with closing(sqlite3.connect(place.file)) as db, db:
        db.execute("ALTER TABLE records RENAME TO hidden")
        db.execute("CREATE VIEW records AS SELECT seq, hash, body FROM hidden WHERE seq < 4")
    assert place.verify().exit_code == ALTERED
    assert place.refused() in ("E-AUDIT-ALTERED", "E-AUDIT-OPEN")


def export(signer: KeySigner, kind: str, records: list[bytes]) -> bytes:
    out = io.BytesIO()
    facts = {"time": "2026-11-17T00:00:00.000000Z", "key": signer.public.id, "selection": {"kind": kind}, "logs": []}
    write_export(records, out, lambda size, root: {**facts, "size": size, "root": root}, signer.sign)
    return out.getvalue()


@pytest.mark.attack("R4-4")
def test_joined_proofs_are_rejected() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    signer = KeySigner(Ed25519PrivateKey.generate())
    records = [b'{"seq":%d,"call":"pay"}' % number for number in range(5)]
    first, second = (write_proofs(io.BytesIO(export(signer, kind, records)), "pay") for kind in ("a", "b"))

    def check(*lines: bytes) -> int:
        return check_file(io.BytesIO(b"".join(line + b"\n" for line in lines)), signer.public).records

    assert check(*first) == 5 and check(first[1], first[3]) == 2
    for lines, reason in (
        ((first[1], first[1]), "repeated"),
        ((first[3], first[1]), "moved"),
        ((first[1], second[2]), "several exports"),
        ((second[0], *first[1:]), "several exports"),
    ):
        with pytest.raises(AlteredExport, match=reason):
            check(*lines)
