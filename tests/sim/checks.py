"""Whether what was called, what was answered and what really happened agree.

I1     every call has exactly one outcome, in time
I2     no answer and no progress reached another call
I3     what must not happen twice did not; and it did happen where the answer says so
I4     what happened is never reported as not executed
I5     calls to a server with which nothing goes wrong succeed
limit  no call makes more attempts than it may
key    calls with one key run once, and are not taken for different ones
leak   nothing is held, and nothing runs, when all is over
cut    we end no link that is in use, except when somebody asks for it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.sim.clients import WAY
from tests.sim.history import Act, Begun, Cut, Done, Ended, History, Moved, Progress, Reported, Sent
from toolway.types import Effect

GRACE: Final = 1.0  # seconds after its limit within which a call must have ended
STOPPING: Final = 6.0  # seconds that it takes at most to stop a server


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    call: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule} {self.call}: {self.what}"


class _Facts:
    """The history, sorted by call."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.begun = {entry.call: entry for entry in history.of(Begun)}
        self.ended: dict[str, list[Ended]] = defaultdict(list)
        for end in history.of(Ended):
            self.ended[end.call].append(end)
        self._done: dict[str, list[Done]] = defaultdict(list)
        for done in history.of(Done):
            self._done[done.nonce].append(done)

    def pairs(self) -> Iterator[tuple[Begun, Ended]]:
        for call, begun in self.begun.items():
            if self.ended[call]:
                yield begun, self.ended[call][0]

    def done(self, begun: Begun) -> list[Done]:
        """What happened under the nonce of a call; others may have had it too."""
        return [done for done in self._done[begun.nonce] if done.server == begun.server]

    def done_for(self, begun: Begun) -> list[Done]:
        """What happened for this very call."""
        return [done for done in self.done(begun) if done.call == begun.call]


def check(history: History) -> list[Violation]:
    """All promises that were broken in a run."""
    facts = _Facts(history)
    rules = (_one_outcome, _own_answer, _effects, _honesty, _as_reported, _neighbour, _limits, _keys, _tools, _life)
    found = [violation for rule in rules for violation in rule(facts)]
    found += [Violation("leak", "", what) for what in history.leftovers]
    found += [Violation("I1", "", what) for what in history.complaints]
    return found


def _one_outcome(facts: _Facts) -> Iterator[Violation]:
    for call, begun in facts.begun.items():
        ends = facts.ended[call]
        if len(ends) != 1:
            yield Violation("I1", call, f"has {len(ends)} outcomes")
        for end in ends:
            if end.outcome == "lost" and facts.done_for(begun):
                yield Violation("I1", call, "ran, and its answer was lost")
            if end.outcome == "broken":
                yield Violation("I1", call, f"ended with {end.detail}")
            if end.at - begun.at > begun.limit + GRACE:
                yield Violation("I1", call, f"took {end.at - begun.at:g} s of {begun.limit:g} s")


def _own_answer(facts: _Facts) -> Iterator[Violation]:
    for begun, end in facts.pairs():
        if end.nonce is not None and end.nonce != begun.nonce:
            yield Violation("I2", begun.call, f"got the answer of {end.nonce}")
    for progress in facts.history.of(Progress):
        if facts.begun[progress.call].nonce != progress.nonce:
            yield Violation("I2", progress.call, f"heard of the progress of {progress.nonce}")
        if any(end.at < progress.at for end in facts.ended[progress.call]):
            yield Violation("I2", progress.call, "heard of its progress after its end")


def _effects(facts: _Facts) -> Iterator[Violation]:
    for begun, end in facts.pairs():
        own = facts.done_for(begun)
        if begun.effect is Effect.UNSAFE and len(own) > 1:
            yield Violation("I3", begun.call, f"is unsafe and ran {len(own)} times")
        if end.outcome != "broken" and len(own) > max(1, end.attempts) and end.executed != "unknown":
            yield Violation("I3", begun.call, f"ran {len(own)} times in {end.attempts} attempts")
        if end.executed == "yes" and not facts.done(begun):
            yield Violation("I3", begun.call, f"ended with {end.outcome}, and did not run")


def _honesty(facts: _Facts) -> Iterator[Violation]:
    way = WAY if facts.history.front == "gateway" else 0.0  # between the client and the gateway, in each direction
    for begun, end in facts.pairs():
        if end.executed != "no" or begun.shared:
            continue
        if facts.done_for(begun):
            yield Violation("I4", begun.call, f"ran, and ended as {end.outcome} with executed=no")
        elif any(begun.at + way < done.sent < end.at - way for done in facts.done(begun)):
            yield Violation("I4", begun.call, f"ended as {end.outcome} with executed=no while its twin ran")


def _as_reported(facts: _Facts) -> Iterator[Violation]:
    """Watchers get the same outcomes as callers, and the right one for calls whose callers left."""
    if facts.history.front == "gateway":
        return  # an answer takes its time to the client, so the order says nothing
    ends, reports = list(facts.history.of(Ended)), list(facts.history.of(Reported))
    closed = next((act.at for act in facts.history.of(Act) if act.what == "close"), float("inf"))
    in_time = [end for end in ends if end.at < closed]
    if not len(in_time) <= len(reports) <= len(ends):
        yield Violation("I1", "", f"{len(in_time)} to {len(ends)} calls ended, and {len(reports)} were reported")
    # A caller sees a flight end one turn of the loop later than watchers do, at the same time.
    ends.sort(key=lambda end: (end.at, end.outcome))
    reports.sort(key=lambda report: (report.at, report.outcome))
    pairs = zip(ends, reports, strict=False)
    if facts.history.front == "slow":
        named = {report.call: report for report in reports}
        pairs = ((end, named[end.call]) for end in ends if end.call in named)  # type: ignore[assignment]
    for end, report in pairs:
        begun = facts.begun[end.call]
        # A caller that leaves in the turn of the loop in which its answer came gets none; the report has the truth.
        left_late = end.outcome == "cancelled" and report.executed == "yes" and report.at == end.at
        if end.outcome not in ("broken", report.outcome) and not left_late:
            yield Violation("I1", end.call, f"ended as {end.outcome} and was reported as {report.outcome}")
        if report.executed == "no" and not begun.shared and facts.done_for(begun):
            yield Violation("I4", end.call, f"ran, and was reported as {report.outcome} with executed=no")


def _neighbour(facts: _Facts) -> Iterator[Violation]:
    closed = [act.at for act in facts.history.of(Act) if act.what == "close"]
    for begun, end in facts.pairs():
        if (
            begun.sure
            and end.executed != "yes"
            and end.outcome != "cancelled"
            and not any(end.at >= at for at in closed)
        ):
            yield Violation("I5", begun.call, f"ended with {end.outcome} at a server with which nothing goes wrong")


def _limits(facts: _Facts) -> Iterator[Violation]:
    allowed: dict[tuple[str, str, str], int] = defaultdict(int)  # a call that joined another may count the other's
    for begun in facts.begun.values():
        twins = begun.server, begun.tool, begun.nonce
        allowed[twins] = max(allowed[twins], begun.attempts)
    for begun, end in facts.pairs():
        limit = allowed[begun.server, begun.tool, begun.nonce]
        if end.attempts > limit:
            yield Violation("limit", begun.call, f"made {end.attempts} attempts of {limit}")


def _keys(facts: _Facts) -> Iterator[Violation]:
    groups: dict[tuple[str, str, str], list[Begun]] = defaultdict(list)
    for begun in facts.begun.values():
        if begun.key is not None:
            groups[begun.server, begun.tool, begun.key].append(begun)
    for group in groups.values():
        yield from _one_key(facts, group)


def _one_key(facts: _Facts, group: list[Begun]) -> Iterator[Violation]:
    callers = [begun.call for begun in group if facts.done_for(begun)]
    if len(callers) > 1:
        yield Violation("key", callers[1], f"ran under the key of {callers[0]}, which ran too")
    if len({begun.nonce for begun in group}) == 1:
        for begun in group:
            if any(end.outcome == "E-KEY-MISMATCH" for end in facts.ended[begun.call]):
                yield Violation("key", begun.call, "was taken for another call than its twin")


def _tools(facts: _Facts) -> Iterator[Violation]:
    """A tool that a server has is found, unless the server was removed."""
    gone = {act.server for act in facts.history.of(Act) if act.what in ("remove", "replace")}
    for begun, end in facts.pairs():
        if end.outcome == "E-NOT-FOUND" and begun.server not in gone:
            yield Violation("I1", begun.call, f"was told that {begun.server} has no tool {begun.tool}")


def _life(facts: _Facts) -> Iterator[Violation]:
    moves: dict[str, list[Moved]] = defaultdict(list)
    for move in facts.history.of(Moved):
        moves[move.server].append(move)
    for server, its in moves.items():
        calls = [(begun, end) for begun, end in facts.pairs() if begun.server == server]
        yield from _cuts([cut for cut in facts.history.of(Cut) if cut.server == server], its)
        asked = [act.at for act in facts.history.of(Act) if (act.server, act.what) == (server, "restart")]
        wanted = [(begun.at, end.at) for begun, end in calls] + [(at, at) for at in asked]
        yield from _starts(its, wanted)
        yield from _unanswered(its, calls)


def _cuts(cuts: list[Cut], moves: list[Moved]) -> Iterator[Violation]:
    """No server is stopped as unused during a call. The links of a replaced server end later and are not counted."""
    for cut in cuts:
        if any(move.new == "stopped" and cut.opened <= move.at <= cut.at for move in moves):
            continue
        after = next((move for move in moves if move.at >= cut.at), None)
        if after is not None and after.new == "idle":
            yield Violation("cut", "", f"{cut.server} was stopped as unused during {cut.calls} calls at {cut.at:g}")


def _starts(moves: list[Moved], wanted: list[tuple[float, float]]) -> Iterator[Violation]:
    """A server that was stopped as unused starts again when it is wanted, or was so while it was being stopped."""
    for before, move in pairwise(moves):
        needed = any(since <= move.at <= until + STOPPING for since, until in wanted)
        if (before.new, move.new) == ("idle", "starting") and not needed:
            yield Violation("start", "", f"{move.server} was started at {move.at:g}, and nobody called it")


def _unanswered(moves: list[Moved], calls: list[tuple[Begun, Ended]]) -> Iterator[Violation]:
    for move, after in pairwise([*moves, Moved(float("inf"), "", "", "", "")]):
        if move.new != "failed":
            continue
        for begun, end in calls:
            if end.phase == "start" and move.at + GRACE < end.at < after.at:
                waited = end.at - max(begun.at, move.at)
                yield Violation("vain", begun.call, f"waited {waited:g} s for {begun.server}, which had failed")


def vague(history: History) -> int:
    """Calls that ended as unknown although nothing of them was ever sent: no lie, but no help either."""
    sent = {entry.call for entry in history.of(Sent)}
    calls = {begun.call: begun for begun in history.of(Begun)}
    lone = (end for end in history.of(Ended) if calls[end.call].key is None and not calls[end.call].shared)
    return sum(end.executed == "unknown" and end.outcome != "cancelled" and end.call not in sent for end in lone)
