"""Vectors of tools in a file of the cache folder, so a restart does not embed them again.

One file per model: a head (format, model, width, count, MAC of the rest), then a key and a vector of 16-bit floats for
each text. A file that is damaged, of another model, or written by another program counts as missing. Other programs can
write the cache folder, so the key of the MAC is in the state folder. The number of vectors is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from hmac import compare_digest
from itertools import islice
from pathlib import Path
from typing import Final

from toolway.secrets.encrypted_file import read_or_create, read_private

MAX_VECTORS: Final = 60_000
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
_HEAD: Final = struct.Struct(
    "<8s32sII32s"
)  # format, SHA-256 of the model's identity, bytes of a vector, count, SHA-256
_FORMAT: Final = b"twvec\0\0\1"
_KEY_BYTES: Final = 32


class FileVectorStore:
    """Vector store in one file. Reading and writing happen in a thread; disk errors are ignored."""

    def __init__(self, folder: Path, key_file: Path, identity: str, max_vectors: int = MAX_VECTORS) -> None:
        """Create the store of one model's vectors. `key_file` has the MAC key; it is created with the first vectors."""
        self._model = hashlib.sha256(identity.encode()).digest()
        self._path = folder / f"{self._model.hex()[:16]}.vectors"
        self._key_file = key_file
        self._max_vectors = max_vectors

    async def load(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        wanted = frozenset(keys)
        found = await asyncio.to_thread(self._read)
        return {key: vector for key, vector in found.items() if key in wanted}

    async def save(self, vectors: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> None:
        await asyncio.to_thread(self._write, dict(vectors), tuple(wanted))

    def _read(self) -> dict[bytes, bytes]:
        """Return all vectors in the file, by the hash of their text.

        Empty if the file is missing, damaged or forged.
        """
        try:
            key = read_private(self._key_file)
            if self._path.stat().st_size > MAX_FILE_BYTES:
                return {}
            content = self._path.read_bytes()
            form, model, width, count, digest = _HEAD.unpack_from(content)
        except (OSError, struct.error):
            return {}
        body = memoryview(content)[_HEAD.size :]
        each = _KEY_BYTES + width
        if form != _FORMAT or model != self._model or len(body) != count * each or not width:
            return {}
        if not compare_digest(_mac(key, model, body), digest):
            return {}
        rows = range(0, len(body), each)
        return {bytes(body[at : at + _KEY_BYTES]): bytes(body[at + _KEY_BYTES : at + each]) for at in rows}

    def _write(self, vectors: dict[bytes, bytes], wanted: tuple[bytes, ...]) -> None:
        """Add embedding vectors to the file, which is replaced atomically."""
        if not vectors:
            return
        width = len(next(iter(vectors.values())))
        merged = {key: vector for key, vector in {**self._read(), **vectors}.items() if len(vector) == width}
        first = [key for key in dict.fromkeys(wanted) if key in merged]
        kept = set(islice(dict.fromkeys([*first, *reversed(merged)]), self._max_vectors))  # in use, then newest
        body = b"".join(key + vector for key, vector in merged.items() if key in kept and len(key) == _KEY_BYTES)
        with contextlib.suppress(OSError):
            mac = _mac(read_or_create(self._key_file, lambda: os.urandom(_KEY_BYTES)), self._model, body)
            head = _HEAD.pack(_FORMAT, self._model, width, len(body) // (_KEY_BYTES + width), mac)
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(head)
                    file.write(body)
                os.replace(name, self._path)
            except OSError:
                os.unlink(name)
                raise


def _mac(key: bytes, model: bytes, body: bytes | memoryview) -> bytes:
    mac = hashlib.blake2b(model, key=key[:64], digest_size=32, person=b"toolway vectors")
    mac.update(body)
    return mac.digest()
