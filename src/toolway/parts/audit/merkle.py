"""Merkle tree over lines (RFC 6962): root, inclusion proofs, and checking them. No I/O.

    leaf    SHA-256(0x00 || line)
    node    SHA-256(0x01 || left || right); the left subtree has the largest power of two below the size

The prefixes keep a leaf from being read as a node. The hash of an empty tree is the SHA-256 of nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

HASH_BYTES: Final = 32
MAX_PATH: Final = 63  # hashes in a proof: more than any tree that can be stored has levels


def hash_leaf(line: bytes) -> bytes:
    return hashlib.sha256(b"\0" + line).digest()


def _hash_node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


class MerkleTree:
    """A Merkle tree: add leaves to it, and read its root hash. It stores one hash per level, not the leaves."""

    def __init__(self) -> None:
        self._complete: list[bytes] = []  # roots of complete subtrees, the largest first
        self.size = 0

    def add(self, leaf: bytes) -> None:
        """Append a leaf to the tree, given its hash from `hash_leaf`."""
        self.size += 1
        node, rest = leaf, self.size
        while rest % 2 == 0:  # two subtrees of equal size become one
            node, rest = _hash_node(self._complete.pop(), node), rest // 2
        self._complete.append(node)

    def root(self) -> bytes:
        """Return the root hash over all leaves that were added to the tree."""
        if not self._complete:
            return hashlib.sha256().digest()
        found = self._complete[-1]
        for left in reversed(self._complete[:-1]):
            found = _hash_node(left, found)
        return found


def prove_inclusion(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return a leaf's inclusion proof: the sibling hashes on its path to the root, lowest first.

    Raises `IndexError` if the leaf does not exist.
    """
    if not 0 <= index < len(leaves):
        raise IndexError(index)
    path, first, size = [], 0, len(leaves)
    while size > 1:
        left = 1 << (size - 1).bit_length() - 1
        if index - first < left:
            path.append(_root(leaves, first + left, size - left))
            size = left
        else:
            path.append(_root(leaves, first, left))
            first, size = first + left, size - left
    return path[::-1]


def _root(leaves: Sequence[bytes], first: int, size: int) -> bytes:
    tree = MerkleTree()
    for leaf in leaves[first : first + size]:
        tree.add(leaf)
    return tree.root()


def root_from_proof(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the Merkle root that an inclusion proof yields, or None if the proof does not fit a tree of this size.

    See RFC 9162, 2.1.3.2.
    """
    if not 0 <= index < size or len(path) > MAX_PATH:
        return None
    node, at, last = leaf, index, size - 1
    for each in path:
        if last == 0:
            return None
        if at % 2 or at == last:
            node = _hash_node(each, node)
            while not at % 2 and at:
                at, last = at // 2, last // 2
        else:
            node = _hash_node(node, each)
        at, last = at // 2, last // 2
    return node if last == 0 else None
