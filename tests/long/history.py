"""Many calls over real processes, and then the question whether every promise was kept."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.long.load import Load
from tests.long.server_set import fleet, restarts, table
from toolway.testing import History
from toolway.testing.history import Violation, find_violations

CALLERS = 100


@dataclass(frozen=True)
class Report:
    calls: int
    seconds: float
    restarts: int
    retried: int  # calls that took more than one attempt
    faults: Counter[str]
    outcomes: Counter[str]
    wrong: list[Violation]

    def __str__(self) -> str:
        kinds = Counter(violation.kind for violation in self.wrong)
        promises = {
            "lost": kinds["lost"],
            "answered twice": kinds["twice"],
            "late": kinds["late"],
            "misplaced": kinds["misplaced"],
            "duplicated UNSAFE effects": kinds["repeated"],
            'effects reported as "no"': kinds["denied"],
            "answers without their effect": kinds["missing"],
            "other": kinds["silent"] + kinds["strange"],
        }
        run = {
            "calls": f"{self.calls} in {self.seconds:.0f} s, {self.calls / self.seconds:.0f}/s",
            "restarts of servers": self.restarts,
            "tried more than once": self.retried,
        }
        parts = [
            table(run),
            f"faults asked for: {self.faults.total()}\n{table(dict(self.faults.most_common()))}",
            f"outcomes\n{table(dict(self.outcomes.most_common()))}",
            f"promises broken: {len(self.wrong)}\n{table(promises)}",
            *[str(violation) for violation in self.wrong[:20]],
        ]
        return "\n".join(parts)


async def run(calls: int, seed: int, callers: int = CALLERS) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        effects = Path(folder) / "effects"
        history = History(effects)
        async with fleet(effects) as ships:
            load = Load(ships, history, Random(seed))
            began = time.monotonic()
            await load.callers(callers, calls)
            seconds = time.monotonic() - began
            ended = restarts(ships.hub)
        outcomes = [outcome for call in history.invocations.values() for outcome in call.outcomes]
        return Report(
            calls=len(history.invocations),
            seconds=seconds,
            restarts=ended,
            retried=sum(outcome.attempts > 1 for outcome in outcomes),
            faults=load.faults,
            outcomes=history.count_outcomes(),
            wrong=list(find_violations(history)),
        )
