"""Execute workflow runs, and be killed at a point of the newest: `killed_runs FOLDER COUNT POINT`.

Starts the runs up to COUNT, each with a key, resumes those that exist, and settles what they ask by the effects at the
server. At POINT of the last run, the process is killed (SIGKILL, or TerminateProcess). Without POINT it ends after the
runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.workflows.kill_runner import effect_server, settle_until_ended, start_runs
from tests.workflows.point_journal import PointJournal
from toolway import Hub
from toolway.types import Json
from toolway.workflows import Workflows
from toolway.workflows.journal import RunRecord, RunsInUse

TRIES = 400


class NewestRun(PointJournal):
    """Journal that reports the points of the run with one key."""

    def __init__(self, path: Path, key: str, point: str) -> None:
        super().__init__(path, reach=self._die_at)
        self._key = key
        self._point = point
        self._is_newest = False

    async def create(self, run: RunRecord, definition: Json) -> RunRecord:
        self._is_newest = run.input["run"] == self._key
        return await super().create(run, definition)

    def _die_at(self, point: str) -> None:
        if self._is_newest and point == self._point:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


async def main(folder: Path, count: int, point: str) -> None:
    async with (
        Hub({"s": effect_server(folder)}) as hub,
        Workflows(hub, NewestRun(folder / "runs.db", f"run{count - 1}", point)) as workflows,
    ):
        await start_runs(workflows, count)
        await settle_until_ended(workflows, folder, count)


async def main_when_free(folder: Path, count: int, point: str) -> None:
    """Begin as soon as the servers of the process before have ended: until then the journal is in use."""
    for _ in range(TRIES):
        try:
            return await main(folder, count, point)
        except RunsInUse:
            await asyncio.sleep(0.02)
    raise TimeoutError("the journal stays in use")


if __name__ == "__main__":
    asyncio.run(main_when_free(Path(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:])))
