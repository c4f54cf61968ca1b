"""Embeddings for tool search in the database: what one node embedded, no other node pays for again.

Each vector is stored under tenant, model and hash of its text. Rows carry a MAC, so write access to the database
alone cannot boost a tool in the results. The number of vectors per tenant and model is bounded; the oldest are
removed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import and_, delete, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.engine import db_now, upsert_many
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.tables import ToolVectorRow
from toolway.search.vectors import EmbeddingError

MAX_VECTORS: Final = 60_000  # per tenant and model
KEEP_UNUSED_MODEL_S: Final = 30 * 86_400.0  # seconds after which vectors of another model are removed
ROWS_PER_QUERY: Final = 500
ROWS_PER_WRITE: Final = 200
log = logging.getLogger("toolway.cluster")


class DbVectorStore:
    """`VectorStore` of one model and tenant in the cluster database."""

    def __init__(
        self, engine: AsyncEngine, tenant: str, integrity: Integrity, identity: str, max_vectors: int = MAX_VECTORS
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._integrity = integrity
        self._model = hashlib.sha256(identity.encode()).hexdigest()
        self._max_vectors = max_vectors

    async def load(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return the stored vectors for these hashes, without missing ones.

        Raises `EmbeddingError` if the database does not respond. Ranking by words until the database is back is
        cheaper than embedding everything again.
        """
        found: dict[bytes, bytes] = {}
        try:
            for begin in range(0, len(keys), ROWS_PER_QUERY):
                ids = [key.hex() for key in keys[begin : begin + ROWS_PER_QUERY]]
                query = select(ToolVectorRow.id, ToolVectorRow.vector, ToolVectorRow.mac).where(
                    ToolVectorRow.tenant == self._tenant, ToolVectorRow.model == self._model, ToolVectorRow.id.in_(ids)
                )
                async with self._engine.connect() as db:
                    rows = (await db.execute(query)).all()
                found |= {
                    bytes.fromhex(row.id): bytes(row.vector)
                    for row in rows
                    if self._integrity.is_signed(row.mac, *self._content(row.id, row.vector))
                }
        except (SQLAlchemyError, OSError) as exc:
            raise EmbeddingError(f"the database does not respond: {type(exc).__name__}") from exc
        return found

    async def save(self, vectors: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> None:
        """Store vectors, and delete the oldest if there are too many. Failures are only logged."""
        rows = [
            {
                "tenant": self._tenant,
                "model": self._model,
                "id": key.hex(),
                "vector": vector,
                "mac": self._integrity.sign(*self._content(key.hex(), vector)),
                "saved_at": db_now(),
            }
            for key, vector in sorted(vectors.items())  # in one order: two nodes that save do not block each other
        ]
        try:
            for begin in range(0, len(rows), ROWS_PER_WRITE):
                async with self._engine.begin() as db:
                    await upsert_many(db, ToolVectorRow, rows[begin : begin + ROWS_PER_WRITE])
            await self._remove_old()
        except (SQLAlchemyError, OSError) as exc:
            log.warning("tool search vectors were not stored: %s", type(exc).__name__)

    async def _remove_old(self) -> None:
        ours = and_(ToolVectorRow.tenant == self._tenant, ToolVectorRow.model == self._model)
        unused = and_(
            ToolVectorRow.tenant == self._tenant,
            ToolVectorRow.model != self._model,
            ToolVectorRow.saved_at < db_now() - KEEP_UNUSED_MODEL_S,
        )
        async with self._engine.begin() as db:
            await db.execute(delete(ToolVectorRow).where(unused))
            count = (await db.execute(select(func.count()).select_from(ToolVectorRow).where(ours))).scalar_one()
            if count > self._max_vectors:
                oldest = select(ToolVectorRow.id).where(ours).order_by(ToolVectorRow.saved_at, ToolVectorRow.id)
                ids = oldest.limit(count - self._max_vectors)
                await db.execute(delete(ToolVectorRow).where(ours, ToolVectorRow.id.in_(ids.scalar_subquery())))

    def _content(self, id: str, vector: bytes) -> tuple[str, str, str, str, bytes]:
        return "tool_vectors", self._tenant, self._model, id, vector
