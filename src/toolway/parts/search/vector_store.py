"""Embeddings for tool search, in the gateway's file or the cluster's database, so no tool is embedded twice.

Each vector is stored under the model and its text's hash. Rows carry a MAC, so write access to the database alone is
not enough to boost a tool in the results. The number of vectors per model is bounded.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

from toolway.part_api.database import Database, DatabaseError, Table, Transaction

VECTORS: Final = Table("search_vectors", {"model": "TEXT", "saved_at": "DOUBLE", "vector": "BLOB", "mac": "BLOB"})
TABLES: Final = (VECTORS,)
MAX_VECTORS: Final = 60_000  # of a model
KEEP_UNUSED_MODEL_S: Final = 30 * 86_400.0  # seconds after which vectors of another model are removed
ROWS_PER_QUERY: Final = 500
ROWS_PER_WRITE: Final = 200
_log = logging.getLogger("toolway.search")


class EmbeddingError(Exception):
    """Raised when an embedder failed. The message says why, without secrets."""


class VectorStore(Protocol):
    """Stores one model's vectors by the hash of the text, as bytes of 16-bit floats."""

    async def load(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]: ...

    async def save(self, vectors: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> None:
        """Store embedding vectors, each under its text's hash.

        If the store is full, the vectors of `wanted`, which are the strings in use, are kept first.
        """


class NoVectorStore:
    """A vector store that keeps nothing, for a hub without a cache folder."""

    async def load(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        return {}

    async def save(self, vectors: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> None: ...


class TableVectorStore:
    """The `VectorStore` of one model in the gateway's tables. `key` is one of the part's secrets.

    The model's name in the table is derived from that key, so each tenant of a cluster has a different one.
    """

    def __init__(self, database: Database, key: bytes, identity: str, max_vectors: int = MAX_VECTORS) -> None:
        self._database = database
        self._key = key
        self._model = hmac.new(key, identity.encode(), hashlib.sha256).hexdigest()
        self._max_vectors = max_vectors

    async def load(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return the stored vectors for these hashes. Hashes without a vector are left out.

        Raises `EmbeddingError` if the database does not respond. It is cheaper to rank by words until the database is
        back than to embed everything again.
        """
        found: dict[bytes, bytes] = {}
        try:
            for begin in range(0, len(keys), ROWS_PER_QUERY):
                found |= await self._database.read(partial(self._select, keys[begin : begin + ROWS_PER_QUERY]))
        except DatabaseError as exc:
            raise EmbeddingError(f"the database does not respond: {exc}") from exc
        return found

    async def save(self, vectors: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> None:
        """Store vectors. If the store gets too full, delete the oldest ones that are not `wanted`.

        Failures are only logged.
        """
        ordered = sorted(vectors.items())  # in one order: two nodes that save do not block each other
        in_use = frozenset(map(self._row_key, islice(dict.fromkeys(wanted), self._max_vectors)))
        try:
            for begin in range(0, len(ordered), ROWS_PER_WRITE):
                await self._database.run(partial(self._put, dict(ordered[begin : begin + ROWS_PER_WRITE])))
            while await self._database.run(partial(self._remove_some, in_use)):
                pass
        except DatabaseError as exc:
            _log.warning("vectors of the tool search were not stored: %s", exc)

    def _select(self, keys: Sequence[bytes], db: Transaction) -> Mapping[bytes, bytes]:
        names = {f"key{number}": self._row_key(key) for number, key in enumerate(keys)}
        rows = db.select(VECTORS, f'"key" IN ({", ".join(f":{name}" for name in names)})', **names)
        found = {}
        for key, name in zip(keys, names.values(), strict=True):
            if name in rows:
                _, _, vector, mac = rows[name]
                if hmac.compare_digest(bytes(mac), self._mac(name, bytes(vector))):
                    found[key] = bytes(vector)
        return found

    def _put(self, vectors: Mapping[bytes, bytes], db: Transaction) -> None:
        named = {self._row_key(key): vector for key, vector in vectors.items()}
        db.put_rows(
            VECTORS, {name: (self._model, db.now, vector, self._mac(name, vector)) for name, vector in named.items()}
        )

    def _remove_some(self, in_use: frozenset[str], db: Transaction) -> bool:
        """Remove vectors of unused models, and some of this model's if it has too many.

        Return True if more have to be removed.
        """
        db.delete(VECTORS, "model <> :model AND saved_at < :end", model=self._model, end=db.now - KEEP_UNUSED_MODEL_S)
        surplus = db.count(VECTORS, "model = :model", model=self._model) - self._max_vectors
        if surplus <= 0:
            return False
        query = f'SELECT "key" FROM {VECTORS.name} WHERE model = :model ORDER BY saved_at, "key" LIMIT {ROWS_PER_QUERY}'
        oldest = db.select(VECTORS, f'"key" IN ({query})', model=self._model)
        unused = [key for key, row in sorted(oldest.items(), key=lambda each: each[1][1]) if key not in in_use]
        for key in unused[:surplus]:
            db.delete(VECTORS, '"key" = :key', key=key)
        if not unused:  # they are among the newest then, and others are the oldest
            db.put_rows(VECTORS, {key: (model, db.now, *rest) for key, (model, _, *rest) in oldest.items()})
        return surplus > len(unused)

    def _row_key(self, key: bytes) -> str:
        return f"{self._model[:32]}{key.hex()}"

    def _mac(self, name: str, vector: bytes) -> bytes:
        return hmac.new(self._key, b"%b %b" % (name.encode(), vector), hashlib.sha256).digest()
