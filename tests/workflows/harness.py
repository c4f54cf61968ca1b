"""Simulated execution of workflow runs: the planner with a journal in memory, a server that counts effects, crashes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from toolway.hub.call_policy import CallTerms
from toolway.types import Effect, Json
from toolway.workflows.definition import Definition
from toolway.workflows.journal import FINAL_STATES, Entry, RunMessage, RunRecord
from toolway.workflows.planner import plan
from toolway.workflows.python_workflow import CodeRun, PythonWorkflow
from toolway.workflows.reader import expressions_of, read_value
from toolway.workflows.step_planner import CallAction, Decision, RunMemory, entry_for

TERMS: Mapping[str, Effect] = {
    "s.read": Effect.READ,
    "s.put": Effect.IDEMPOTENT,
    "s.pay": Effect.UNSAFE,
    "s.pay_once": Effect.UNSAFE,
    "s.list": Effect.READ,
    "s.fail": Effect.UNSAFE,
}


class Simulation:
    """One run on a virtual clock. A crash loses all that is not in the journal."""

    def __init__(self, body: Json, inputs: Json | None = None, *, seed: int = 0) -> None:
        self.definition: Definition = read_value(body)
        self.record = RunRecord(id="run", workflow="w", definition="h", input=inputs or {}, created=0.0)
        self.journal: dict[tuple[str, int], Entry] = {}  # what is on disk
        self.messages: list[RunMessage] = []
        self.effects: Counter[str] = Counter()
        self.keyed: set[str] = set()
        self.calls: Counter[str] = Counter()  # calls that were sent, by path
        self.now = 0.0
        self.life = 1
        self.random = random.Random(seed)
        self.asked: list[str] = []
        self.is_local = True  # the server ends with the process of the engine
        self.meta_key: str | None = "key"  # by which the server detects repeated calls
        self.reply: Callable[[CallAction], Entry | None] | None = None

    def run(self, crash: Callable[[str], bool] = lambda point: False, steps: int = 2000) -> RunRecord:
        """Execute until the end. `crash(point)` is asked at each point where a process can end."""
        while steps and self.record.state not in FINAL_STATES:
            steps -= self._live(crash, steps)
        assert self.record.state in FINAL_STATES, "the run does not end"
        return self.record

    def _live(self, crash: Callable[[str], bool], steps: int) -> int:
        """Execute one process until the run ends or the process crashes. Return the plans made."""
        memory = RunMemory(sorted(self.journal.values(), key=lambda each: (each.path, each.attempt)))
        expressions = expressions_of(self.definition)
        for made in range(1, steps + 1):
            decision = self._plan(memory, expressions, frozenset())
            intents = [entry_for(each, self.life, self.now) for each in decision.calls if each.effect is Effect.UNSAFE]
            if crash("before commit"):
                return self._die(made)
            for entry in (*decision.records, *intents):
                self.journal[entry.path, entry.attempt] = entry
                memory.add(entry)
            if decision.end is not None:
                self.record = replace(
                    self.record, state=decision.end.state, output=decision.end.output, error=decision.end.error
                )
                return made
            if crash("after commit"):
                return self._die(made)
            for action in decision.calls:
                crashed = crash("before send")
                if crashed:
                    return self._die(made)
                outcome = self._send(action)
                if crash("after effect"):
                    return self._die(made)
                self.journal[outcome.path, outcome.attempt] = outcome
                memory.add(outcome)
            if not decision.calls:
                self._answer(decision)
        return steps

    def _die(self, made: int) -> int:
        self.life += 1
        self.now += 1.0
        return made

    def _plan(self, memory: RunMemory, expressions: Any, live: frozenset[str]) -> Decision:
        """Return the decision; check that it follows from the entries alone, without what the memory has computed."""
        fresh = RunMemory(entry for attempts in memory.entries.values() for entry in attempts)
        expected = to_builtins(self._decide(fresh, expressions, live))
        decision = self._decide(memory, expressions, live)
        assert to_builtins(decision) == expected
        return decision

    def _decide(self, memory: RunMemory, expressions: Any, live: frozenset[str]) -> Decision:
        return plan(
            self.definition,
            self.record,
            memory,
            self.messages,
            live=live,
            life=self.life,
            now=self.now,
            terms=self._terms,
            expressions=expressions,
        )

    def _terms(self, name: str) -> CallTerms | None:
        return CallTerms(TERMS[name], "setting", 10.0, "", self.meta_key, self.is_local) if name in TERMS else None

    def _send(self, action: CallAction) -> Entry:
        self.calls[action.path] += 1
        intent = entry_for(action, self.life, self.now)
        if self.reply is not None and (given := self.reply(action)) is not None:
            return given
        if action.tool == "s.fail":
            error = {"code": "E-TOOL", "message": "no", "executed": "yes"}
            return replace(intent, state="failed", ended=self.now, body=error)
        if action.tool == "s.list":
            items = [each for each in self.effects.elements() if each == action.args.get("id", each)]
            return replace(intent, state="done", ended=self.now, body={"data": {"items": items}})
        key = (action.meta or {}).get("key")
        if action.tool == "s.pay" or (action.tool == "s.pay_once" and key not in self.keyed):
            self.effects[action.args.get("id") or action.path] += 1
            if key:
                self.keyed.add(key)
        return replace(intent, state="done", ended=self.now, body={"data": {**action.args, "ok": True}, "text": "ok"})

    def _answer(self, decision: Decision) -> None:
        """Do what a user and the time do when a run waits."""
        for question in decision.questions:
            self.asked.append(question.path)
            if question.kind == "unknown":
                entry = max(
                    (each for each in self.journal.values() if each.path == question.path),
                    key=lambda each: each.attempt,
                )
                happened = self.effects[(entry.args or {}).get("id") or question.path] > 0
                body: Json = {"happened": happened, "result": {"settled": True}, "attempt": entry.attempt}
                self._message("settle", question.path, body)
            elif question.kind == "approve":
                self._message("answer", question.path, {"yes": True})
            else:
                self._message("answer", question.path, {"data": {"value": 1}})
        if not decision.questions:
            assert decision.due is not None, "the run waits for nothing"
            self.now = max(self.now, decision.due)

    def _message(self, kind: Any, path: str, body: Json) -> None:
        self.messages.append(
            RunMessage(id=len(self.messages) + 1, kind=kind, path=path, body=body, by="ann", at=self.now)
        )


class CodeSimulation(Simulation):
    """A run of Python code on a virtual clock, with crashes."""

    def __init__(self, code: PythonWorkflow, inputs: Json | None = None) -> None:
        super().__init__({"steps": [{"name": "unused", "tool": "s.read"}]}, inputs)
        self.code = code

    def _live(self, crash: Callable[[str], bool], steps: int) -> int:
        with asyncio.Runner() as self._runner:
            self._run = CodeRun(self.code, self._call_function, self._find_tool, lambda: self.now)
            try:
                return super()._live(crash, steps)
            finally:
                self._runner.run(self._run.close())

    async def _call_function(self, action: CallAction, intent: Any) -> Any:
        raise AssertionError("the simulation answers the calls of tools")

    async def _find_tool(self, name: str) -> None:
        await asyncio.sleep(0)

    def _plan(self, memory: RunMemory, expressions: Any, live: frozenset[str]) -> Decision:
        return self._runner.run(self._plan_code(memory, live))

    async def _plan_code(self, memory: RunMemory, live: frozenset[str]) -> Decision:
        records: list[Entry] = []
        while True:
            decision = await self._run.plan(
                self.record,
                memory,
                self.messages,
                live=live,
                life=self.life,
                now=self.now,
                terms=lambda name: CallTerms(TERMS[name], "setting", 10.0, "", "key") if name in TERMS else None,
            )
            decision.records[:0] = records
            if not self._run.is_running or decision.calls or decision.end:
                return decision
            records = decision.records
            await self._run.wait_for_step()
