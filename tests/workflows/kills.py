"""Kill runs: workflow runs whose process is killed again and again, and the effects counted at the server."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.workflows.effect_server import read_effects

ROOT = Path(__file__).parents[2]
UNSAFE_STEPS = ("u1", "v1", "u2", "v2")
KEYED_STEPS = ("k1", "k2")


@dataclass
class KillReport:
    """Figures of a kill run."""

    runs: int
    kills: int
    seconds: float
    states: str
    unsafe_doubled: int
    unsafe_lost: int
    keyed_doubled: int
    keyed_lost: int
    asked: int

    @property
    def is_good(self) -> bool:
        broken = (self.unsafe_doubled, self.unsafe_lost, self.keyed_doubled, self.keyed_lost)
        return self.states == "done" and not any(broken)


def run_with_kills(folder: Path, runs: int, *, seed: int, most: float, max_kills: int = 10_000) -> KillReport:
    """Start the runs, kill their process after up to `most` seconds, start it again, until all runs have ended."""
    chance = random.Random(seed)
    began = time.monotonic()
    kills = 0
    while not (folder / "ended").exists():
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.workflows.kill_runner", str(folder), str(runs)], cwd=ROOT
        )
        # The first effects show that the process works; then it may be killed.
        before = len(read_effects(folder / "effects"))
        limit = time.monotonic() + 60
        while process.poll() is None and len(read_effects(folder / "effects")) == before and time.monotonic() < limit:
            time.sleep(0.02)
        try:
            process.wait(chance.uniform(0.05, most) if kills < max_kills else 300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0, "the process of the runs failed"
    effects = Counter((each["id"]) for each in read_effects(folder / "effects"))
    expected = [f"run{number}/{step}" for number in range(runs) for step in (*UNSAFE_STEPS, *KEYED_STEPS)]
    doubled = [name for name in expected if effects[name] > 1]
    lost = [name for name in expected if not effects[name]]
    asked = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []

    def is_keyed(name: str) -> bool:
        return name.rpartition("/")[2] in KEYED_STEPS

    return KillReport(
        runs=runs,
        kills=kills,
        seconds=time.monotonic() - began,
        states=(folder / "ended").read_text(),
        unsafe_doubled=sum(not is_keyed(name) for name in doubled),
        unsafe_lost=sum(not is_keyed(name) for name in lost),
        keyed_doubled=sum(is_keyed(name) for name in doubled),
        keyed_lost=sum(is_keyed(name) for name in lost),
        asked=len(set(asked)),
    )


if __name__ == "__main__":
    import argparse
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--most", type=float, default=4.0, help="seconds between two kills, at most")
    options = parser.parse_args()
    good = True
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as temporary:
            report = run_with_kills(Path(temporary), options.runs, seed=seed, most=options.most)
        print(f"seed {seed}: {report}", flush=True)
        good = good and report.is_good
    raise SystemExit(0 if good else 1)
