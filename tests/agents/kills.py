"""Kill runs of agents: processes that are killed with SIGKILL at each of 30 points, over two provider formats.

    python -m tests.agents.kills                                  # 30 points, 20 seeds, both formats
    python -m tests.agents.kills --seeds 1 --points "after model/1 begun"

The requests are counted at the provider, the effects at the server. A seed chooses the answers, ids, and delays of
the calls, the budget, whether answers are streamed, and, from 10 on, a second point at which the next process is
killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workflows.effect_server import read_effects
from toolway.testing.fake_llm import FakeLLM, LLMRequest, ToolUse, Turn
from toolway.types import Json

ROOT = Path(__file__).parents[2]
FORMATS = {"openai-chat:gpt-4o": "openai_url", "anthropic:claude-sonnet-5": "anthropic_url"}
TURNS = 4
POINTS = (
    "after create",
    *(
        f"{when} model/{turn} {state}"
        for turn in (1, 2, 3, 4)
        for when, state in (("after", "begun"), ("before", "done"))
    ),
    *(f"asked model/{turn}" for turn in (1, 2, 3, 4)),
    "before model/2 begun",
    "after model/2 done",
    "stream model/2",
    "after effect tool/1.1",
    "after effect tool/2.2",
    *(f"{when} run asks" for when in ("before", "after")),
    "after tool/2.1/approve done",
    *(f"{when} tool/2.1 begun" for when in ("before", "after")),
    *(f"{when} effect tool/2.1" for when in ("before", "after")),
    *(f"{when} tool/2.1 done" for when in ("before", "after")),
    "after effect tool/2.3",
    "before tool/2.3 done",
    "before run done",
)
LIVES = 12


@dataclass
class KillTotals:
    """Figures of the kill runs of agents."""

    runs: int = 0
    kills: int = 0
    requests: int = 0
    asked_twice: int = 0
    unknown: int = 0  # unsafe calls whose outcome the model was told as unknown
    states: Counter[str] = field(default_factory=Counter)
    over_budget: float = 0.0  # the largest excess, in requests
    problems: list[str] = field(default_factory=list)

    def add(self, other: KillTotals) -> None:
        self.runs += other.runs
        self.kills += other.kills
        self.requests += other.requests
        self.asked_twice += other.asked_twice
        self.unknown += other.unknown
        self.states += other.states
        self.over_budget = max(self.over_budget, other.over_budget)
        self.problems += other.problems


class Runner:
    """The process that forks the processes of the runs."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.agents.kill_runner"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for model in FORMATS:
            with tempfile.TemporaryDirectory(prefix="kills") as folder:
                first = KillRun(Path(folder), model, 0, [])
                first.is_first = True
                first.execute(self)

    def live(self, job: Json) -> int:
        """Execute one process of a run; return its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class KillRun:
    """One agent run whose processes are killed at some points, one point for each process."""

    def __init__(self, folder: Path, model: str, seed: int, points: Sequence[str]) -> None:
        self._folder = folder
        self._model = model
        self._points = list(points)
        self._random = random.Random(f"{model} {seed} {points}")
        self._budget = self._choose_budget(seed)
        self._approve = seed % 2 == 0 or any("ask" in each or "approve" in each for each in points)
        self._stream = seed % 3 == 0 or any(each.startswith("stream") for each in points)
        self._turns = self._make_turns()
        self._used: list[int] = []  # tokens of each request that the provider has answered
        self.is_first = False  # of a runner: loads what the others use
        self.totals = KillTotals(runs=1)

    def _choose_budget(self, seed: int) -> Json:
        limits: list[Json] = [{"requests": 20}, {"requests": 4}, {"tokens": 2200}, {"usd": 2.2, "requests": 20}]
        return limits[seed % 4]

    def _make_turns(self) -> list[Turn]:
        chance = self._random
        texts = ["I pay.", 'a "quoted" text\n', "ü \U0001f600", "x" * 5000]
        ids = chance.choice([None, None, "same"])

        def use(name: str, place: str, **arguments: Any) -> ToolUse:
            arguments["delay"] = chance.choice([0, 0, 0.01])
            for when in ("before", "after"):
                if f"{when} effect {place}" in self._points:
                    arguments[f"kill_{when}"] = str(self._folder / "pid")
            return ToolUse(f"s__{name}", arguments, ids)

        reads = [use("read", f"tool/1.{number}", id=f"r{number}") for number in range(1, chance.randrange(2, 5))]
        pays = [use("pay", "tool/2.1", id="p1"), use("put", "tool/2.2", id="q"), use("pay", "tool/2.3", id="p2")]
        return [
            Turn(chance.choice(texts), reads),
            Turn(chance.choice(texts), pays),
            Turn(calls=[ToolUse("final_result", {"paid": "many"})]),  # does not match the schema
            Turn(calls=[ToolUse("final_result", {"paid": 2})]),
        ]

    def execute(self, runner: Runner) -> KillTotals:
        """Execute the run to its end; return its figures, with what should not be."""
        with FakeLLM(self._answer) as llm:
            url = getattr(llm, FORMATS[self._model])
            for life in range(LIVES):
                self._point = self._points[life] if life < len(self._points) else ""
                status = runner.live(self._job(url))
                if status == 0:
                    break
                if status != -signal.SIGKILL:
                    self._problem(f"a process ended with {status}")
                    break
                self.totals.kills += 1
            requests = list(llm.requests)
        self._check(requests)
        return self.totals

    def _job(self, url: str) -> Json:
        return {
            "folder": str(self._folder),
            "is_first": self.is_first,
            "model": self._model,
            "url": url,
            "point": self._point,
            "approve": self._approve,
            "stream": self._stream,
            "budget": self._budget,
        }

    def _answer(self, request: LLMRequest) -> Turn:
        turn = self._turns[min(request.turn, TURNS - 1)]
        self._used.append((len(json.dumps(request.body)) + len(turn.text)) // 4)
        if self._point == f"asked model/{request.turn + 1}":
            os.kill(int((self._folder / "pid").read_text()), signal.SIGKILL)
            self._point = ""
        return turn

    def _problem(self, text: str) -> None:
        self.totals.problems.append(f"{self._model}, {self._points}, budget {self._budget}: {text}")

    def _check(self, requests: list[LLMRequest]) -> None:
        totals = self.totals
        file = self._folder / "end"
        if not file.exists():
            self._problem("the run never ended")
            return
        end = json.loads(file.read_text())
        code = "" if end["error"] is None else end["error"]["code"]
        totals.states[f"{end['state']} {code}".strip()] += 1
        asked = Counter(request.turn for request in requests)
        totals.requests = len(requests)
        totals.asked_twice = sum(count == 2 for count in asked.values())
        if sum(asked.values()) > TURNS + totals.kills:
            self._problem(f"a kill cost more than one request: {asked}")
        effects = Counter(each["id"] for each in read_effects(self._folder / "effects"))
        if effects["p1"] > 1 or effects["p2"] > 1:
            self._problem(f"an unsafe call ran twice: {effects}")
        self._check_end(end["state"], code, end["output"], effects)
        self._check_budget(asked)
        if totals.kills == 0 and "E-AGENT-BUDGET" not in code:
            self._problem("no process was killed: the point was not reached")

    def _check_end(self, state: str, code: str, output: Any, effects: Counter[str]) -> None:
        if state == "done":
            for call in output["tool_calls"]:
                if call["tool"] != "s.pay":
                    continue
                count = effects[call["arguments"]["id"]]
                self.totals.unknown += call["executed"] == "unknown"
                if call["executed"] != "unknown" and count != (call["executed"] == "yes"):
                    self._problem(f"{call['executed']} was said of a call with {count} effects")
            if output["output"] != {"paid": 2}:
                self._problem(f"the output is {output['output']}")
            return
        if code != "E-AGENT-BUDGET":
            self._problem(f"the run is {state}: {code}")

    def _check_budget(self, asked: Counter[int]) -> None:
        """Compare what the provider has counted with the limits."""
        limit = self._budget.get("requests")
        over = 0.0
        if limit is not None:
            over = sum(asked.values()) - limit
        tokens = self._budget.get("tokens") or (self._budget["usd"] * 1000 if "usd" in self._budget else None)
        if tokens is not None and self._used:
            over = max(over, (sum(self._used) - tokens) / max(self._used))
        self.totals.over_budget = max(0.0, over)
        if over > 1:
            self._problem(f"{over:.2f} requests over the budget")


def run_kills(runs: Iterable[tuple[str, int, str]], jobs: int = 1) -> KillTotals:
    """Execute a run for each model, seed and point; return the figures."""
    totals = KillTotals()
    pending = deque(runs)
    began = time.monotonic()

    def work() -> None:
        runner = Runner()
        try:
            while pending:
                model, seed, point = pending.popleft()
                chosen = [point]
                if seed >= 10:
                    chosen.append(random.Random(f"{seed} {point} {model}").choice(POINTS))
                with tempfile.TemporaryDirectory(prefix="kills") as folder:
                    totals.add(KillRun(Path(folder), model, seed, chosen).execute(runner))
                if totals.runs % 60 == 0:
                    print(f"{time.monotonic() - began:.0f} s: {totals}", flush=True)
        finally:
            runner.close()

    with ThreadPoolExecutor(jobs) as pool:
        for each in [pool.submit(work) for _ in range(jobs)]:
            each.result()
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--points", action="append", choices=POINTS)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    options = parser.parse_args()
    points = options.points or POINTS
    seeds = range(options.first, options.first + options.seeds)
    runs = [(model, seed, point) for seed in seeds for point in points for model in FORMATS]
    totals = run_kills(runs, options.jobs)
    for problem in totals.problems:
        print(problem)
    print(
        f"{'BAD' if totals.problems else 'good'}: {len(points)} points × {len(seeds)} seeds × {len(FORMATS)} formats, "
        f"{totals.runs} runs, {totals.kills} kills; {totals.requests} requests, {totals.asked_twice} asked twice; "
        f"{totals.unknown} unknown outcomes; at most {totals.over_budget:.2f} requests over a budget; "
        f"ends: {dict(totals.states)}"
    )
    return 1 if totals.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
