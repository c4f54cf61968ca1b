"""Rules for an agent run's tool calls: what is called, what needs approval, and what is rejected.

All state follows from the order of the calls and their outcomes, so a replay makes the same decisions again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Final, Literal, NamedTuple

import msgspec

from toolway.agents.errors import BUDGET_HINT, BudgetUsed
from toolway.agents.settings import AgentSettings, may_match
from toolway.protocol.sanitize import escape_invisible
from toolway.types import Effect, Json

WARN_AFTER: Final = 3  # equal calls with equal results, after which the model gets a note
STOP_AFTER: Final = 8  # … after which the run ends
MAX_CALLS_OF_TURN: Final = 128
MAX_REVIEW_CHARS: Final = 65_536  # of a call that a user must approve


class CallDecision(NamedTuple):
    """The decision on a tool call. `text` is the question for the user, or the reason for the model."""

    action: Literal["call", "approve", "refuse"]
    text: str = ""


class CallRules:
    """Decides about each tool call of one agent run, from the settings and the calls so far.

    Args:
        settings: Settings of the run.
        untrusted: Servers whose results may contain untrusted instructions. Default: the servers in the settings.

    With `untrusted="none"` in the settings, no call needs approval because of what was read. It is recorded all the
    same: another agent may get the answer.
    """

    def __init__(self, settings: AgentSettings, untrusted: Collection[str] | None = None) -> None:
        self._settings = settings
        own = () if settings.untrusted == "none" else settings.untrusted
        self._untrusted = frozenset(own if untrusted is None else untrusted)
        self._guards = settings.untrusted != "none"
        self._unknown: set[str] = set()  # unsafe calls that may have run
        #: Untrusted servers that the model has read from, and the turn of the first result; 0 if it is in the prompt.
        self._read_untrusted = {
            name: 0 for name in sorted(self._untrusted) if any(may_match(name, each) for each in settings.has_read)
        }
        self._repeats: dict[str, int] = {}
        self.calls = 0
        self._used_up_in: int | None = None  # turn whose results say that no call is left

    def require_calls_left(self, turn: int) -> None:
        """Raise `BudgetUsed` if the model wants a call after being told that none are left."""
        if self._used_up_in is not None and self._used_up_in < turn:
            limit = self._settings.budget.calls
            raise BudgetUsed(
                f"the run has used up its budget of {limit} calls",
                detail=f"used: {self.calls} calls, and the model asked for another one",
                hint=BUDGET_HINT,
            )

    def add_calls(self, count: int, turn: int) -> None:
        """Count tool calls that this run or a child run made in turn `turn` against the budget."""
        self.calls += count
        budget = self._settings.budget.calls
        if budget is not None and self.calls >= budget and self._used_up_in is None:
            self._used_up_in = turn

    def add_call_note(self, text: str) -> str:
        """Return a call's result for the model, with a note if no calls are left."""
        if self._used_up_in is None:
            return text
        return f"{text}\n\n[That was the last of your {self._settings.budget.calls} calls. Give your answer now.]"

    def find_surplus(self, place: int) -> str | None:
        """Return the rejection for the model if a call at this place in an answer is one too many, or else None."""
        if place <= MAX_CALLS_OF_TURN:
            return None
        return f"did not run: an answer may contain {MAX_CALLS_OF_TURN} calls. Make the rest in your next turn."

    def reserve(self, turn: int) -> str | None:
        """Count a tool call against the budget.

        If no call is left, return the rejection for the model, or else None.
        """
        budget = self._settings.budget.calls
        if budget is not None and self.calls >= budget:
            self._used_up_in = turn if self._used_up_in is None else self._used_up_in
            return f"did not run: the budget of {budget} calls is used up. Give your answer now."
        self.add_calls(1, turn)
        return None

    def decide(self, tool: str, args: Json, effect: Effect, turn: int) -> CallDecision:
        """Decide on a call that the model wants: make it, ask a user first, or reject it.

        A user sees the whole call, so a call that is too long to read is rejected.
        """
        decision = self._decide(tool, args, effect, turn)
        size = len(decision.text)
        if decision.action == "approve" and size > MAX_REVIEW_CHARS:
            return CallDecision(
                "refuse",
                f"did not run: someone would have to read {size} characters to approve this call; "
                f"the limit is {MAX_REVIEW_CHARS}. Send less in one call.",
            )
        return decision

    def _decide(self, tool: str, args: Json, effect: Effect, turn: int) -> CallDecision:
        title = escape_invisible(f"{tool} {msgspec.json.encode(args).decode()}")
        if effect is Effect.UNSAFE and _digest(tool, args) in self._unknown:
            if self._settings.approve == "none":
                return CallDecision(
                    "refuse",
                    "did not run: the same call was made before and may have run. "
                    "Check with a tool that reads. Do not repeat it, not even with other arguments.",
                )
            return CallDecision("approve", f"may have run already: {title}")
        if self._settings.needs_approval(tool, effect):
            return CallDecision("approve", title)
        server = tool.partition(".")[0]
        sources = [name for name in self.sources(turn) if name != server]
        if self._guards and effect is Effect.UNSAFE and sources:
            return CallDecision("approve", f"after reading from {', '.join(sources)} (untrusted): {title}")
        return CallDecision("call")

    def sources(self, turn: int) -> list[str]:
        """Return the untrusted servers whose results the model has read before this turn."""
        # A result can only change what the model wants in later turns.
        return sorted(name for name, first in self._read_untrusted.items() if first < turn)

    @property
    def read_untrusted(self) -> list[str]:
        """Return the untrusted servers whose results the model has read in this run or in its prompt."""
        return sorted(self._read_untrusted)

    def mark_read(self, servers: Iterable[str], turn: int) -> None:
        """Record that the model reads content from these untrusted servers in the results of turn `turn`."""
        for server in servers:
            self._read_untrusted.setdefault(server, turn)

    def add_result(self, tool: str, args: Json, text: str, turn: int) -> str:
        """Record the result of a call; return the text for the model, with a warning if the call was repeated often.

        Raises `LoopDetected` if the model makes the same call with the same result again and again.
        """
        server = tool.partition(".")[0]
        if server in self._untrusted:
            self.mark_read([server], turn)
        key = _digest(tool, [args, text])
        count = self._repeats[key] = self._repeats.get(key, 0) + 1
        if count >= STOP_AFTER:
            raise LoopDetected(tool, count)
        if count < WARN_AFTER:
            return text
        return f"{text}\n\n[You made this call {count} times with the same result. Do something else.]"

    def add_unknown(self, tool: str, args: Json) -> None:
        """Record a tool call that may have run, because its outcome is unknown.

        If the model requests it again, a user is asked, or the call is rejected.
        """
        self._unknown.add(_digest(tool, args))


class LoopDetected(Exception):
    """Raised when a model makes the same call with the same result too often."""

    def __init__(self, tool: str, count: int) -> None:
        super().__init__(f"the model called {tool} {count} times with the same arguments and the same result")


def _digest(tool: str, value: object) -> str:
    return hashlib.sha256(tool.encode() + b"\0" + msgspec.json.encode(value, order="deterministic")).hexdigest()
