"""Approval middleware: a call that matches an approval rule needs someone's approval.

It runs after `arguments`, so no one is asked about a call that would be rejected anyway. It runs before everything
that answers a call, including stored results, and before `audit` and `retry`, because one approval allows one call.
Rules and answers come from the gate, which a gateway provides. A hub without a gate never asks.

An approval covers one definition of the tool, so the definition is compared again right before the first byte of the
call is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from toolway.catalog.catalog import Tool
from toolway.errors import AccessDenied, CallError, Certainty
from toolway.middleware.replay import refuse_replay
from toolway.outcomes import APPROVAL_CODE
from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from toolway.types import Call, CallHandler, CallResult, Json, Middleware, ToolResult
from toolway.upstream.transport import SEND_TOO_LATE

APPROVAL_DENIED_CODE: Final = "E-APPROVAL-DENIED"
ASKER: Final = "toolway gateway"  # before the question, like the name of a server; no server can have this name
ANSWER_KEY: Final = "toolway-approval"  # of the gate's question among the input requests of a result
_UNBOUND_PARAMS: Final = ("_meta", "requestState", "inputResponses")  # differ between two requests for one call
#: Keys of `_meta` that differ between two requests for one call, and that no tool acts on.
_UNBOUND_META: Final = frozenset(
    {
        PROTOCOL_VERSION_META_KEY,
        CLIENT_INFO_META_KEY,
        CLIENT_CAPABILITIES_META_KEY,
        LOG_LEVEL_META_KEY,
        "progressToken",
        "traceparent",
        "tracestate",
        "baggage",
    }
)


class ApprovalRequired(CallError):
    """Raised when a call needs an administrator's approval. It was not sent; call again once it is approved."""

    code = APPROVAL_CODE

    def __init__(self, message: str, *, approval_id: str, **kwargs: Any) -> None:
        super().__init__(message, certainty=Certainty.NOT_SENT, **kwargs)
        self.approval_id = approval_id


class ApprovalReply(NamedTuple):
    """A client's reply to an approval question: the decrypted state and the user's answer."""

    state: str
    answer: Json | None


class ApprovalResult(ToolResult, frozen=True):
    """The `input_required` result of a call that is waiting for its client's answer, with the gate's state.

    It asks either the gate's own question about the call (`is_question`), or a question that the server asked during
    a call that was already approved.
    """

    approval_state: str = ""
    is_question: bool = False  # of the gate, and not of the server


class CallGate(Protocol):
    """Decides which calls need someone's approval, and whether a call has it."""

    def rules_for(self, server: str, name: str, tool: Tool | None) -> Sequence[Any]:
        """Return the approval rules that may apply to calls to a tool; () if there are none.

        If the tool's definition is not known, `tool` is None, and all rules that could apply are returned.
        """
        ...

    def quick_check(self, rules: Sequence[Any], caller: str) -> Callable[[], bool] | None:
        """Return a function that tells whether `caller`'s calls run without approval under these rules.

        While it returns True, `admit` need not be called. Return None if these rules always require `admit`.
        """
        ...

    async def admit(self, call: Call) -> Call | ApprovalResult:
        """Return the call if it was approved or does not need approval, or else an approval question for the client.

        If an earlier call answers this one (`Call.earlier`) and was approved, no one is asked again. Who approved a
        call is recorded in its state.

        Raises `ApprovalRequired` if an administrator has to approve the call first, and other `CallError`s if it is
        denied.
        """
        ...

    def hold_rest(self, call: Call, result: CallResult) -> CallResult:
        """Return an approved call's `input_required` result, with a one-time state in place of the server's.

        The one-time state lets the client continue the call without a second approval.
        """
        ...


class CallCheck(Protocol):
    """A check that a part adds to the gate: passes a call, rejects it, or asks an administrator."""

    @property
    def may_ask(self) -> bool:
        """True if the current settings may require an administrator to decide on a call."""
        ...

    def rules_for(self, server: str, name: str) -> Sequence[Any]:
        """Return what the check knows about a tool, as separate values, or () if it ignores the tool."""
        ...

    def quick_check(self, rule: Any, caller: str) -> Callable[[], bool] | None:
        """Return a function that tells whether `check` would change nothing, or None if it must always run.

        So a call without a task (hub/flight.py) can skip it.
        """
        ...

    async def check(self, call: Call, rule: Any) -> Literal["pass", "ask"]:
        """Return `pass`, or `ask` if the call needs approval. Raises `CallError` if the call is rejected."""
        ...

    async def add(self, call: Call, rule: Any) -> None:
        """Record that an administrator approved a call for which `check` returned `ask`."""
        ...


class CheckedRule(NamedTuple):
    """One value from `CallCheck.rules_for`, among a tool's approval rules."""

    check: CallCheck
    rule: Any


class CheckedGate(CallGate, Protocol):
    """A gate to which parts can add checks."""

    def add_check(self, check: CallCheck) -> None: ...


def approval(
    gate: CallGate,
    wait_for_definition: Callable[[Call], Awaitable[Call]],
    definition_of: Callable[[str, str], str],
) -> Middleware:
    """Return middleware that sends a call only if the approval gate `gate` allows it.

    `wait_for_definition` waits until the server has listed the called tool, and returns the call with the tool's
    policy. `definition_of` returns the hash of a tool's current definition, by server and name, because a call must
    not be sent if the definition changed after the approval.
    """

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        # The node that forwards a call has asked already.
        return next(call) if not call.policy.approval or call.forwarded else run(call, next)

    async def run(call: Call, next: CallHandler) -> CallResult:
        if call.policy.tool is None or call.policy.tool.stale:
            call = await wait_for_definition(call)
            if not call.policy.approval:
                return await next(call)
        try:
            admitted = await gate.admit(call)
        except CallError as exc:
            refuse_replay(exc, call.earlier)
            raise
        if isinstance(admitted, ApprovalResult):
            return admitted
        if call.earlier is not None:
            return await next(admitted)  # nothing is sent
        approved: str = call.policy.definition_hash

        def is_unchanged() -> bool:
            return definition_of(call.server, call.name) == approved

        def may_send() -> bool:
            return is_unchanged() and (call.may_send is None or call.may_send())

        try:
            result = await next(replace(admitted, may_send=may_send))
        except CallError as exc:
            if exc.code == SEND_TOO_LATE and not is_unchanged():
                raise denied_call(call, "the definition of the tool changed after the approval") from exc
            raise
        return gate.hold_rest(call, result) if result.raw.get("resultType") == "input_required" else result

    return middleware


def denied_call(call: Call, detail: str, hint: str = "") -> AccessDenied:
    """Return the error for a call that was not approved. Nothing was sent to the server."""
    return AccessDenied(
        f"{call.server}.{call.name} was not approved",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        detail=detail,
        hint=hint or "do not repeat it unchanged: ask whoever decides",
        code=APPROVAL_DENIED_CODE,
    )


class ApprovalBinding(NamedTuple):
    """Hashes of what an approval covers: one caller's call, its arguments, and the tool."""

    key: str  # SHA-256 of all that follows
    digest: str  # SHA-256 of the name, the arguments and the bound `_meta` as canonical JSON
    definition: str  # hash of the tool definition


def bound_meta(call: Call) -> Json:
    """Return what the caller adds to a request's `_meta`, without protocol and tracing keys."""
    meta = call.params.get("_meta")
    return {key: value for key, value in meta.items() if key not in _UNBOUND_META} if isinstance(meta, dict) else {}


def bind_call(call: Call) -> ApprovalBinding:
    """Return the hashes (caller, call, arguments, definition) that this call's approval is bound to.

    What the caller adds to `_meta` for the server is bound too.
    """
    params = {name: value for name, value in call.params.items() if name not in _UNBOUND_PARAMS}
    meta = bound_meta(call)
    if meta:
        params["_meta"] = meta
    digest = _hash({**params, "name": call.name, "arguments": call.arguments})
    definition = call.policy.definition_hash
    return ApprovalBinding(_hash([call.caller, call.server, call.name, definition, digest]), digest, definition)


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
