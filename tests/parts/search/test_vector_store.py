"""Vectors of tools are embedded once: in the file of a gateway, and in the database of a cluster."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

pytest.importorskip("numpy", reason="numpy is not installed (toolway[search]): no vectors")

from tests.parts.search.stores import FILE, file_store, shared_store
from tests.parts.search.test_vectors import CountingEmbedder, make_tools
from toolway.cluster.db.engine import open_engine
from toolway.parts.search import vector_store
from toolway.parts.search.vector_store import KEEP_UNUSED_MODEL_S, EmbeddingError, TableVectorStore
from toolway.parts.search.vectors import ModelVectors

pytestmark = pytest.mark.anyio
OpenStore = Callable[..., TableVectorStore]


@pytest.fixture(params=["file", "cluster"])
def store(request: pytest.FixtureRequest, tmp_path: Path, engine: AsyncEngine) -> OpenStore:
    """Function that opens a store; each one as another process has it."""
    if request.param == "file":
        return lambda **options: file_store(tmp_path, **options)
    return lambda **options: shared_store(engine, **options)


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def vector(number: int) -> bytes:
    return number.to_bytes(2, "little") * 384


async def save(into: TableVectorStore, numbers: Iterable[int], wanted: Iterable[int] = ()) -> None:
    await into.save({key(each): vector(each) for each in numbers}, [key(each) for each in wanted])


async def load(source: TableVectorStore, numbers: Iterable[int]) -> list[int]:
    numbers = list(numbers)
    found = await source.load([key(each) for each in numbers])
    assert all(found[key(each)] == vector(each) for each in numbers if key(each) in found)
    return [each for each in numbers if key(each) in found]


async def test_stored_vectors_are_found_by_another_node(store: OpenStore) -> None:
    await save(store(), range(1_100))
    assert await load(store(), range(1_090, 1_110)) == list(range(1_090, 1_100))
    assert await load(store(), range(1_100)) == list(range(1_100))


async def test_models_do_not_share_vectors(store: OpenStore) -> None:
    await save(store(), range(3))
    assert await load(store(model="other"), range(3)) == []


async def test_vectors_are_separate_per_tenant(engine: AsyncEngine) -> None:
    await save(shared_store(engine), range(3))
    assert await load(shared_store(engine, tenant="other"), range(3)) == []


async def test_new_vectors_are_added(store: OpenStore) -> None:
    await save(store(), range(3))
    await save(store(), range(3, 6))
    assert await load(store(), range(6)) == list(range(6))


async def test_vectors_written_with_another_key_are_not_used(store: OpenStore) -> None:
    await save(store(key=b"x" * 32), [1])
    assert await load(store(), [1]) == []
    await save(store(), [2])
    assert await load(store(), [1, 2]) == [2]


async def test_altered_vector_row_is_not_used(engine: AsyncEngine) -> None:
    await save(shared_store(engine), range(3))
    async with engine.begin() as db:
        changed = await db.execute(
            text("UPDATE search_vectors SET vector = :new WHERE vector = :old"), {"new": vector(2), "old": vector(1)}
        )
        assert changed.rowcount == 1
    assert await load(shared_store(engine), range(3)) == [0, 2]
    assert await load(shared_store(engine, key=b"x" * 32), range(3)) == []
    await save(shared_store(engine), [1])
    assert await load(shared_store(engine), range(3)) == [0, 1, 2]


async def test_vector_of_another_text_is_not_used(tmp_path: Path) -> None:
    await save(file_store(tmp_path), range(2))
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE search_vectors SET (vector, mac) = (SELECT vector, mac FROM search_vectors LIMIT 1)")
    assert len(await load(file_store(tmp_path), range(1))) + len(await load(file_store(tmp_path), [1])) == 1


async def test_oldest_vectors_are_removed_over_the_limit(engine: AsyncEngine) -> None:
    small = shared_store(engine, limit=5)
    await save(small, range(4))
    async with engine.begin() as db:
        await db.execute(text("UPDATE search_vectors SET saved_at = saved_at - 100"))
    await save(small, range(4, 7))
    found = await load(small, range(7))
    assert len(found) == 5 and found[-3:] == [4, 5, 6]


async def test_full_store_keeps_vectors_in_use_then_newest(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_store, "ROWS_PER_QUERY", 2)
    small = store(limit=6)
    for number in range(6):
        await save(small, [number])
    await save(small, [6, 7], wanted=[0, 1, 6, 7])
    assert await load(small, range(8)) == [0, 1, 4, 5, 6, 7]


async def test_vectors_of_another_tenant_stay(engine: AsyncEngine) -> None:
    await save(shared_store(engine, tenant="other", key=b"o" * 32), range(3))
    small = shared_store(engine, limit=2)
    await save(small, range(3))
    assert len(await load(small, range(3))) == 2
    assert await load(shared_store(engine, tenant="other", key=b"o" * 32), range(3)) == [0, 1, 2]


async def test_vectors_of_an_unused_model_are_removed(engine: AsyncEngine) -> None:
    await save(shared_store(engine, model="old"), range(3))
    await save(shared_store(engine, tenant="other", model="old", key=b"o" * 32), range(3))
    async with engine.begin() as db:
        await db.execute(
            text("UPDATE search_vectors SET saved_at = saved_at - :past"), {"past": KEEP_UNUSED_MODEL_S + 1}
        )
    await save(shared_store(engine), [1])
    async with engine.connect() as db:
        tenants = (await db.execute(text("SELECT tenant FROM search_vectors"))).scalars().all()
    assert sorted(tenants) == ["other"] * 3 + ["t"]


async def test_second_node_embeds_nothing(store: OpenStore) -> None:
    tools = make_tools(*(f"mail_{number}" for number in range(70)))
    asked = []
    for _ in range(2):
        embedder = CountingEmbedder()
        source = ModelVectors(embedder, store())
        await source.prepare([], tools)
        await source.wait_complete()
        asked.append(len(embedder.asked))
        await source.close()
    assert asked == [70, 0]


async def test_unavailable_database_fails_only_semantic_search(engine: AsyncEngine) -> None:
    async with engine.begin() as db:
        await db.execute(text("ALTER TABLE search_vectors RENAME TO gone"))
    try:
        with pytest.raises(EmbeddingError, match="the database does not respond"):
            await load(shared_store(engine), [1])
        await save(shared_store(engine), [1])
    finally:
        async with engine.begin() as db:
            await db.execute(text("ALTER TABLE gone RENAME TO search_vectors"))
    nowhere = open_engine("postgresql://127.0.0.1:9/none")
    with pytest.raises(EmbeddingError, match="the database does not respond"):
        await load(shared_store(nowhere), [1])
    await nowhere.dispose()


async def test_damaged_file_fails_only_semantic_search(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(EmbeddingError, match="the database does not respond"):
        await load(file_store(tmp_path), [1])
    await save(file_store(tmp_path), [1])


async def test_vector_file_is_private(tmp_path: Path) -> None:
    await save(file_store(tmp_path), range(2))
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
