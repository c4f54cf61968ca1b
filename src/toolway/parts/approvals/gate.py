"""The gate that decides whether someone must approve a call, asks for the approval, and lets each answer count once.

With `client`, the gateway asks the user of the calling client. A modern client gets the result `input_required` and
calls again with the answer; a legacy client is asked on the call's stream. This only protects against mistakes, because
a program can answer too. If the client cannot be asked, the call waits for an administrator.

With `admin`, the call ends at once with `ApprovalRequired`, and the client repeats it after an administrator has
approved it.

An answer covers one call: the same caller, tool, definition, and arguments, within 15 minutes
([0037](docs/decisions/0037-approvals.md)).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec.structs import replace

from toolway.catalog.catalog import Tool
from toolway.errors import Certainty, ConfigError, NotFound, ServerUnavailable
from toolway.events import ApprovalChanged, Event
from toolway.gateway.mcp.context import supports_server_request
from toolway.middleware.approval import (
    ANSWER_KEY,
    ASKER,
    ApprovalBinding,
    ApprovalReply,
    ApprovalRequired,
    ApprovalResult,
    CallCheck,
    CheckedRule,
    bind_call,
    denied_call,
)
from toolway.middleware.replay import EarlierCall
from toolway.parts.approvals.alerts import condition_of
from toolway.parts.approvals.conditions import compile_conditions
from toolway.parts.approvals.form import (
    ArgumentReader,
    build_question,
    cut_arguments,
    describe_effect,
    refusal_in,
    size_of,
)
from toolway.parts.approvals.records import (
    APPROVAL_LIFETIME_S,
    MAX_REVIEW_BYTES,
    ApprovalLinks,
    ApprovalRequest,
    ApprovalStore,
    StoreError,
    new_nonce,
    new_request_id,
)
from toolway.parts.approvals.refusals import queue_full, store_unavailable, too_long
from toolway.parts.approvals.rules import ApproveRule, ApproveRules
from toolway.types import Call, CallbackError, CallResult, Json

if TYPE_CHECKING:
    from toolway.workflows.expressions import Expressions

RETRY_AFTER_S: Final = 5.0  # seconds after which a client may repeat a call that waits
MAX_REASON_CHARS: Final = 500
MAX_REMEMBERED: Final = 10_000  # approvals used by this process
_ELICIT: Final = "elicitation/create"
_log = logging.getLogger("toolway.gateway")


class CallApprovals:
    """Implementation of `CallGate`: holds the approval requests, and the rules for which calls need one.

    Administrators list and answer the requests through it. `mask` hides secrets in strings, `name_secrets` returns
    which secrets a text contains, and `emit` reports events. `links` verifies the links in messages to administrators;
    without it, no link is valid. `now` returns the wall-clock time.
    """

    def __init__(
        self,
        store: ApprovalStore,
        mask: Callable[[str], str],
        emit: Callable[[Event], None],
        now: Callable[[], float] = time.time,
        links: ApprovalLinks | None = None,
        name_secrets: Callable[[str], Sequence[str]] = lambda text: (),
    ) -> None:
        self._reader = ArgumentReader(mask, name_secrets)
        self._store = store
        self._links = links
        self._emit = emit
        self._now = now
        self._settings: list[tuple[str, ApproveRule]] = []
        self._rules = ApproveRules({})
        self._expressions: Expressions | None = None
        self._checks: list[CallCheck] = []  # of parts
        self.user_of: Callable[[str], str] = lambda caller: caller  # one id for all of a user's keys
        self._used: dict[str, None] = {}  # ids, oldest first: a row that was put back is not used again

    @property
    def is_active(self) -> bool:
        """Return True if the configuration requires approvals for any calls."""
        return bool(self._rules) or any(each.may_ask for each in self._checks)

    def add_check(self, check: CallCheck) -> None:
        """Let `check` decide about every call as well. Administrators answer for it as they do for the rules."""
        self._checks.append(check)

    def set_rules(self, rules: Mapping[str, ApproveRule]) -> bool:
        """Use these approval rules from now on. Return True if they changed.

        Raises `ConfigError` if a condition is invalid; the old rules then remain in use.
        """
        settings = list(rules.items())  # their order counts
        if settings == self._settings:
            return False
        expressions = compile_conditions(rules)
        if self._expressions is not None:
            self._expressions.close()
        self._settings, self._rules, self._expressions = settings, ApproveRules(rules), expressions
        return True

    async def close(self) -> None:
        """Close the store of approval requests."""
        if self._expressions is not None:
            self._expressions.close()
            self._expressions = None
        await self._store.close()

    # -- gate of the hub ----------------------------------------------------------------------------------------------

    def rules_for(self, server: str, name: str, tool: Tool | None) -> Sequence[ApproveRule | CheckedRule]:
        checked = [CheckedRule(each, rule) for each in self._checks for rule in each.rules_for(server, name)]
        if not self._rules:
            return checked
        # Until the definition is known, its hint may be there.
        destructive = tool is None or tool.stale or (tool.annotations or {}).get("destructiveHint") is True
        return (*self._rules.find(server, name, destructive=destructive), *checked)

    def quick_check(self, rules: Sequence[ApproveRule | CheckedRule], caller: str) -> Callable[[], bool] | None:
        """Return a function that says whether the caller's next call may skip the full check, or None if no call may.

        Calls may only skip it if the tool has exactly one rule and that rule's check agrees.
        """
        (first, *others) = rules
        return None if others or not isinstance(first, CheckedRule) else first.check.quick_check(first.rule, caller)

    async def admit(self, call: Call) -> Call | ApprovalResult:
        binding = bind_call(call)
        reply: ApprovalReply | None = call.approval
        state = _State.decode(reply.state) if reply is not None else None
        earlier: EarlierCall | None = call.earlier
        if state is not None and state.kind == "rest" and earlier is None:
            return await self._use_rest(call, binding, state)
        checked = [each for each in call.policy.approval if isinstance(each, CheckedRule)]
        asking = [each for each in checked if await each.check.check(call, each.rule) == "ask"]
        if asking:
            if earlier is None or not earlier.is_approved_by("admin"):
                await self._require_admin(call, binding)
            for each in asking:
                await each.check.add(call, each.rule)
            return call
        rules = [each for each in call.policy.approval if isinstance(each, ApproveRule)]
        by = await self._approver(rules, call.arguments)
        if by is None or (earlier is not None and earlier.is_approved_by(by)):
            return call
        if by == "client":
            if state is not None:
                return await self._use_answer(call, binding, state, reply.answer if reply is not None else None)
            if call.return_input_required and supports_server_request(call.capabilities or {}, _ELICIT, {}):
                return self._ask_later(call, binding)
            if not call.return_input_required and call.callbacks is not None:
                answer = await self._ask_now(call, binding)
                if answer is not None:
                    self._report(call, binding, "asked", "")
                    return self._accept(call, binding, answer)
        return await self._require_admin(call, binding)

    def hold_rest(self, call: Call, result: CallResult) -> CallResult:
        raw = {name: value for name, value in result.raw.items() if name != "requestState"}
        basis, by = self._basis(bind_call(call)), call.state.approved_by
        state = _State("rest", new_nonce(), basis, result.raw.get("requestState"), by)
        return ApprovalResult(call.server, call.name, raw, approval_state=state.encode())

    def _basis(self, binding: ApprovalBinding) -> str:
        """Return a hash of a call, its tool definition, and the approval rules.

        An answer stays valid only while none of these change.
        """
        rules = [(key, rule.by, rule.when) for key, rule in self._settings]
        return hashlib.sha256(msgspec.json.encode([binding.digest, binding.definition, rules])).hexdigest()

    async def _approver(self, rules: Sequence[ApproveRule], arguments: Json) -> str | None:
        """Return who must approve a call with these arguments (`client` or `admin`), or None if no rule applies."""
        for rule in rules:  # rules for administrators come first
            if not rule.when or await self._is_met(rule.when, arguments):
                return rule.by
        return None

    async def _is_met(self, condition: str, arguments: Json) -> bool:
        """Return True if a rule's condition is true for these arguments, or cannot be evaluated.

        When in doubt, approval is required.
        """
        expressions = self._expressions
        if expressions is None:
            return True
        try:
            if not expressions.has_macros:
                return expressions.is_true(condition, {"args": arguments})
            return await asyncio.to_thread(expressions.is_true, condition, {"args": arguments})
        except Exception as exc:  # of the runtime, too
            _log.debug("a condition of toolway.approve has no value: %s", exc)
            return True

    # -- the user of the client ---------------------------------------------------------------------------------------

    def _ask_later(self, call: Call, binding: ApprovalBinding) -> ApprovalResult:
        """Return the result `input_required`, which makes a modern client ask its user to approve the call.

        The client sends the sealed state back with its answer. The gateway stores nothing else about the question.
        """
        state = _State("asked", new_nonce(), self._basis(binding))
        self._report(call, binding, "asked", state.nonce)
        question = {"method": _ELICIT, "params": self._question(call, binding)}
        raw = {"resultType": "input_required", "inputRequests": {ANSWER_KEY: question}}
        return ApprovalResult(call.server, call.name, raw, approval_state=state.encode(), is_question=True)

    async def _ask_now(self, call: Call, binding: ApprovalBinding) -> Json | None:
        """Ask a legacy client's user, on the call's stream, to approve the call.

        Return the answer, or None if the client cannot be asked.
        """
        assert call.callbacks is not None
        clock = asyncio.get_running_loop().time
        call.state.begin_user_wait(clock())
        try:
            return await call.callbacks.handle_request(ASKER, _ELICIT, self._question(call, binding))
        except LookupError:
            return None
        except (CallbackError, TimeoutError):
            return {"action": "cancel"}
        finally:
            call.state.end_user_wait(clock())

    def _question(self, call: Call, binding: ApprovalBinding) -> Json:
        return build_question(call, cut_arguments(self._reader.describe(call)), binding.digest)

    def _accept(self, call: Call, binding: ApprovalBinding, answer: Json | None, nonce: str = "") -> Call:
        refusal = refusal_in(answer)
        if refusal:
            self._report(call, binding, "denied", nonce, refusal)
            raise denied_call(call, refusal)
        self._report(call, binding, "approved", nonce)
        self._report(call, binding, "used", nonce)
        call.state.approved_by = "client"
        return call

    async def _use_answer(self, call: Call, binding: ApprovalBinding, state: _State, answer: Json | None) -> Call:
        """Return the call if a modern client's answer approves it, and raise `CallError` otherwise.

        The sealed state proves that the answer is for this call by this caller.
        """
        await self._spend(call, binding, state)
        return self._accept(call, binding, answer, state.nonce)

    async def _use_rest(self, call: Call, binding: ApprovalBinding, state: _State) -> Call:
        """Continue an approved call after the client has sent the input that the server asked for."""
        await self._spend(call, binding, state)
        call.state.approved_by = state.by
        if state.upstream is None:
            return call
        return replace(call, params={**call.params, "requestState": state.upstream})

    async def _spend(self, call: Call, binding: ApprovalBinding, state: _State) -> None:
        if state.basis != self._basis(binding):
            refusal = "the call, its tool's definition, or the approval rules changed after the question"
        elif not await self._stored(call, self._store.spend(state.nonce)):
            refusal = "the answer was already used"
        else:
            return
        self._report(call, binding, "rejected", state.nonce, refusal)
        raise denied_call(call, refusal, "call the tool again without a requestState")

    # -- administrators ------------------------------------------------------------------------------------------------

    async def _require_admin(self, call: Call, binding: ApprovalBinding) -> Call:
        """Return the call if an administrator has approved it, and raise `CallError` otherwise.

        In that case an approval request is stored first, unless a request for the same call already waits or was
        denied.
        """
        now = self._now()
        arguments = self._reader.describe(call)
        if size_of(arguments) > MAX_REVIEW_BYTES:
            self._report(call, binding, "rejected", "", "its arguments are too long to review", by="admin")
            raise too_long(call, size_of(arguments))
        request = ApprovalRequest(
            id=new_request_id(),
            key=binding.key,
            state="pending",
            caller=call.caller,
            server=call.server,
            tool=call.name,
            effect=describe_effect(call),
            digest=binding.digest,
            definition=binding.definition,
            arguments=arguments,
            call=call.id,
            asked_at=now,
            until=now + APPROVAL_LIFETIME_S,
        )
        outcome, found, expired = await self._stored(call, self._store.claim(request))
        self._report_expired(expired)
        if outcome == "used" and found.id not in self._used:
            self._remember(found.id)
            self._report(call, binding, "used", found.id, who=found.who, by="admin")
            call.state.approved_by = "admin"
            return call
        if outcome == "full":
            self._report(call, binding, "rejected", "", "too many requests are waiting", by="admin")
            raise queue_full(call)
        if outcome in ("denied", "used"):
            raise denied_call(call, found.reason or "an administrator denied it")
        if outcome == "asked":
            self._report(call, binding, "asked", found.id, by="admin")
        raise ApprovalRequired(
            f"{call.server}.{call.name} needs approval",
            approval_id=found.id,
            server=call.server,
            tool=call.name,
            retry_after=RETRY_AFTER_S,
            detail=f"an administrator must approve it (request {found.id})",
            hint=f"once approved, call it again with the same arguments: toolway approvals approve {found.id}",
        )

    def _remember(self, id_: str) -> None:
        self._used[id_] = None
        if len(self._used) > MAX_REMEMBERED:
            del self._used[next(iter(self._used))]

    async def _stored(self, call: Call, work: Any) -> Any:
        try:
            return await work
        except StoreError as exc:
            _log.error("cannot use the approval store: %s", exc)
            raise ServerUnavailable(
                "approvals are unavailable, so the call was not sent",
                server=call.server,
                tool=call.name,
                certainty=Certainty.NOT_SENT,
                hint="see the gateway log for the cause, then try again",
                code="E-APPROVAL-STORE",
            ) from exc

    # -- administrators -----------------------------------------------------------------------------------------------

    async def list_requests(self) -> list[ApprovalRequest]:
        """Return the requests that wait for an administrator, oldest first, then the recently answered ones."""
        found = await self._read()
        return sorted(found, key=lambda each: (each.state != "pending", each.asked_at))

    async def get_request(self, id_: str) -> ApprovalRequest:
        """Return one approval request. Raises `NotFound` if unknown or expired."""
        for each in await self._read():
            if each.id == id_:
                return each
        raise NotFound(f"unknown or expired request {id_[:40]!r}", hint="see what is waiting: toolway approvals ls")

    async def get_linked_request(self, link: str) -> ApprovalRequest:
        """Return the approval request behind a link. Raises `NotFound` if either is invalid."""
        return await self.get_request(self._id_in(link))

    def _id_in(self, link: str) -> str:
        id_ = self._links.read(link) if self._links is not None else None
        if id_ is None:
            raise NotFound(
                "this approval link is not valid",
                detail="it is not from this gateway, or it is older than 15 minutes",
                hint="see what is waiting: toolway approvals ls",
            )
        return id_

    async def decide(
        self, id_: str, state: Literal["approved", "denied"], who: str, reason: str = "", *, link: str | None = None
    ) -> ApprovalRequest:
        """Approve or deny a request as the principal `who`. Return the request with the answer.

        `link` is the link through which the principal found the request, if any. Raises `NotFound` if the link is not
        valid for this request or the request no longer waits, and `ConfigError` if callers try to approve their own
        calls.
        """
        if link is not None and self._id_in(link) != id_:
            raise NotFound(
                "this approval link is for another request", hint="see what is waiting: toolway approvals ls"
            )
        request = await self.get_request(id_)
        if request.caller and self.user_of(request.caller) == self.user_of(who) and state == "approved":
            raise ConfigError(
                "a caller cannot approve its own call",
                detail=f"call {id_} was made with the same key or login, or with a key that one of them created",
                hint="ask another administrator to approve it",
                code="E-APPROVAL-OWN",
            )
        try:
            decided = await self._store.decide(id_, state, who, reason[:MAX_REASON_CHARS])
        except StoreError as exc:
            raise store_unavailable(exc) from exc
        if decided is None:
            raise NotFound(
                f"request {id_} is no longer open",
                detail=f"it was {request.state} or has expired",
                hint="see what is waiting: toolway approvals ls",
            )
        self._emit_change(_event(decided, state))
        return decided

    async def count_pending(self) -> int:
        """Return the number of requests that wait for an administrator."""
        try:
            return await self._store.count_pending()
        except StoreError as exc:
            raise store_unavailable(exc) from exc

    async def _read(self) -> list[ApprovalRequest]:
        try:
            return await self._store.load()
        except StoreError as exc:
            raise store_unavailable(exc) from exc

    # -- events -------------------------------------------------------------------------------------------------------

    def _report_expired(self, expired: Iterable[ApprovalRequest]) -> None:
        for each in expired:
            self._emit_change(_event(each, "expired"))

    def _report(
        self,
        call: Call,
        binding: ApprovalBinding,
        action: str,
        id_: str,
        reason: str = "",
        *,
        who: str = "",
        by: str = "client",
    ) -> None:
        self._emit_change(
            ApprovalChanged(call.server, action, by, id_, call.name, call.caller, who, reason, binding.digest, call.id)
        )

    def _emit_change(self, event: ApprovalChanged) -> None:
        self._emit(event)
        condition = condition_of(event)
        if condition is not None:
            self._emit(condition)


def _event(request: ApprovalRequest, action: str) -> ApprovalChanged:
    return ApprovalChanged(
        *(request.server, action, "admin", request.id, request.tool, request.caller, request.who, request.reason),
        digest=request.digest,
        call=request.call,
    )


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The content of the sealed state that a client gets with a question and sends back.

    Its kind is `asked` if the gateway asked for an approval, and `rest` if the call was approved and its server needs
    input.
    """

    kind: Literal["asked", "rest"]
    nonce: str
    basis: str  # hash of the call, the definition of its tool and the rules
    upstream: Any = None  # state of the server
    by: str = ""  # who approved the call

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> _State:
        return msgspec.json.decode(text, type=_State)
