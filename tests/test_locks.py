"""Locks of files: who holds one still holds it after the handle was passed on, and no one does after the last copy."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from toolway import _os
from toolway.audit.sink import SinkInUse, lock_file
from toolway.auth import shared_token_slot
from toolway.auth.encrypted_token_store import EncryptedTokenStore
from toolway.auth.shared_token_slot import SharedTokenSlot
from toolway.auth.token_store import Credential, OAuthClient
from toolway.network import NetworkPolicy
from toolway.upstream.process.spawner import Spawner
from toolway.workflows import sqlite_journal
from toolway.workflows.journal import RunsInUse
from toolway.workflows.sqlite_journal import SqliteJournal

pytestmark = pytest.mark.anyio


def open_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | _os.O_UNSHARED, 0o600)


def is_locked(path: Path) -> bool:
    """Return True if another handle holds the lock of a file, of this process or of another one."""
    handle = open_file(path)
    try:
        return not _os.try_lock_handle(handle)
    finally:
        os.close(handle)


async def until_free(path: Path) -> None:
    async with asyncio.timeout(20):
        while is_locked(path):
            await asyncio.sleep(0.01)


# -- the lock itself --------------------------------------------------------------------------------------------------


def test_lock_excludes_other_handles_until_closed(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    first = open_file(file)
    assert _os.try_lock_handle(first) and is_locked(file)
    os.close(first)
    assert not is_locked(file)


def test_copied_handle_holds_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    first = open_file(file)
    _os.lock_handle(first)
    copy = os.dup(first)
    os.close(first)
    assert is_locked(file)
    os.close(copy)
    assert not is_locked(file)


def test_unlock_applies_to_all_copies(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    first = open_file(file)
    _os.lock_handle(first)
    copy = os.dup(first)
    _os.unlock_handle(first)
    assert not is_locked(file)
    os.close(first)
    os.close(copy)


def test_folder_lock_needs_no_file(tmp_path: Path) -> None:
    first, second = _os.lock_folder_handle(tmp_path), _os.lock_folder_handle(tmp_path)
    assert _os.try_lock_handle(first) and not _os.try_lock_handle(second)
    assert list(tmp_path.iterdir()) == []
    os.close(first)
    assert _os.try_lock_handle(second)
    os.close(second)


def test_child_does_not_inherit_a_lock(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    handle = open_file(file)
    _os.lock_handle(handle)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    os.close(handle)
    assert not is_locked(file)
    assert child.stdin is not None
    child.stdin.close()
    child.wait(20)


# -- those who lock ---------------------------------------------------------------------------------------------------


def test_audit_log_may_be_a_symlink_and_has_one_writer(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "disk")
    held = lock_file(tmp_path / "logs" / "audit.jsonl")
    with pytest.raises(SinkInUse):
        lock_file(tmp_path / "disk" / "audit.jsonl")
    os.close(held)
    (tmp_path / "audit.jsonl.lock").symlink_to(tmp_path / "disk" / "elsewhere")
    os.close(lock_file(tmp_path / "audit.jsonl"))


async def test_reaper_holds_journal_lock_for_running_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_journal, "LOCK_TIMEOUT_S", 0.2)
    journal, spawner = SqliteJournal(tmp_path / "runs.db"), Spawner()
    await spawner.start(["sleep", "60"], {"PATH": os.environ["PATH"]}, None)
    assert journal.lock_fd is not None
    await spawner.hold(journal.lock_fd)
    journal.keeps_lock = True
    await journal.close()
    with pytest.raises(RunsInUse):
        await asyncio.to_thread(SqliteJournal, tmp_path / "runs.db")
    await spawner.close()
    await SqliteJournal(tmp_path / "runs.db").close()


async def test_journal_without_servers_is_free_despite_reaper_copy(tmp_path: Path) -> None:
    journal, spawner = SqliteJournal(tmp_path / "runs.db"), Spawner()
    await spawner.start(["sleep", "60"], {"PATH": os.environ["PATH"]}, None)
    assert journal.lock_fd is not None
    await spawner.hold(journal.lock_fd)
    await journal.close()
    await SqliteJournal(tmp_path / "runs.db").close()
    await spawner.close()


# -- the process that refreshes a token -------------------------------------------------------------------------------


async def test_refresh_process_holds_the_lock_until_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    lock = await shared_token_slot.acquire_file_lock(5, file)
    process = await asyncio.to_thread(shared_token_slot._start_refresh_process, lock)
    os.close(lock)  # as if this process had been killed
    assert is_locked(file)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()  # no order comes
    await asyncio.to_thread(process.wait, 20)
    process.stdout.close()
    assert not is_locked(file)


@asynccontextmanager
async def silent_issuer() -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """A token endpoint that never answers: its URL, whether it was asked, and an event that ends its connections."""
    asked, end = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await end.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked, end
        end.set()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither signals nor a lock that is passed on")
async def test_refresh_keeps_lock_despite_signals_and_closed_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = shared_token_slot._start_refresh_process

    def start_and_record(lock: int) -> subprocess.Popen[bytes]:
        started.append(start(lock))
        return started[-1]

    monkeypatch.setattr(shared_token_slot, "_start_refresh_process", start_and_record)
    store = EncryptedTokenStore(tmp_path, lambda: bytes(32))
    async with silent_issuer() as (url, asked, end):
        held = Credential(url, f"{url}/token", OAuthClient("me", "x", "client_secret_basic"), "access", "refresh", "")
        slot = SharedTokenSlot(store, "guarded https://guarded.example/mcp", "")
        await slot.save(held)
        refresh = asyncio.create_task(slot.refresh(held, NetworkPolicy(("127.0.0.1",))))
        async with asyncio.timeout(30):
            await asked.wait()
        lock = store.file_path("guarded https://guarded.example/mcp", "").with_suffix(".renewing")
        refresh.cancel()  # its handle is closed
        await asyncio.wait({refresh})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            started[0].send_signal(number)
        assert is_locked(lock) and started[0].poll() is None
        end.set()
        await until_free(lock)
        assert await asyncio.to_thread(started[0].wait, 20) == 0
