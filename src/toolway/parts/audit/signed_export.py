"""Signed exports of an audit log: JSON lines, and a last line with the signed root of a Merkle tree over them.

    {"seq":7,"prev":"…","kind":"call.intent",…,"hash":"…"}
    {"toolway":"audit checkpoint 1","time":"…","size":1,"root":"…","from":"…",…,"key":"…","signature":"…"}

A leaf is a line without its newline. The signature covers the text of the last line up to the signature, so every byte
of the file is covered: a change of any of them is found with the file and the public key alone.

A proof is one line, with one record, its path to the root (`merkle.py`) and the signed last line. It shows a record
without the rest of the export.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from toolway.audit.checkpoints import log_name
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import AuditSink, ChainHead, StoredRecord
from toolway.audit.verify import TamperedLog, verify_mac, verify_record
from toolway.parts.audit.merkle import HASH_BYTES, MerkleTree, hash_leaf, prove_inclusion, root_from_proof
from toolway.parts.audit.queries import AuditQuery
from toolway.parts.audit.verify import decode_summary, verify_link

if TYPE_CHECKING:
    from toolway.audit.signing import PublicKey

MAX_LINE_BYTES: Final = 2 * 1024 * 1024  # of a record; ours are shorter
MAX_RECORDS: Final = 50_000_000
_CONTEXT: Final = b"toolway audit export 1\n"  # a signature is valid for nothing else
_HEAD: Final = b'{"toolway":"audit checkpoint 1",'
_PROOF_HEAD: Final = b'{"toolway":"audit proof 1",'
_SIGNATURE: Final = re.compile(rb',"signature":"([0-9a-f]{128})"\}')
_SIGNATURE_BYTES: Final = len(b',"signature":""}') + 128
_encode = msgspec.json.Encoder().encode


class AlteredExport(Exception):
    """Raised when a signed export, or a proof from one, differs from what was signed."""


class ExportCheckpoint(msgspec.Struct, frozen=True):
    """The last line of a signed export, without its signature."""

    toolway: str
    time: str
    size: int
    root: str
    key: str
    selection: dict[str, str] = {}  # from, to and kind, if they were given
    logs: list[dict[str, Any]] = []  # of each log: name, first and last record, and its head at that time


class CheckedExport(NamedTuple):
    """The result of checking an export or a proof: the signed last line, and the number of records."""

    checkpoint: ExportCheckpoint
    records: int
    is_proof: bool = False


# -- selection ---------------------------------------------------------------------------------------------------------


class SelectedRecords:
    """One log's records that match a query, as lines, oldest first. Reading them also verifies the hash chain."""

    def __init__(
        self,
        sink: AuditSink,
        query: AuditQuery,
        macs: RecordMacs | None,
        unstored: Iterable[bytes] = (),
        verified: ChainHead | None = None,
    ) -> None:
        """Select records of one log. `unstored` are journal records that are not in the log yet.

        `verified` was the last record in the log when the whole log was verified. It must still be there.
        """
        self._sink = sink
        self._query = query
        self._macs = macs
        self._unstored = list(unstored)
        self._verified = verified
        self._head = ChainHead()
        self._first = self._last = self.count = 0

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield the time and line of each matching audit record, verifying the log on the way.

        All records are verified, even those that do not match. Raises `TamperedLog` if one was changed.
        """
        is_first = True
        for row in self._sink.read_forward():
            if is_first:
                self._head, is_first = ChainHead(row.seq - 1, verify_record(row)), False
            self._head = verify_link(row, self._head)
            if self._verified is not None and row.seq == self._verified.seq and row.hash != self._verified.hash:
                raise TamperedLog(row.seq, "it was replaced while the log was read")
            verify_mac(row, self._macs)
            found = decode_summary(row)
            if self._query.includes(found.kind, found.time):
                self._first = self._first or row.seq
                self._last, self.count = row.seq, self.count + 1
                yield found.time, row_to_line(row)
        if self._verified is not None and self._head.seq < self._verified.seq:
            raise TamperedLog(self._verified.seq, "it was removed while the log was read")
        for record in self._unstored:
            found = decode_summary(StoredRecord(0, "", record))
            if self._query.includes(found.kind, found.time):
                self.count += 1
                yield found.time, b'%b,"unstored":true}' % record[:-1]

    def describe(self) -> dict[str, Any]:
        """Return what an export's last line says about this log: name, record count, range, and the chain's end."""
        facts = {"log": log_name(self._sink.location), "records": self.count}
        if self._first:
            facts |= {"first": self._first, "last": self._last}
        return {**facts, "head": f"{self._head.seq}:{self._head.hash}"}


def row_to_line(row: StoredRecord) -> bytes:
    """Return an audit record as a JSON line: its stored bytes with its hash as the last field."""
    return b'%b,"hash":"%b"}' % (row.body[:-1], row.hash.encode())


# -- export ------------------------------------------------------------------------------------------------------------


def write_export(
    lines: Iterable[bytes],
    out: IO[bytes],
    describe: Callable[[int, str], dict[str, Any]],
    sign: Callable[[bytes], bytes],
) -> int:
    """Write a signed export to `out`: the records, then the signed last line. Return the record count.

    `describe` gets the number of records and the root of the Merkle tree, and returns the fields of the last line.
    Errors from `sign` and `lines` are passed on. The output is then incomplete, and the caller must remove it.
    """
    tree = MerkleTree()
    for line in lines:
        if b"\n" in line or len(line) > MAX_LINE_BYTES or tree.size >= MAX_RECORDS:
            raise AlteredExport(f"record {tree.size + 1} of the export is too long, or there are too many")
        tree.add(hash_leaf(line))
        out.write(line + b"\n")
    fields = {"toolway": "audit checkpoint 1", **describe(tree.size, tree.root().hex())}
    text = _encode(fields)
    signature = sign(_CONTEXT + text)
    out.write(b'%b,"signature":"%b"}\n' % (text[:-1], signature.hex().encode()))
    return tree.size


def check_file(file: IO[bytes], key: PublicKey) -> CheckedExport:
    """Check a signed export, or proofs from one. Raises `AlteredExport` with the reason if anything was changed."""
    lines = read_lines(file)
    first = next(lines, None)
    if first is None:
        raise AlteredExport("the file is empty")
    if first.startswith(_PROOF_HEAD):
        return _check_proofs(first, lines, key)
    tree, last = MerkleTree(), first
    for line in lines:
        tree.add(hash_leaf(last))
        last = line
    checkpoint = check_checkpoint(last, key)
    if checkpoint.size != tree.size:
        raise AlteredExport(f"{checkpoint.size} records were signed, and the file has {tree.size}")
    if checkpoint.root != tree.root().hex():
        raise AlteredExport("a record was changed, replaced or moved: the records do not have the signed root")
    return CheckedExport(checkpoint, tree.size)


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file without their newlines. Raises `AlteredExport` if one is too long or incomplete."""
    while line := file.readline(2 * MAX_LINE_BYTES + 1):  # a proof contains a record as text
        if not line.endswith(b"\n"):
            raise AlteredExport("the last line is incomplete: the file was cut off, or a line is too long")
        yield line[:-1]


def check_checkpoint(line: bytes, key: PublicKey) -> ExportCheckpoint:
    """Return the content of an export's last line. Raises `AlteredExport` if it is not signed with `key`."""
    checkpoint, signature = parse_checkpoint(line)
    if checkpoint.key != key.id:
        raise AlteredExport(f"it is signed with the key {checkpoint.key}, not with {key.id}")
    if not key.verify(signature, _CONTEXT + line[:-_SIGNATURE_BYTES] + b"}"):
        raise AlteredExport("the signature is wrong: the last line was changed, or signed by another key")
    return checkpoint


def parse_checkpoint(line: bytes) -> tuple[ExportCheckpoint, bytes]:
    """Return the content of an export's last line, and its signature, without checking the signature.

    Raises `AlteredExport` if it is not such a line.
    """
    found = _SIGNATURE.fullmatch(line[-_SIGNATURE_BYTES:])
    if not line.startswith(_HEAD) or found is None:
        raise AlteredExport("the last line has no signature: the file was cut off, or it was never signed")
    try:
        checkpoint = msgspec.json.decode(line[:-_SIGNATURE_BYTES] + b"}", type=ExportCheckpoint)
    except ValueError as exc:
        raise AlteredExport(f"the last line cannot be read: {exc}") from None
    return checkpoint, bytes.fromhex(found[1].decode())


# -- proofs ------------------------------------------------------------------------------------------------------------


class _Proof(msgspec.Struct, frozen=True):
    """Proof that a record is in a signed export: the record, its path to the Merkle root, and the signed last line."""

    toolway: str
    index: int
    record: str  # the line of the export
    path: list[str]
    checkpoint: str  # the last line of the export


class _Ids(msgspec.Struct):
    """The fields of a record that `write_proofs` matches: number, call id or hash."""

    seq: int = 0
    call: str = ""
    hash: str = ""
    id: str = ""


def write_proofs(file: IO[bytes], wanted: str) -> list[bytes]:
    """Return proofs for the records in a signed export that have one of the wanted numbers, hashes, or call ids.

    No key is needed. Raises `AlteredExport` if the records do not have the root that the last line states.
    """
    leaves: list[bytes] = []
    found: list[tuple[int, bytes]] = []
    last, tree = b"", MerkleTree()
    for number, line in enumerate(read_lines(file)):
        if number:
            leaves.append(hash_leaf(last))
            tree.add(leaves[-1])
            if _has_id(last, wanted):
                found.append((number - 1, last))
        last = line
    checkpoint, _ = parse_checkpoint(last)
    if (checkpoint.size, checkpoint.root) != (tree.size, tree.root().hex()):
        raise AlteredExport("the records do not have the root of the last line")
    return [_encode_proof(index, line, prove_inclusion(leaves, index), last) for index, line in found]


def _has_id(line: bytes, wanted: str) -> bool:
    if wanted.encode() not in line:
        return False
    try:
        ids = msgspec.json.decode(line, type=_Ids)
    except ValueError:
        return False
    return wanted in (str(ids.seq), ids.call, ids.hash, ids.id)


def _encode_proof(index: int, line: bytes, path: list[bytes], checkpoint: bytes) -> bytes:
    hashes = [each.hex() for each in path]
    return _encode(_Proof("audit proof 1", index, line.decode(), hashes, checkpoint.decode()))


def _check_proofs(line: bytes, rest: Iterator[bytes], key: PublicKey) -> CheckedExport:
    """Check the proofs in a file: all must come from one export, in the order of its records.

    Raises `AlteredExport` if a proof is invalid, repeated, out of order, or from a different export than the first one.
    """
    first, checkpoint = check_proof(line, key)
    last, count = first, 1
    for each in rest:
        proof, _ = check_proof(each, key)
        if proof.checkpoint != first.checkpoint:
            raise AlteredExport("the file has proofs from several exports")
        if proof.index <= last.index:
            raise AlteredExport("a proof was repeated or moved")
        last, count = proof, count + 1
    return CheckedExport(checkpoint, count, is_proof=True)


def check_proof(line: bytes, key: PublicKey) -> tuple[_Proof, ExportCheckpoint]:
    """Check that one record was in a signed export. Raises `AlteredExport` if the proof does not show that."""
    try:
        proof = msgspec.json.decode(line, type=_Proof)
        path = [bytes.fromhex(each) for each in proof.path]
    except ValueError as exc:
        raise AlteredExport(f"the proof cannot be read: {exc}") from None
    # Encoded again, it must be the same text: then no other text says the same, and every change is found.
    is_plain = [each.hex() for each in path] == proof.path and all(len(each) == HASH_BYTES for each in path)
    if not is_plain or _encode(proof) != line:
        raise AlteredExport("the proof is not in the form in which it was written")
    checkpoint = check_checkpoint(proof.checkpoint.encode(), key)
    root = root_from_proof(hash_leaf(proof.record.encode()), proof.index, checkpoint.size, path)
    if root is None or root.hex() != checkpoint.root:
        raise AlteredExport("the record was not in the export, or was changed: its path does not lead to the root")
    return proof, checkpoint
