"""What is written down of calls and of everything else: facts → records.

Of a call: who, what, when, and what became of it. Not what it said: arguments are a digest, unless the operator wants
them, and then without secrets; answers are never written, and neither are the texts of errors, which servers make.

A call that changes something, or has a key, gets two records: the intent, on disk before it is sent, and the outcome.
Of any other call the outcome says all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from toolway.errors import CallError, Certainty, Denied, NotFound, ProtocolError
from toolway.events import (
    Access,
    CallFinished,
    CatalogChanged,
    Connected,
    Decided,
    Event,
    Lost,
    ServerChanged,
    StateChanged,
)
from toolway.model import Call, Effect, Json, Reply
from toolway.telemetry.audit.ledger import Ledger, LogUnavailable
from toolway.telemetry.audit.records import Fields, rest_of
from toolway.telemetry.redact import CUT, Redactor

READS_GO_ON: Final = 300.0  # seconds for which what changes nothing is done although it cannot be written down
LARGEST: Final = 16 * 1024  # bytes of arguments, where they are wanted
MOST_INTENDED: Final = 20_000
MOST_ABOUTS: Final = 10_000
NAMES: Final = 50  # of tools in one record
_OF_RESULT: Final = {"complete": "ok", "input_required": "input_required", "task": "task"}
_REJECTED: Final = frozenset({NotFound.code, Denied.code, "E-KEY", "E-KEY-MISMATCH"})
_NAME: Final = 300  # characters of the name of a tool or resource


class _About(NamedTuple):
    """What the records of a call say beside what is of this one call: encoded, without braces."""

    intent: bytes
    outcome: bytes


class Book:
    """Listens to a hub (`events.Sink`), and is asked by its stage (`stage.py`)."""

    wants_steps = False
    wants_brought = True  # each gateway's chain says what was done there

    def __init__(
        self,
        ledger: Ledger,
        redactor: Redactor,
        definition_of: Callable[[Call], str],
        now: Callable[[], float],
        *,
        arguments: bool = False,
        mask: Callable[[str, str], str] = lambda server, text: text,
    ) -> None:
        """`arguments`: those of calls too, without secrets. `mask` hides what the entry of a server holds in a text."""
        self._ledger = ledger
        self._redactor = redactor
        self._definition_of = definition_of
        self._now = now
        self._arguments = arguments
        self._mask = mask
        self._abouts: dict[Hashable, _About] = {}
        self._intended: dict[str, None] = {}  # calls under way whose outcome is written by the stage

    # -- for the stage ------------------------------------------------------------------------------------------------

    def intend(self, call: Call) -> Awaitable[None]:
        """What is done when the intent is on disk. It raises `LogUnavailable`, and so does this."""
        self._intended[call.id] = None
        if len(self._intended) > MOST_INTENDED:
            self._intended.pop(next(iter(self._intended)))  # its end was never told of
        digest = self._redactor.digest(call.params.get("arguments")).encode()
        more = rest_of(self._more(call)) if call.key is not None or self._arguments else b"}"
        about = self._about(call)
        rest = b',"call":"%b",%b,"arguments":"%b"%b' % (_id(call), about.intent, digest, more)
        return self._ledger.intend(b"call.intent", rest)

    def _more(self, call: Call) -> Fields:
        fields: Fields = {}
        if call.key is not None:
            fields["key"] = self._redactor.digest(call.key)
        if self._arguments:
            fields["given"] = self._given(call.server, call.params)
        return fields

    def _about(self, call: Call) -> _About:
        """What is the same for many calls is encoded once."""
        key = (call.caller, call.server, call.name, call.method, call.effect, call.terms)
        found = self._abouts.get(key)
        if found is None:
            if len(self._abouts) >= MOST_ABOUTS:
                self._abouts.clear()
            found = self._abouts[key] = self._encoded_about(call)
        return found

    def _encoded_about(self, call: Call) -> _About:
        name = self._name(call.method, call.name)
        who: Fields = {"caller": call.caller, "server": call.server, "tool": name}
        what = {"method": call.method, "effect": call.effect.value, "definition": self._definition_of(call)}
        return _About(rest_of({**who, **what})[1:-1], rest_of(who)[1:-1])

    def check_read(self) -> None:
        """Raises `LogUnavailable` where nothing could be written down for too long."""
        trouble = self._ledger.trouble
        if trouble is not None and self._now() - trouble.since > READS_GO_ON:
            raise LogUnavailable(trouble.why)

    def answered(self, call: Call, reply: Reply) -> None:
        kind = reply.raw.get("resultType", "complete")
        outcome = "tool_error" if reply.is_error else _OF_RESULT.get(str(kind), "other")
        self._outcome(call, outcome, Certainty.C3, "")

    def failed(self, call: Call, exc: CallError) -> None:
        self._outcome(call, outcome_of(exc), exc.certainty or Certainty.C0, exc.code)

    def cut_off(self, call: Call) -> None:
        certainty = call.attempt.judge()
        outcome = "unknown" if certainty > Certainty.C1 else "not_executed"
        self._outcome(call, outcome, certainty, "E-TIMEOUT" if self._now() >= call.deadline else "cancelled")

    def late(self, call: Call, answer: Any) -> None:
        """An answer came after the call had ended."""
        rest = b',"call":"%b",%b' % (_id(call), self._about(call).outcome)
        self._ledger.note(b"call.late_result", rest + rest_of({"result": self._redactor.digest(answer)}))

    def _outcome(self, call: Call, outcome: str, certainty: Certainty, code: str) -> None:
        who = self._about(call).outcome
        more = rest_of({"code": code}) if code else b"}"
        rest = b',"call":"%b",%b,"certainty":"C%d","outcome":"%b","attempts":%d%b'
        values = (_id(call), who, certainty, outcome.encode(), call.attempt.made, more)
        self._ledger.note(b"call.outcome", rest % values)

    def _given(self, server: str, params: Json) -> Any:
        shown = _each_text(self._redactor.value(params.get("arguments")), partial(self._mask, server))
        return shown if len(msgspec.json.encode(shown)) <= LARGEST else CUT

    def _name(self, method: str, name: str) -> str:
        """Tools have names; what else is asked for may be an address."""
        return name[:_NAME] if method == "tools/call" else self._redactor.text(name)[:_NAME]

    # -- what is heard ------------------------------------------------------------------------------------------------

    def on_call(self, fact: CallFinished) -> None:
        """The end of a call that had no intent: one that changes nothing, or was refused, or answered from memory."""
        if fact.id in self._intended:
            del self._intended[fact.id]
            return
        fields: Fields = {"call": fact.id, "caller": fact.caller, "server": fact.server}
        fields["tool"] = self._name(fact.method, fact.tool or fact.name)
        fields["method"] = fact.method
        if fact.effect:
            fields["effect"] = fact.effect
        fields |= _ended(fact)
        if self._arguments and fact.params is not None:
            fields["given"] = self._given(fact.server, fact.params)
        self._ledger.note(b"call.outcome", rest_of(fields))

    def on_event(self, fact: Event) -> None:
        found = _told(fact)
        if found is not None:
            kind, fields = found
            self.write(kind, {"server": fact.server, **fields})

    def write(self, kind: str, fields: Fields) -> None:
        """Something else that happened, without secrets."""
        shown = {name: self._redactor.value(value, name) for name, value in fields.items()}
        masked = _each_text(shown, partial(self._mask, str(fields.get("server", ""))))
        self._ledger.note(kind.encode(), rest_of(masked))


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _each_text(inner, change) for name, inner in value.items()}
    return [_each_text(inner, change) for inner in value] if isinstance(value, list) else value


def outcome_of(exc: CallError) -> str:
    """What became of a call, in the words of the log."""
    if exc.executed == "unknown":
        return "unknown"
    if exc.executed == "yes" or (isinstance(exc, ProtocolError) and exc.rpc_code is not None):
        return "protocol_error"
    return "rejected" if isinstance(exc, NotFound | Denied) else "not_executed"


def _ended(fact: CallFinished) -> Fields:
    executed = fact.certainty.executed
    outcome, code = fact.outcome, ""
    if outcome not in ("ok", "tool_error"):
        code = fact.outcome
        outcome = {"no": "not_executed", "unknown": "unknown", "yes": "protocol_error"}[executed]
        if executed == "no" and code in _REJECTED:
            outcome = "rejected"
    fields: Fields = {"certainty": fact.certainty.name, "outcome": outcome, "attempts": fact.attempts}
    if code:
        fields["code"] = code
    if fact.source:
        fields["source"] = fact.source
    return fields


def _told(fact: Event) -> tuple[str, Fields] | None:
    """What is written of a fact that is not a call, if anything."""
    if isinstance(fact, Connected):
        return "process.start" if fact.pid is not None else "link.up", {"era": fact.era, "pid": fact.pid}
    if isinstance(fact, Lost):
        return "process.exit", {"why": fact.why}
    if isinstance(fact, StateChanged):
        return ("process.given_up", {"why": fact.why}) if fact.new == "failed" else None
    if isinstance(fact, ServerChanged):
        return "config.change", {"what": fact.what}
    if isinstance(fact, Access):
        return f"auth.{fact.what}", {"why": fact.why, "who": fact.who}
    if isinstance(fact, Decided):
        return "policy.decision", {"rule": fact.rule, "allowed": fact.allowed, "why": fact.why}
    if isinstance(fact, CatalogChanged):
        return "definition.change", {
            "what": fact.kind,
            "added": list(fact.added[:NAMES]),
            "removed": list(fact.removed[:NAMES]),
            "changed": list(fact.changed[:NAMES]),
            "counts": [len(fact.added), len(fact.removed), len(fact.changed)],
        }
    return None


def _id(call: Call) -> bytes:
    """What is put between quotes as it is. Ids are made by us; one that was not is not trusted to be one."""
    return call.id.encode() if call.id.isalnum() else call.id.encode().hex().encode()


def needs_intent(call: Call) -> bool:
    return call.effect is Effect.UNSAFE or call.key is not None
