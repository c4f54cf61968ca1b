"""Signed exports: every change of a file or a proof is found with the file and the public key alone."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable

import pytest

from toolway.audit.signing import KeySigner, PublicKey
from toolway.audit.sink import ChainHead, encode_record, link_records
from toolway.parts.audit.merkle import MerkleTree, hash_leaf, prove_inclusion, root_from_proof
from toolway.parts.audit.signed_export import AlteredExport, check_file, write_export, write_proofs

CHANGES = 4000


@pytest.fixture(scope="module")
def signer() -> KeySigner:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return KeySigner(Ed25519PrivateKey.generate())


def lines(count: int) -> list[bytes]:
    entries = [encode_record("call.outcome", 1_700_000_000.0 + n, n, {"call": f"c{n}"}) for n in range(count)]
    rows = link_records(ChainHead(), entries)
    return [b'%b,"hash":"%b"}' % (row.body[:-1], row.hash.encode()) for row in rows]


def export(signer: KeySigner, given: list[bytes]) -> bytes:
    out = io.BytesIO()
    facts = {"time": "2026-11-17T00:00:00.000000Z", "key": signer.public.id, "selection": {}, "logs": []}
    write_export(given, out, lambda size, root: {**facts, "size": size, "root": root}, signer.sign)
    return out.getvalue()


def is_intact(data: bytes, key: PublicKey) -> bool:
    try:
        check_file(io.BytesIO(data), key)
    except AlteredExport:
        return False
    return True


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 33])
def test_root_and_proofs_follow_rfc_6962(count: int) -> None:
    leaves = [hash_leaf(b"%d" % n) for n in range(count)]
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)

    def root(some: list[bytes]) -> bytes:
        """The definition of RFC 6962, 2.1, word by word."""
        if len(some) < 2:
            return some[0] if some else hashlib.sha256().digest()
        k = max(1 << n for n in range(10) if 1 << n < len(some))
        return hashlib.sha256(b"\1" + root(some[:k]) + root(some[k:])).digest()

    assert tree.root() == root(leaves)
    for index, leaf in enumerate(leaves):
        path = prove_inclusion(leaves, index)
        assert root_from_proof(leaf, index, count, path) == tree.root()
        assert root_from_proof(leaf, index + 1, count, path) != tree.root()
        assert root_from_proof(leaf, index, count, [*path, leaf]) is None
        assert not path or root_from_proof(leaf, index, count, path[:-1]) != tree.root()


def test_rfc_6962_test_vectors() -> None:
    """The test vectors of certificate-transparency-go, for trees of 1, 2 and 3 leaves."""
    leaves = [b"", b"\x00", b"\x10"]
    roots = [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    ]
    tree = MerkleTree()
    for leaf, expected in zip(leaves, roots, strict=True):
        tree.add(hash_leaf(leaf))
        assert tree.root().hex() == expected


def flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def remove_line(data: bytes, rng: random.Random) -> bytes:
    found = data.splitlines(keepends=True)
    del found[rng.randrange(len(found))]
    return b"".join(found)


def swap_lines(data: bytes, rng: random.Random) -> bytes:
    found = data.splitlines(keepends=True)
    a, b = rng.sample(range(len(found)), 2)
    found[a], found[b] = found[b], found[a]
    return b"".join(found)


def repeat_line(data: bytes, rng: random.Random) -> bytes:
    found = data.splitlines(keepends=True)
    found.insert(rng.randrange(len(found) + 1), rng.choice(found))
    return b"".join(found)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))] if rng.random() < 0.7 else data[rng.randrange(1, len(data)) :]


def edit(data: bytes, rng: random.Random) -> bytes:
    """Replace, insert or remove a few bytes anywhere: spaces, digits, line ends, zeros."""
    at, size = rng.randrange(len(data)), rng.randrange(4)
    new = rng.choice([b" ", b"\n", b"\0", b"0", b"}\n{", b'"', b"", rng.randbytes(3)])
    return data[:at] + new + data[at + size :]


def forge_record(data: bytes, rng: random.Random) -> bytes:
    """Change what a record says, with its own hash computed again."""
    found = data.splitlines(keepends=True)
    at = rng.randrange(len(found) - 1)
    body = found[at].split(b',"hash":')[0].replace(b'"call":"c', b'"call":"x') + b"}"
    found[at] = b'%b,"hash":"%b"}\n' % (body[:-1], hashlib.sha256(body).hexdigest().encode())
    return b"".join(found)


def resign(data: bytes, rng: random.Random) -> bytes:
    """Compute size and root again for other records; only the signature cannot be made."""
    found = data.splitlines()
    kept = found[: rng.randrange(len(found) - 1)]
    tree = MerkleTree()
    for line in kept:
        tree.add(hash_leaf(line))
    last = json.loads(found[-1]) | {"size": tree.size, "root": tree.root().hex()}
    return b"".join(line + b"\n" for line in [*kept, json.dumps(last, separators=(",", ":")).encode()])


CHANGERS: list[Callable[[bytes, random.Random], bytes]] = [
    *(flip, remove_line, swap_lines, repeat_line, cut, edit, forge_record, resign)
]


def test_every_change_of_an_export_is_detected(signer: KeySigner) -> None:
    data, rng = export(signer, lines(20)), random.Random(6962)
    assert is_intact(data, signer.public)
    tried = 0
    for number in range(CHANGES):
        change = CHANGERS[number % len(CHANGERS)]
        changed = change(data, rng)
        for _ in range(rng.randrange(2)):
            changed = rng.choice(CHANGERS[:1])(changed, rng) if changed else changed
        if changed == data:
            continue  # an edit that replaced a byte by itself, or a flip that was taken back
        tried += 1
        assert not is_intact(changed, signer.public), change.__name__
    assert tried > CHANGES * 0.9


def test_every_change_of_a_proof_is_detected(signer: KeySigner) -> None:
    data = export(signer, lines(20))
    [proof] = write_proofs(io.BytesIO(data), "c11")
    whole, rng = proof + b"\n", random.Random(1)
    found = check_file(io.BytesIO(whole), signer.public)
    assert (found.is_proof, found.records, found.checkpoint.size) == (True, 1, 20)
    for number in range(CHANGES // 2):
        changed = (flip, cut, edit)[number % 3](whole, rng)
        assert changed == whole or not is_intact(changed, signer.public)
    fields = json.loads(proof)
    for name, value in (("index", 12), ("record", lines(20)[12].decode()), ("path", fields["path"][::-1])):
        forged = json.dumps(fields | {name: value}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        assert not is_intact(forged, signer.public), name


def test_export_without_valid_signature_is_rejected(signer: KeySigner) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    other = KeySigner(Ed25519PrivateKey.generate())
    assert not is_intact(export(other, lines(3)), signer.public)
    renamed = export(other, lines(3)).replace(other.public.id.encode(), signer.public.id.encode())
    assert not is_intact(renamed, signer.public)
    assert not is_intact(b"".join(line + b"\n" for line in lines(3)), signer.public)
    assert not is_intact(b"", signer.public)
    assert is_intact(export(signer, []), signer.public)


def test_proofs_are_found_by_number_hash_and_call(signer: KeySigner) -> None:
    data = export(signer, lines(20))
    for wanted in ("12", "c11", json.loads(lines(20)[11])["hash"]):
        [proof] = write_proofs(io.BytesIO(data), wanted)
        assert json.loads(proof)["index"] == 11
    assert write_proofs(io.BytesIO(data), "c99") == []
    with pytest.raises(AlteredExport):
        write_proofs(io.BytesIO(data.replace(b'"call":"c3"', b'"call":"c4"')), "c11")
