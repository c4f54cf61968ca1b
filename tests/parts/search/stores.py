"""Stores of vectors, as a gateway and a node of a cluster have them."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.part_database import ClusterDatabase
from toolway.part_api.database import SqliteDatabase
from toolway.parts.search import GatewaySearch
from toolway.parts.search.vector_store import TableVectorStore

KEY = b"k" * 32
FILE = "search.sqlite"


def file_store(folder: Path, model: str = "minilm", key: bytes = KEY, limit: int = 100_000) -> TableVectorStore:
    return TableVectorStore(SqliteDatabase(folder / FILE, GatewaySearch()), key, model, limit)


def shared_store(
    engine: AsyncEngine, tenant: str = "t", model: str = "minilm", key: bytes = KEY, limit: int = 100_000
) -> TableVectorStore:
    return TableVectorStore(ClusterDatabase(engine, tenant), key, model, limit)
