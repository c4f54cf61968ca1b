"""Journals that lose what they had: unsafe steps run, a kill, a damaged write-ahead log, then runs continue.

    python -m tests.workflows.kills --loss                      # 20 runs × 8 unsafe steps, each kind of damage
    python -m tests.workflows.journal_loss FOLDER RUNS          # the process that is killed

A question is answered by what the server did, as a user would find out. An effect that is there twice was repeated.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import effect_server, settle_until_ended
from toolway import Hub
from toolway.types import Json
from toolway.workflows import Workflows

ROOT = Path(__file__).parents[2]
STEPS: Final = 8
LIMIT_S: Final = 600.0


class LossReport(NamedTuple):
    """Effects of all unsafe steps after the runs have ended."""

    kind: str
    runs: int
    effects: int
    doubled: int
    missing: int
    asked: int
    states: str

    @property
    def is_good(self) -> bool:
        return not self.doubled and not self.missing and self.states == "done"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs.db.intents*"))


def _truncate(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _on_log(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: damage(folder / "runs.db-wal")


def _on_both(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        (folder / "runs.db-wal").unlink()
        for file in _files(folder):
            damage(file)

    return do


#: The first three damage only the log. The others damage the record of intents too.
KINDS: Final[dict[str, Callable[[Path], None]]] = {
    "truncated": _on_log(_truncate),
    "flipped": _on_log(_flip),
    "removed": _on_log(Path.unlink),
    "removed, record truncated": _on_both(_truncate),
    "removed, record flipped": _on_both(_flip),
    "removed, record removed": _on_both(Path.unlink),
}


def definition() -> Json:
    def step(number: int) -> Json:
        params = {"id": f"${{inputs.run}}/u{number}", "delay_after": 0.03}
        return {"name": f"u{number}", "tool": "s.pay", "params": params}

    return {"name": "loss", "steps": [step(number) for number in range(STEPS)]}


def run_with_loss(folder: Path, runs: int, kind: str) -> LossReport:
    """Execute the runs, kill the process in the middle, damage its journal, and execute them to their end."""
    total = runs * STEPS
    process = _start(folder, runs)
    limit = time.monotonic() + LIMIT_S
    while len(read_effects(folder / "effects")) < total // 2:
        assert process.poll() is None and time.monotonic() < limit, "the runs do not begin"
        time.sleep(0.01)
    process.kill()
    process.wait()
    _wait_for_servers(folder)
    KINDS[kind](folder)
    code = _start(folder, runs).wait(LIMIT_S)
    assert code == 0, f"the runs did not continue: {code}"
    effects = Counter(each["id"] for each in read_effects(folder / "effects"))
    doubled = sum(count - 1 for count in effects.values())
    asked = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
    return LossReport(
        *(kind, runs, sum(effects.values()), doubled, total - len(effects), len(asked)),
        (folder / "ended").read_text(),
    )


def _start(folder: Path, runs: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.workflows.journal_loss", str(folder), str(runs)], cwd=ROOT)


def _wait_for_servers(folder: Path) -> None:
    """Wait until the servers of a killed process have ended: the reaper holds the lock until then."""
    import fcntl

    with (folder / "runs.db.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


async def _execute(folder: Path, count: int) -> None:
    async with Hub({"s": effect_server(folder)}) as hub, Workflows(hub, folder / "runs.db") as workflows:
        for number in range(count):
            await workflows.start(definition(), {"run": f"run{number}"}, key=f"run{number}")
        await settle_until_ended(workflows, folder, count)


if __name__ == "__main__":
    asyncio.run(_execute(Path(sys.argv[1]), int(sys.argv[2])))
