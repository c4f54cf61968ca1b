"""A thread that does the blocking work of a gateway ends: the gateway reports it, and no caller waits forever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.program import program
from tests.workflows.kill_runner import SERVER_FILE
from toolway._worker_thread import WorkerDied, WorkerThread, dead_workers
from toolway.middleware.idempotency import IdempotencyKey
from toolway.middleware.idempotency_sqlite import SqliteIdempotencyStore
from toolway.part_api.sqlite_file import SqliteFile

pytestmark = pytest.mark.anyio


@pytest.mark.attack("A2-D1")
@pytest.mark.parametrize("thread", ["toolway-runs", "toolway-audit"])
async def test_gateway_with_an_ended_thread_is_not_ready(tmp_path: Path, thread: str) -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "flow.yaml").write_text("name: flow\nsteps:\n- {name: ok, approve: Go?}\n")
    server = {"command": "python3", "args": [str(SERVER_FILE), str(tmp_path / "effects")]}
    settings: Any = {"workflows": ["flow.yaml"], "audit": {"to": "jsonl"}, "build": "threads_end"}
    async with program(folder, {"s": server}, **settings) as run:
        assert (await run.get("/readyz"))[0] == 200
        (folder / "state" / "end-thread").write_text(thread)
        async with asyncio.timeout(60):
            while (await run.get("/readyz"))[0] != 503:
                await asyncio.wait_for(run.get("/admin/runs"), 30)  # no caller waits forever
                await asyncio.sleep(0.1)
            await run.get("/admin/runs")
            assert (await run.get("/healthz"))[0] == 200
            await run.until_logged(f"E-WORKER: the thread {thread} has ended")
            assert await run.stop() in (0, 1)


def end() -> None:
    raise SystemExit


async def test_store_with_an_ended_thread_fails_at_once(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "file", "toolway-file", lambda db: None)
    keys = SqliteIdempotencyStore(tmp_path / "keys")
    thread = WorkerThread("toolway-thread")
    async with asyncio.timeout(30):
        with pytest.raises(OSError, match="toolway-file"):
            await file.run(lambda db: end())
        with pytest.raises(OSError, match="toolway-file"):
            await file.run(lambda db: 1)
        with pytest.raises(WorkerDied):
            await keys._run_in_thread(end)
        with pytest.raises(WorkerDied):
            await keys.claim(IdempotencyKey("", "s", "t", "k"), "f", "c")
        works = [asyncio.ensure_future(thread.run(work)) for work in (lambda: 1, end, lambda: 2)]
        found = await asyncio.gather(*works, return_exceptions=True)
        assert found[0] == 1 and [type(each) for each in found[1:]] == [WorkerDied, WorkerDied]
        assert dead_workers() == ["toolway-file", "toolway-keys", "toolway-thread"]
        await file.close()
        keys.close()
        thread.stop()
    assert dead_workers() == []


async def test_job_error_reaches_its_own_caller_only() -> None:
    thread = WorkerThread("toolway-thread")
    works = [asyncio.ensure_future(thread.run(work)) for work in (lambda: 1 // 0, lambda: 2)]
    found = await asyncio.gather(*works, return_exceptions=True)
    assert isinstance(found[0], ZeroDivisionError) and found[1] == 2 and dead_workers() == []
    thread.stop()
    assert await asyncio.to_thread(thread.join, 10)
