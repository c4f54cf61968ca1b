"""Conversion of calls and events into audit records.

A record of a call names the caller, the tool, the time and the outcome. It does not contain the payload. Arguments are
stored as a digest, or redacted if you enable that. Results and error messages, which servers write, are never
stored.

A call that changes something, or has an idempotency key, gets two records: the intent, on disk before the call is sent,
and the outcome. Other calls get only the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from toolway.audit.sink import RecordFields, encode_fields
from toolway.audit.writer import AuditUnavailable, AuditWriter, CommitCallback
from toolway.errors import AccessDenied, CallError, Certainty, Executed, InvalidArguments, NotFound, ProtocolError
from toolway.events import (
    AccessEvent,
    ApprovalChanged,
    CallFinished,
    CatalogChanged,
    Connected,
    DefinitionReviewed,
    Disconnected,
    Event,
    PolicyChanged,
    PolicyDecision,
    RunAction,
    RunChanged,
    ServerChanged,
    StateChanged,
)
from toolway.outcomes import CANCELLED_CODE, audit_value, code_of_result, error_code
from toolway.secrets.replacer import cut_text
from toolway.secrets.server_secrets import mask_target
from toolway.telemetry.redaction import CUT_MARK, Redactor
from toolway.telemetry.refusals import RefusalCounter, RejectedCalls, is_rejected
from toolway.types import Call, CallResult, Effect, Json

READ_GRACE_S: Final = 300.0  # reading calls are accepted for this time although the log cannot be written
MAX_ARGUMENT_BYTES: Final = 16 * 1024  # if arguments are logged
MAX_OPEN_INTENTS: Final = 20_000
MAX_CACHED_FIELDS: Final = 10_000
MAX_TOOL_NAMES: Final = 50  # in one record
_REJECTED_CODES: Final = frozenset({NotFound.code, AccessDenied.code, InvalidArguments.code, "E-KEY", "E-KEY-MISMATCH"})
_RUN_ENDS: Final = frozenset({"done", "failed", "undone", "cancelled", "stuck", "damaged"})  # states of a workflow run
_MAX_NAME_CHARS: Final = 300  # of a tool or resource


class SharedFields(NamedTuple):
    """JSON-encoded fields, without braces, that the records of similar calls have in common.

    One part is for intent records, the other one for outcome records.
    """

    intent: bytes
    outcome: bytes


class AuditRecorder:
    """Event sink that writes finished calls and events to the audit log.

    The audit middleware also uses it, to record intents before calls and outcomes after them.
    """

    wants_attempts = False
    wants_forwarded = True  # in a cluster, each node records the calls that it executes

    def __init__(
        self,
        writer: AuditWriter,
        redactor: Redactor,
        definition_for: Callable[[Call], str],
        now: Callable[[], float],
        *,
        record_arguments: bool = False,
        mask: Callable[[str, str], str] = lambda server, text: text,
    ) -> None:
        """Create the recorder. `definition_for` returns the value of a call's `definition` field.

        `record_arguments`: also record redacted arguments. `mask(server, text)` hides the secrets of that
        server's entry.
        """
        self._writer = writer
        self._redactor = redactor
        self._definition_for = definition_for
        self._now = now
        self._record_arguments = record_arguments
        self._mask = mask
        self._shared_fields: dict[Hashable, SharedFields] = {}
        self._open_intents: dict[str, None] = {}  # calls in flight whose outcome the middleware records
        self._refusals = RefusalCounter(self._record_rejected, now)
        self._denials = RefusalCounter(self._record_denied, now)  # of policies

    # -- for the middleware -------------------------------------------------------------------------------------------

    async def record_intent(self, call: Call) -> None:
        """Write the intent record of a call, which announces the call, and wait until the record is on disk.

        Raises `AuditUnavailable` if the log cannot be written.
        """
        self._add_open(call.id)
        optional = b"}"
        if call.idempotency_key is not None or self._record_arguments or call.state.request_id:
            optional = encode_fields(self._optional_fields(call))
        arguments = call.params.get("arguments")
        await self._writer.commit(*self._intent(call.id, self.shared_fields(call), arguments, optional))

    def start_intent(
        self, id: str, shared: SharedFields, server: str, arguments: Json, on_done: CommitCallback
    ) -> None:
        """Queue the intent record of a tool call that has no idempotency key and no request id.

        `on_done` is called when the intent is on disk or cannot be written. `shared` are the encoded fields
        that similar calls have in common. Raises `AuditUnavailable` if the log cannot be written now.
        """
        optional = b"}"
        if self._record_arguments:
            optional = encode_fields({"given": self._redacted_arguments(server, {"arguments": arguments})})
        self._writer.start_commit(*self._intent(id, shared, arguments, optional), on_done)
        self._add_open(id)

    def _intent(self, id: str, shared: SharedFields, arguments: Any, optional: bytes) -> tuple[bytes, bytes]:
        digest = self._redactor.digest(arguments).encode()
        fields = b',"call":"%b",%b,"arguments":"%b"%b' % (_encoded_call_id(id), shared.intent, digest, optional)
        return b"call.intent", fields

    def _add_open(self, id: str) -> None:
        """Remember that the call `id` has an intent, so `on_call` does not record its outcome a second time.

        The methods `record_…` record that outcome.
        """
        self._open_intents[id] = None
        if len(self._open_intents) > MAX_OPEN_INTENTS:
            self._open_intents.pop(next(iter(self._open_intents)))  # its end was never reported

    def _optional_fields(self, call: Call) -> RecordFields:
        fields: RecordFields = {}
        if call.idempotency_key is not None:
            fields["key"] = self._redactor.digest(call.idempotency_key)
        if self._record_arguments:
            fields["given"] = self._redacted_arguments(call.server, call.params)
        if call.state.request_id:
            fields["request"] = self._mask(call.server, call.state.request_id)
        return fields

    def shared_fields(self, call: Call) -> SharedFields:
        """Return the JSON-encoded record fields that similar calls have in common, from a cache.

        Similar calls have the same caller, server, tool, method, effect and policy.
        """
        key = (call.caller, call.server, call.name, call.method, call.effect, call.policy)
        found = self._shared_fields.get(key)
        if found is None:
            if len(self._shared_fields) >= MAX_CACHED_FIELDS:
                self._shared_fields.clear()
            found = self._shared_fields[key] = self._encode_shared_fields(call)
        return found

    def _encode_shared_fields(self, call: Call) -> SharedFields:
        name = self._redacted_name(call.server, call.method, call.name)
        identity: RecordFields = {"caller": call.caller, "server": call.server, "tool": name}
        request = {"method": call.method, "effect": call.effect.value, "definition": self._definition_for(call)}
        return SharedFields(encode_fields({**identity, **request})[1:-1], encode_fields(identity)[1:-1])

    @property
    def is_writable(self) -> bool:
        """Return True if the audit log can be written now, as far as we know."""
        return self._writer.failure is None

    def check_read_allowed(self) -> None:
        """Raise `AuditUnavailable` if the audit log has been unwritable for more than five minutes.

        Until then, calls that only read are accepted.
        """
        failure = self._writer.failure
        if failure is not None and self._now() - failure.since > READ_GRACE_S:
            raise AuditUnavailable(failure.reason)

    def record_result(self, call: Call, reply: CallResult) -> None:
        code = code_of_result(reply.raw.get("resultType"), is_error=reply.is_error)
        self._record_outcome(call, code, Certainty.EXECUTED, "")

    def record_error(self, call: Call, exc: CallError) -> None:
        self._record_outcome(call, outcome_from_error(exc), exc.certainty or Certainty.NOT_SENT, exc.code)

    def record_cancelled(self, call: Call) -> None:
        certainty = call.state.overall_certainty()
        executed: Executed = "unknown" if certainty > Certainty.REJECTED else "no"  # its result, if any, was dropped
        is_late = call.deadline > 0 and self._now() >= call.deadline
        code = "E-TIMEOUT" if is_late else CANCELLED_CODE
        value = audit_value(code, executed, from_server=False, is_rejected=False)
        self._record_outcome(call, value, certainty, code)

    def late_result_handler(self, call: Call) -> Callable[[Any], None]:
        """Return a function that records a digest of a result which arrives after the call has ended.

        A call may end by timeout. The function keeps the names of the call, not its arguments.
        """
        fields = b',"call":"%b",%b' % (_encoded_call_id(call.id), self.shared_fields(call).outcome)
        return partial(self._record_late_result, fields)

    def _record_late_result(self, fields: bytes, result: Any) -> None:
        self._writer.enqueue(b"call.late_result", fields + encode_fields({"result": self._redactor.digest(result)}))

    def _record_outcome(self, call: Call, outcome: str, certainty: Certainty, code: str) -> None:
        shared = self.shared_fields(call)
        self.record_outcome(call.id, encode_outcome(shared, outcome, certainty, call.state.attempts, code))

    def record_outcome(self, id: str, outcome: bytes) -> None:
        """Record the outcome, encoded by `encode_outcome`, of a call whose intent was recorded."""
        self._writer.enqueue(b"call.outcome", b',"call":"%b",%b' % (_encoded_call_id(id), outcome))

    def _redacted_arguments(self, server: str, params: Json) -> Any:
        redacted = _map_texts(self._redactor.redact(params.get("arguments")), partial(self._mask, server))
        return redacted if len(msgspec.json.encode(redacted)) <= MAX_ARGUMENT_BYTES else CUT_MARK

    def _redacted_name(self, server: str, method: str, name: str) -> str:
        """Return the tool, prompt or resource name of a call as stored, at most 300 characters.

        Of tool names, only secrets of the server are hidden. Other names may be URLs with passwords.
        """
        shown = mask_target(server, method, name, partial(self._mask, server))
        return (
            shown[:_MAX_NAME_CHARS] if method == "tools/call" else self._redactor.redact_text(shown)[:_MAX_NAME_CHARS]
        )

    # -- events -------------------------------------------------------------------------------------------------------

    def on_call(self, event: CallFinished) -> None:
        """Record the outcome of a finished call that has no intent record.

        Such a call only reads, was rejected, or was answered from the cache.
        """
        if event.id in self._open_intents:
            del self._open_intents[event.id]
            return
        name = self._redacted_name(event.server, event.method, event.tool or event.name)
        if is_rejected(event) and not self._refusals.admits(event.caller, event.code, f"{event.server}.{name}"):
            return
        fields: RecordFields = {"call": event.id, "caller": event.caller, "server": event.server}
        fields["tool"] = name
        fields["method"] = event.method
        if event.request_id:
            fields["request"] = self._mask(event.server, event.request_id)
        if event.effect:
            fields["effect"] = event.effect
        fields |= _outcome_fields(event)
        if self._record_arguments and event.params is not None:
            fields["given"] = self._redacted_arguments(event.server, event.params)
        self._writer.enqueue(b"call.outcome", encode_fields(fields))

    def _record_rejected(self, found: RejectedCalls) -> None:
        fields: RecordFields = {"caller": found.caller, "count": found.count, "rejected": found.names}
        self._writer.enqueue(b"call.rejected", encode_fields({**fields, "seconds": found.seconds}))

    def _record_denied(self, found: RejectedCalls) -> None:
        fields: RecordFields = {"who": found.caller, "allowed": False, "count": found.count, "rejected": found.names}
        self._writer.enqueue(b"policy.decision", encode_fields({**fields, "seconds": found.seconds}))

    def flush_rejected(self) -> None:
        """Record rejections that were counted but not yet recorded. Call it before the log is closed."""
        self._refusals.flush()
        self._denials.flush()

    def on_event(self, event: Event) -> None:
        if isinstance(event, PolicyDecision) and not event.allowed:
            name = self._mask(event.server, event.item or event.server)
            if not self._denials.admits(event.principal_id, event.rule[:50], name):
                return
        found = _event_record(event)
        if found is not None:
            kind, fields = found
            self.record_event(kind, {"server": event.server, **fields})

    def record_event(self, kind: str, fields: RecordFields) -> None:
        """Queue an audit record of any kind that is not about a call, with secrets redacted."""
        redacted = {name: self._redactor.redact(value, name) for name, value in fields.items()}
        masked = _map_texts(redacted, partial(self._mask, str(fields.get("server", ""))))
        self._writer.enqueue(kind.encode(), encode_fields(masked))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _map_texts(inner, change) for name, inner in value.items()}
    return [_map_texts(inner, change) for inner in value] if isinstance(value, list) else value


def outcome_from_error(exc: CallError) -> str:
    """Return the value of the audit field `outcome` for a call that ended with an error."""
    from_server = isinstance(exc, ProtocolError) and exc.rpc_code is not None
    is_rejected = isinstance(exc, NotFound | AccessDenied | InvalidArguments)
    return audit_value(exc.code, exc.executed, from_server=from_server, is_rejected=is_rejected)


def encode_outcome(shared: SharedFields, outcome: str, certainty: Certainty, attempts: int, code: str = "") -> bytes:
    """Encode the fields that follow the call id in an outcome record: certainty, outcome, attempts, and error code."""
    optional = encode_fields({"code": code}) if code else b"}"
    template = b'%b,"certainty":"C%d","outcome":"%b","attempts":%d%b'
    return template % (shared.outcome, certainty, outcome.encode(), attempts, optional)


def _outcome_fields(event: CallFinished) -> RecordFields:
    is_rejected = event.code in _REJECTED_CODES
    outcome = audit_value(event.code, event.executed, from_server=event.rpc_code is not None, is_rejected=is_rejected)
    code = error_code(event.code)
    fields: RecordFields = {"certainty": event.certainty.code, "outcome": outcome, "attempts": event.attempts}
    if code:
        fields["code"] = code
    if event.source:
        fields["source"] = event.source
    return fields


def _event_record(event: Event) -> tuple[str, RecordFields] | None:
    """Return the kind and fields of an event's audit record, or None if the event is not recorded."""
    if isinstance(event, Connected):
        return "process.start" if event.pid is not None else "link.up", {"era": event.era, "pid": event.pid}
    if isinstance(event, Disconnected):
        return "process.exit", {"why": event.reason}
    if isinstance(event, StateChanged):
        return ("process.given_up", {"why": event.reason}) if event.new == "failed" else None
    if isinstance(event, ServerChanged):
        return "config.change", {"what": event.change}
    if isinstance(event, AccessEvent):
        return f"auth.{event.action}", {"why": event.reason, "who": event.principal_id}
    if isinstance(event, PolicyDecision):
        fields: RecordFields = {"rule": event.rule, "allowed": event.allowed, "why": event.reason}
        if event.item:
            fields |= {"name": cut_text(event.item, _MAX_NAME_CHARS), "who": event.principal_id}
        return "policy.decision", fields
    if isinstance(event, PolicyChanged):
        return f"policy.{event.action}", {"file": event.file, "why": event.reason, "digest": event.digest}
    if isinstance(event, DefinitionReviewed):
        fields = {"what": event.kind, "name": cut_text(event.name, _MAX_NAME_CHARS), "why": event.reason}
        return f"definition.{event.action}", {**fields, "digest": event.digest, "who": event.who}
    if isinstance(event, ApprovalChanged):
        fields = {"id": event.id, "tool": cut_text(event.tool, _MAX_NAME_CHARS), "by": event.by, "caller": event.caller}
        fields |= {"who": event.who, "why": event.reason, "digest": event.digest, "call": event.call}
        return f"approval.{event.action}", fields
    if isinstance(event, RunAction):
        return f"run.{event.action}", {"run": event.run, "step": event.step, "who": event.who}
    if isinstance(event, RunChanged):
        fields = {"run": event.run, "workflow": event.workflow, "caller": event.caller}
        is_end = event.state in _RUN_ENDS
        return ("run.ended", {**fields, "outcome": event.state, "code": event.code}) if is_end else None
    if isinstance(event, CatalogChanged):
        return "definition.change", {
            "what": event.kind,
            "added": list(event.added[:MAX_TOOL_NAMES]),
            "removed": list(event.removed[:MAX_TOOL_NAMES]),
            "changed": list(event.changed[:MAX_TOOL_NAMES]),
            "counts": [len(event.added), len(event.removed), len(event.changed)],
        }
    return None


def _encoded_call_id(id: str) -> bytes:
    """Return the call id as bytes that do not need escaping in JSON.

    Ids that Toolway generates are alphanumeric; any other id is hex-encoded.
    """
    return id.encode() if id.isalnum() else id.encode().hex().encode()


def needs_intent(call: Call) -> bool:
    return call.effect is Effect.UNSAFE or call.idempotency_key is not None
