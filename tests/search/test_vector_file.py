"""Tests of the file with the vectors of tools."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from toolway.search.vector_file import FileVectorStore


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def vector(number: int) -> bytes:
    return number.to_bytes(2, "little") * 4


def open_store(folder: Path, identity="model", limit=100) -> FileVectorStore:
    return FileVectorStore(folder / "cache", folder / "state" / "key", identity, limit)


def write(folder: Path, numbers, *, identity="model", wanted=(), limit=100) -> FileVectorStore:
    store = open_store(folder, identity, limit)
    asyncio.run(store.save({key(each): vector(each) for each in numbers}, [key(each) for each in wanted]))
    return store


def read(store: FileVectorStore, numbers) -> list[int]:
    found = asyncio.run(store.load([key(each) for each in numbers]))
    assert all(found[key(each)] == vector(each) for each in numbers if key(each) in found)
    return [each for each in numbers if key(each) in found]


def test_vectors_are_found_by_another_process(tmp_path):
    write(tmp_path, range(5))
    assert read(open_store(tmp_path), range(3, 8)) == [3, 4]


def test_models_do_not_share_vectors(tmp_path):
    write(tmp_path, range(5))
    assert read(open_store(tmp_path, "other model"), range(5)) == []


def test_file_of_another_model_is_not_used(tmp_path):
    write(tmp_path, range(5))
    (file,) = (tmp_path / "cache").iterdir()
    write(tmp_path, [9], identity="other model")
    (other,) = set((tmp_path / "cache").iterdir()) - {file}
    other.write_bytes(file.read_bytes())
    assert read(open_store(tmp_path, "other model"), range(10)) == []


def test_new_vectors_are_added(tmp_path):
    write(tmp_path, range(3))
    assert read(write(tmp_path, range(3, 6)), range(6)) == list(range(6))


def test_full_file_keeps_vectors_in_use_then_newest(tmp_path):
    write(tmp_path, range(6), limit=6)
    store = write(tmp_path, [6, 7], wanted=[0, 6, 7], limit=6)
    assert read(store, range(8)) == [0, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("at", [0, 9, 41, 45, 50, 79, 100, -1])
def test_damaged_file_counts_as_missing(tmp_path, at):
    store = write(tmp_path, range(5))
    (file,) = (tmp_path / "cache").iterdir()
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert read(store, range(5)) == []
    assert read(write(tmp_path, [7]), [0, 7]) == [7]


@pytest.mark.parametrize("size", [0, 10, 80, 100, -1])
def test_truncated_file_counts_as_missing(tmp_path, size):
    store = write(tmp_path, range(5))
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:size])
    assert read(store, range(5)) == []


def test_unwritable_folder_is_ignored(tmp_path):
    (tmp_path / "cache").write_text("")
    assert read(write(tmp_path, range(3)), range(3)) == []


def test_vector_file_is_private(tmp_path):
    write(tmp_path, range(2))
    (file,) = (tmp_path / "cache").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_file_written_with_another_key_is_not_used(tmp_path):
    FileVectorStore(tmp_path / "cache", tmp_path / "other" / "key", "model")._write({key(1): vector(1)}, ())
    assert read(open_store(tmp_path), [1]) == []
    store = write(tmp_path, [2])
    assert read(store, [1, 2]) == [2]
