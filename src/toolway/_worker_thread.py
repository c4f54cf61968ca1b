"""Worker threads for blocking work, one job at a time: the audit log, the journal, SQLite files.

A job's error goes to its caller, and the thread continues. A thread never dies silently: its death is logged with a
code, all queued and later jobs fail at once, and `/readyz` reports not ready (`dead_workers`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from toolway.errors import ToolwayError

T = TypeVar("T")
#: Called in the event loop with the result or the error of a job.
OnDone: TypeAlias = Callable[[T | None, Exception | None], object]
WORKER_CODE: Final = "E-WORKER"
_dead: dict[WorkerThread, str] = {}  # thread that ended by itself → why
_log = logging.getLogger("toolway")


class WorkerDied(ToolwayError):
    """Raised for a job whose worker thread has died. The job may have run in part."""

    code = WORKER_CODE


class Job(Protocol):
    """Work for a worker thread: it is either run in that thread, or failed from any thread."""

    def run(self) -> None:
        """Do the work. Handle errors here: an exception ends the thread."""
        ...

    def fail(self, error: WorkerDied) -> None:
        """Report that the job will not run, or that it killed the thread. No-op once it has finished."""
        ...


class WorkerThread:
    """Daemon thread that runs jobs one after the other.

    Not an executor: the interpreter waits for executor threads on exit, and a disk may never respond. An executor
    also loses threads silently.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # A job stays here until it has ended: whatever ends the thread, and wherever, no job is lost.
        self._jobs: deque[Job | None] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taken = 1  # jobs that the running job does
        self._death: WorkerDied | None = None
        self._thread = threading.Thread(target=self._run_jobs, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)
        self._wake.put(None)
        if self._death is not None:
            self._fail_queued(self._death)

    def submit(self, work: Callable[[], T], on_done: OnDone[T]) -> None:
        """Queue the function `work`. `on_done` gets its result or error in the running event loop."""
        self.put(_FunctionJob(work, on_done, asyncio.get_running_loop()))

    async def run(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """Run the function `work` in the thread and return its result.

        Raises the errors of `work`, `WorkerDied` if the thread has ended, and `TimeoutError` after `timeout` seconds;
        the thread then still finishes `work`.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # set if no error occurred

        self.submit(work, done)
        async with asyncio.timeout(timeout):
            return await future

    def take_queued(self, limit: int) -> list[Job]:
        """Take at most `limit` queued jobs, to do their work in the running job. Call it from that job."""
        taken: list[Job] = []
        for job in itertools.islice(self._jobs.copy(), 1, limit + 1):
            if job is None:
                break
            taken.append(job)
        self._taken = 1 + len(taken)
        return taken

    def stop(self) -> None:
        """Stop the thread after all queued jobs have run. Does not wait."""
        self._jobs.append(None)
        self._wake.put(None)
        _dead.pop(self, None)  # its owner is closed, so nothing depends on it any more

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended. Return False on timeout."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run_jobs(self) -> None:
        try:
            while True:
                self._wake.get()
                while self._jobs:
                    job = self._jobs[0]
                    if job is None:
                        return
                    self._taken = 1
                    job.run()
                    for _ in range(self._taken):
                        self._jobs.popleft()
        except BaseException as exc:
            # Whatever it was: this work is not done any more, so no caller may wait for it.
            self._report_death(exc)

    def _report_death(self, cause: BaseException) -> None:
        reason = f"{type(cause).__name__}: {cause}"[:500]
        death = WorkerDied(
            f"the thread {self.name} has ended",
            detail=reason,
            hint="restart the program; /readyz answers 503 until then",
        )
        _dead[self] = reason
        self._death = death
        _log.critical("%s: the thread %s has ended: %s; restart the program", WORKER_CODE, self.name, reason)
        _log.debug("the end of the thread %s", self.name, exc_info=cause)
        self._fail_queued(death)

    def _fail_queued(self, death: WorkerDied) -> None:
        while self._jobs:
            try:
                job = self._jobs.popleft()
            except IndexError:  # another thread fails them too
                return
            if job is not None:
                job.fail(death)


def dead_workers() -> list[str]:
    """Return the names of the worker threads that died in this process, oldest first."""
    return [worker.name for worker in list(_dead)]


class _FunctionJob:
    """A function for the worker thread, with a callback for its result in the event loop."""

    def __init__(self, work: Callable[[], Any], on_done: OnDone[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._on_done = on_done
        self._loop = loop
        self._is_reported = False

    def run(self) -> None:
        try:
            result = self._work()
        except Exception as exc:
            self._report(None, exc)
        else:
            self._report(result, None)

    def fail(self, error: WorkerDied) -> None:
        self._report(None, error)

    def _report(self, result: Any, error: Exception | None) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        with suppress(RuntimeError):  # the loop is closed, so the result is not needed
            self._loop.call_soon_threadsafe(self._on_done, result, error)
