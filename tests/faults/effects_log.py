"""The books of one test: each call with its outcome, each effect that happened, and what does not fit.

I1 one outcome in time. I2 the answer is the call's own. I3 an UNSAFE effect at most once, and once if the call says ok.
I4 an effect that happened is never reported as "no".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.timing import within
from toolway import CallError
from toolway.types import ToolResult

GRACE = within(1.0)  # seconds after its deadline within which a call must have ended


@dataclass
class Outcome:
    """One call through the bench, and how it ended."""

    tool: str
    nonce: str
    unsafe: bool  # it must not run twice
    has_effect: bool  # if it runs, it leaves a line in the effects file
    limit: float  # seconds it may take
    reply: ToolResult | None = None
    error: CallError | None = None
    seconds: float = 0.0
    ended: bool = False
    cancelled: bool = False  # by the test
    echoes: bool = True  # the answer must carry the nonce

    @property
    def ok(self) -> bool:
        return self.reply is not None and not self.reply.is_error

    @property
    def executed(self) -> str:
        """The reported `executed`: yes, no or unknown; empty if the caller left before the end."""
        if self.reply is not None:
            return "yes"
        return self.error.executed if self.error is not None else ""

    @property
    def text(self) -> str:
        return self.reply.text if self.reply is not None else ""

    def expect(self, kind: type[CallError] | None, executed: str = "yes") -> Outcome:
        """Insist on an answer (None), or on an error of exactly this class that says `executed`."""
        found = type(self.error) if self.error is not None else None
        assert (found, self.executed) == (kind, executed), f"{self.tool} ended with {self.error!r}, {self.executed}"
        return self


def effects_in(file: Path) -> Counter[str]:
    """How often each nonce left its mark."""
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(line.partition("\t")[2] for line in lines)


def out_of_time(calls: Iterable[Outcome]) -> Iterator[str]:
    for call in calls:
        if not call.ended:
            yield f"I1: {call.tool} has no outcome"
        elif call.seconds > call.limit + GRACE:
            yield f"I1: {call.tool} ended after {call.seconds:.2f} s, with {call.limit:g} s to live"


def misdelivered(calls: Iterable[Outcome]) -> Iterator[str]:
    for call in calls:
        if call.ok and call.echoes and call.reply is not None:
            data = call.reply.data
            found = data.get("nonce") if isinstance(data, dict) else None
            if found != call.nonce:
                yield f"I2: {call.tool} was asked with {call.nonce} and answered with {found}"


def wrong_effects(calls: Iterable[Outcome], effects: Counter[str]) -> Iterator[str]:
    by_nonce: dict[str, list[Outcome]] = {}
    for call in calls:
        by_nonce.setdefault(call.nonce, []).append(call)
    for nonce, group in by_nonce.items():
        yield from _wrong_effects_of(group, effects[nonce])
    for nonce in effects.keys() - by_nonce.keys():
        yield f"I3: an effect of {nonce!r}, which nobody called for"


def _wrong_effects_of(group: list[Outcome], count: int) -> Iterator[str]:
    """Calls share a nonce where they share an idempotency key: then they are one."""
    tool = group[0].tool
    if any(call.unsafe for call in group) and count > 1:
        yield f"I3: {tool} happened {count} times"
    if any(call.ok and call.has_effect for call in group) and not count:
        yield f"I3: {tool} was answered, and did not happen"
    if count and all(call.executed == "no" for call in group):
        yield f"I4: {tool} happened, and was reported as not executed"
