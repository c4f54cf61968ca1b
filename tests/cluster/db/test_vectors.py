"""Vectors of the tool search that nodes share, on SQLite and on PostgreSQL."""

from __future__ import annotations

import hashlib

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")

from tests.search.test_vectors import CountingEmbedder, make_tools
from toolway.cluster.db.engine import open_engine
from toolway.cluster.db.integrity import Integrity
from toolway.cluster.db.tables import ToolVectorRow
from toolway.cluster.db.vectors import KEEP_UNUSED_MODEL_S, DbVectorStore
from toolway.search.vectors import EmbeddingError, ModelVectors

pytestmark = pytest.mark.anyio
KEY = b"k" * 32


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def vector(number: int) -> bytes:
    return number.to_bytes(2, "little") * 384


def store(engine: AsyncEngine, tenant="t", model="minilm", tenant_key=KEY, limit=100_000) -> DbVectorStore:
    return DbVectorStore(engine, tenant, Integrity(tenant_key), model, limit)


async def save(into: DbVectorStore, numbers) -> None:
    await into.save({key(each): vector(each) for each in numbers}, [])


async def load(source: DbVectorStore, numbers) -> list[int]:
    found = await source.load([key(each) for each in numbers])
    assert all(found[key(each)] == vector(each) for each in numbers if key(each) in found)
    return [each for each in numbers if key(each) in found]


async def test_stored_vectors_are_found_by_another_node(engine: AsyncEngine) -> None:
    await save(store(engine), range(1_100))
    assert await load(store(engine), range(1_090, 1_110)) == list(range(1_090, 1_100))
    assert await load(store(engine), range(1_100)) == list(range(1_100))


async def test_vectors_are_separate_per_tenant_and_model(engine: AsyncEngine) -> None:
    await save(store(engine), range(3))
    assert await load(store(engine, tenant="other"), range(3)) == []
    assert await load(store(engine, model="other"), range(3)) == []


async def test_altered_vector_row_is_not_used(engine: AsyncEngine) -> None:
    await save(store(engine), range(3))
    async with engine.begin() as db:
        await db.execute(update(ToolVectorRow).where(ToolVectorRow.id == key(1).hex()).values(vector=vector(2)))
    assert await load(store(engine), range(3)) == [0, 2]
    assert await load(store(engine, tenant_key=b"x" * 32), range(3)) == []
    await save(store(engine), [1])
    assert await load(store(engine), range(3)) == [0, 1, 2]


async def test_oldest_vectors_are_removed_over_the_limit(engine: AsyncEngine) -> None:
    small = store(engine, limit=5)
    await save(small, range(4))
    async with engine.begin() as db:
        await db.execute(update(ToolVectorRow).values(saved_at=ToolVectorRow.saved_at - 100))
    await save(small, range(4, 7))
    found = await load(small, range(7))
    assert len(found) == 5 and found[-3:] == [4, 5, 6]


async def test_vectors_of_an_unused_model_are_removed(engine: AsyncEngine) -> None:
    await save(store(engine, model="old"), range(3))
    await save(store(engine, tenant="other", model="old"), range(3))
    async with engine.begin() as db:
        await db.execute(update(ToolVectorRow).values(saved_at=ToolVectorRow.saved_at - KEEP_UNUSED_MODEL_S - 1))
    await save(store(engine), [1])
    async with engine.connect() as db:
        tenants = (await db.execute(select(ToolVectorRow.tenant))).scalars().all()
    assert sorted(tenants) == ["other"] * 3 + ["t"]


async def test_second_node_embeds_nothing(engine: AsyncEngine) -> None:
    tools = make_tools(*(f"mail_{number}" for number in range(70)))
    asked = []
    for _ in range(2):
        embedder = CountingEmbedder()
        source = ModelVectors(embedder, store(engine))
        await source.prepare([], tools)
        await source.wait_complete()
        asked.append(len(embedder.asked))
        await source.close()
    assert asked == [70, 0]


async def test_unavailable_database_fails_only_semantic_search(engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        await db.execute(text("ALTER TABLE tool_vectors RENAME TO gone"))
    try:
        with pytest.raises(EmbeddingError, match="the database does not respond"):
            await load(store(engine), [1])
        await save(store(engine), [1])
    finally:
        async with engine.begin() as db:
            await db.execute(text("ALTER TABLE gone RENAME TO tool_vectors"))
    nowhere = open_engine("postgresql://127.0.0.1:9/none")
    with pytest.raises(EmbeddingError, match="the database does not respond"):
        await load(store(nowhere), [1])
    await nowhere.dispose()
