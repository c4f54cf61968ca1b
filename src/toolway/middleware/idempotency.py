"""Idempotency middleware: a call with an idempotency key runs at most once.

It claims keys, but does not answer calls. A second call with the same key and content waits until the first one has
finished. The second call then passes the gates with the first one's outcome attached (`Call.earlier`), and `replay`
answers it. If the first call's outcome is unknown, the second one gets `OutcomeUnknown` without running. If a crash
interrupted the first call, and the server itself detects repeated keys, the call is sent again. If the first call ran
but its result is no longer stored, the error says so (E-KEY-RESULT). The same key with a different call is rejected.
A key is never derived from arguments, because two identical payments may both be intended.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import takewhile
from typing import Any, Final, Literal, NoReturn, Protocol, cast, runtime_checkable

import msgspec
from msgspec.structs import replace

from toolway.errors import AccessDenied, CallError, Certainty, OutcomeUnknown, ProtocolError, ServerUnavailable
from toolway.middleware.replay import EarlierCall
from toolway.middleware.single_flight import InFlightCall, InFlightCalls
from toolway.protocol.jsonrpc import decode_json, encode_json
from toolway.types import Call, CallHandler, CallResult, Effect, Json, Middleware, result_type

MAX_KEY_CHARS: Final = 255
CALLER_SHARE: Final = 4  # one caller may use at most a quarter of the keys
RESULT_DROPPED_CODE: Final = "E-KEY-RESULT"  # the call ran, but its result is not kept
_log = logging.getLogger(__name__)


class IdempotencyKey(msgspec.Struct, frozen=True):
    """An idempotency key, with the caller, server, and tool for which it is valid."""

    caller: str
    server: str
    name: str
    key: str


class IdempotencyRecord(msgspec.Struct, frozen=True):
    """Stored state of a call with an idempotency key: running, finished, unknown, or interrupted.

    The outcome of an interrupted call is unknown, too, because no process has seen the server's answer.
    """

    state: Literal["running", "finished", "unknown", "interrupted"]
    fingerprint: str
    outcome: Json | None = None  # the server's result when finished and who approved it, if it is still kept


class IdempotencyStore(Protocol):
    """Store of idempotency keys. If a method raises, the store counts as unavailable."""

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        """Claim an idempotency key for the call with id `call`: store it as running and return None.

        If the key is already in use, return its record. A repeated claim by the same call id returns None while that
        call is running. The claim is atomic.
        """
        ...

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None: ...

    async def mark_unknown(self, id: IdempotencyKey) -> None: ...

    async def release(self, id: IdempotencyKey) -> None:
        """Delete an idempotency key after a call that did not run, so the key may be used again."""
        ...


@runtime_checkable
class SharedIdempotencyStore(IdempotencyStore, Protocol):
    """Idempotency store shared by several processes: another process may have claimed a key."""

    async def claim_or_wait(
        self, id: IdempotencyKey, fingerprint: str, call: str, on_waiting: Callable[[], None]
    ) -> IdempotencyRecord | None:
        """Claim an idempotency key, or wait a bounded time for the process that has claimed it.

        Return None if this call has claimed the key, or else the key's record. `on_waiting` is called when the wait
        begins, possibly more than once.
        """
        ...


class CrashSafeIdempotencyStore(IdempotencyStore, Protocol):
    """Idempotency store that survives a crash. Only such a store returns records in the state `interrupted`."""

    async def reclaim(self, id: IdempotencyKey, call: str) -> bool:
        """Claim an interrupted call's key and store it as running. Return False if it is no longer interrupted.

        The claim is atomic. `release` makes the key interrupted again.
        """
        ...


class StoreFull(Exception):
    """Raised when an idempotency store has no room for another key of this caller."""


class StoreUsage:
    """Keys and result bytes in an idempotency store, counted by caller, with limits. No I/O.

    A key must be kept, or its call could run twice, so one caller may have at most a quarter of the keys. Only the
    caller "", which is the hub's owner, may have them all. Results may be dropped: if all results together have too
    many bytes, the oldest ones of the caller with the most bytes are dropped.
    """

    def __init__(self, max_keys: int, max_bytes: int) -> None:
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._keys: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._total_keys = 0
        self.total_bytes = 0

    def add_keys(self, caller: str, count: int = 1) -> None:
        self._total_keys += count
        self._keys[caller] += count
        if not self._keys[caller]:
            del self._keys[caller]

    def add_bytes(self, caller: str, size: int) -> None:
        self.total_bytes += size
        self._bytes[caller] += size
        if not self._bytes[caller]:
            del self._bytes[caller]

    def check_key(self, caller: str) -> None:
        """Raise `StoreFull` if a caller, or all callers together, have the maximum number of idempotency keys."""
        if self._total_keys >= self._max_keys:
            raise StoreFull(f"the store is full: {self._max_keys} keys")
        if caller and self._keys[caller] >= max(1, self._max_keys // CALLER_SHARE):
            raise StoreFull(f"this caller has too many keys: {self._max_keys // CALLER_SHARE}, each kept for a day")

    def excess_caller(self) -> str | None:
        """Return the caller whose oldest result must be dropped to keep the byte limit, or None if all results fit."""
        return max(self._bytes, key=self._bytes.__getitem__) if self.total_bytes > self._max_bytes else None


class MemoryIdempotencyStore:
    """Idempotency keys in memory, for a day or until the process ends.

    All results together take at most `max_bytes` as JSON; see `StoreUsage`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        retention_s: float = 86_400.0,
        max_keys: int = 100_000,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._now = now
        self._retention_s = retention_s
        self._usage = StoreUsage(max_keys, max_bytes)
        self._records: dict[IdempotencyKey, tuple[float, IdempotencyRecord]] = {}  # without results
        self._outcomes: dict[str, dict[IdempotencyKey, bytes]] = {}  # results as JSON by caller, oldest first
        self._running: dict[IdempotencyKey, str] = {}  # the claiming call's id

    async def claim(self, id: IdempotencyKey, fingerprint: str, call: str) -> IdempotencyRecord | None:
        self._expire()
        known = self._records.get(id)
        if known is not None:
            return None if call and self._running.get(id) == call else self._with_outcome(id, known[1])
        self._usage.check_key(id.caller)
        self._usage.add_keys(id.caller)
        self._put(id, IdempotencyRecord("running", fingerprint))
        self._running[id] = call
        return None

    async def finish(self, id: IdempotencyKey, outcome: Json) -> None:
        self._put(id, replace(self._records[id][1], state="finished"))
        data = encode_json(outcome)
        self._drop_outcome(id)
        self._outcomes.setdefault(id.caller, {})[id] = data
        self._usage.add_bytes(id.caller, len(data))
        while (caller := self._usage.excess_caller()) is not None:
            self._drop_outcome(next(iter(self._outcomes[caller])))

    async def mark_unknown(self, id: IdempotencyKey) -> None:
        self._put(id, replace(self._records[id][1], state="unknown"))

    async def release(self, id: IdempotencyKey) -> None:
        self._running.pop(id, None)
        if self._records.pop(id, None) is not None:
            self._usage.add_keys(id.caller, -1)

    def _with_outcome(self, id: IdempotencyKey, record: IdempotencyRecord) -> IdempotencyRecord:
        data = self._outcomes.get(id.caller, {}).get(id)
        return replace(record, outcome=decode_json(data)) if data is not None else record

    def _put(self, id: IdempotencyKey, record: IdempotencyRecord) -> None:
        self._running.pop(id, None)
        self._records.pop(id, None)
        self._records[id] = (self._now() + self._retention_s, record)

    def _drop_outcome(self, id: IdempotencyKey) -> None:
        outcomes = self._outcomes.get(id.caller, {})
        data = outcomes.pop(id, None)
        if data is not None:
            self._usage.add_bytes(id.caller, -len(data))
        if not outcomes:
            self._outcomes.pop(id.caller, None)

    def _expire(self) -> None:
        """Drop expired records, except those of running calls."""
        now = self._now()
        old = takewhile(lambda item: item[1][0] <= now, self._records.items())
        for id_ in [id_ for id_, (_, record) in old if record.state != "running"]:
            del self._records[id_]
            self._usage.add_keys(id_.caller, -1)
            self._drop_outcome(id_)


def call_fingerprint(name: str, arguments: Any) -> str:
    """Return a hash that is equal for calls with the same tool and arguments."""
    return hashlib.sha256(msgspec.json.encode([name, arguments], order="deterministic")).hexdigest()


def idempotency(store: IdempotencyStore) -> Middleware:
    """Return middleware that executes a call with an idempotency key at most once."""
    in_flight = InFlightCalls()

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        return next(call) if call.idempotency_key is None else run_with_key(call, next)

    async def run_with_key(call: Call, next: CallHandler) -> CallResult:
        id_, digest = _identify_call(call)
        while (leader := in_flight.get(id_)) is not None and leader.is_cancelling:
            await asyncio.wait({leader.work})  # its outcome determines the state of the key
        if leader is None:
            return await _run_leader(in_flight, store, id_, digest, call, next)
        if leader.label != digest:
            raise _key_mismatch(call)
        return await next(replace(call, earlier=await _join(in_flight, leader, call)))

    return middleware


async def _join(in_flight: InFlightCalls, leader: InFlightCall, call: Call) -> EarlierCall:
    """Wait for the running call with the same idempotency key, and return its outcome as an earlier call.

    Raises that call's error if it did not run.
    """
    try:
        result = replace(await in_flight.join(leader, call.state), replayed=True)
    except CallError as exc:
        if exc.executed == "no":
            raise
        assert exc.certainty is not None
        return EarlierCall(exc.certainty, leader.attempt.approved_by, partial(_raise, exc))
    return EarlierCall(Certainty.EXECUTED, leader.attempt.approved_by, lambda: result)


def _raise(error: CallError) -> NoReturn:
    raise error


async def _run_leader(
    in_flight: InFlightCalls, store: IdempotencyStore, id_: IdempotencyKey, digest: str, call: Call, next: CallHandler
) -> CallResult:
    """Run the call in its own task, whose result goes to all callers with the same idempotency key.

    So it survives the first caller's cancellation while other callers wait. Progress is forwarded to the first caller
    only while that caller waits.
    """
    caller_waits = True

    def forward_progress(progress: float, total: float | None, message: str | None) -> None:
        if caller_waits and call.on_progress is not None:
            call.on_progress(progress, total, message)

    on_progress = forward_progress if call.on_progress is not None else None
    leader_call = replace(call, state=call.state.spawn(), on_progress=on_progress)
    leader = in_flight.start(
        id_, lambda leader: _execute(leader, store, id_, digest, leader_call, next), leader_call.state, digest
    )
    try:
        return await in_flight.join(leader, call.state)
    finally:
        caller_waits = False


async def _execute(
    leader: InFlightCall, store: IdempotencyStore, id_: IdempotencyKey, digest: str, call: Call, next: CallHandler
) -> CallResult:
    leader.begin_critical()  # the store may commit a claim even if no caller waits any more
    known = await _claim(store, id_, digest, call, leader)
    is_reclaimed = known is not None and await _reclaim(store, id_, known, digest, call)
    if known is not None and not is_reclaimed:
        return await next(replace(call, earlier=_earlier_call(call, known, digest)))
    call.state.certainty = Certainty.NOT_SENT
    try:
        leader.end_critical()
        reply = await next(call)
        leader.begin_critical()  # the outcome is stored even if no caller waits
    except BaseException as exc:
        leader.begin_critical()
        # A call that was certainly not executed may be repeated under this key; any other outcome is unknown.
        not_executed = (
            exc.executed == "no" if isinstance(exc, CallError) else call.state.overall_certainty() <= Certainty.REJECTED
        )
        await _persist(store.release(id_) if not_executed else store.mark_unknown(id_))
        if is_reclaimed and not_executed and isinstance(exc, CallError):
            raise _unknown_outcome(call, exc.message) from exc  # of the interrupted call
        raise
    # `input_required` is not final: the same key is used again with the answer.
    needs_input = reply.raw.get("resultType") == "input_required"
    await _persist(store.release(id_) if needs_input else store.finish(id_, _pack(reply, call.state.approved_by)))
    return reply


async def _claim(
    store: IdempotencyStore, id_: IdempotencyKey, digest: str, call: Call, leader: InFlightCall
) -> IdempotencyRecord | None:
    """Claim the idempotency key. If an earlier call has used it, return its record, or else None.

    Raises `ServerUnavailable` if the store fails; nothing runs in that case.
    """

    def on_waiting() -> None:
        # Another process executes the call. If our deadline expires first, its execution is unknown here.
        call.state.certainty = Certainty.UNKNOWN
        leader.end_critical()

    try:
        if (shared := _as_shared_store(store)) is not None:
            return await shared.claim_or_wait(id_, digest, call.id, on_waiting)
        return await store.claim(id_, digest, call.id)
    except Exception as exc:
        raise _store_unavailable(call, exc) from exc


async def _reclaim(
    store: IdempotencyStore, id_: IdempotencyKey, known: IdempotencyRecord, digest: str, call: Call
) -> bool:
    """Claim the idempotency key of a call that a crash interrupted, to send the call again.

    Return False if that is not safe. It is safe only if the server detects repeated keys. A call whose outcome is
    unknown for another reason is not sent again: the server may have executed it and answered with an error, and not
    every server remembers the key of such a call.
    """
    if known.state != "interrupted" or known.fingerprint != digest or not _honours_key(call):
        return False
    try:
        return await cast(CrashSafeIdempotencyStore, store).reclaim(id_, call.id)
    except Exception as exc:
        call.state.certainty = Certainty.UNKNOWN  # of the interrupted call
        raise _store_unavailable(call, exc) from exc


def _honours_key(call: Call) -> bool:
    """Return True if the server detects repeated idempotency keys, so a call with a key may be sent again."""
    policy = call.policy
    return call.effect is not Effect.UNSAFE and policy is not None and policy.server.idempotency_meta_key is not None


def _store_unavailable(call: Call, cause: Exception) -> ServerUnavailable:
    return ServerUnavailable(
        "the idempotency key store is unavailable, so the call was not sent",
        server=call.server,
        tool=call.name,
        certainty=call.state.certainty,
        detail=repr(cause),
        code="E-KEY-STORE",
    )


def _as_shared_store(store: IdempotencyStore) -> SharedIdempotencyStore | None:
    """Return the idempotency store if several processes share it, or else None.

    The answer is cached per type, because `isinstance` of a protocol checks every method.
    """
    kind = type(store)
    if kind not in _IS_SHARED:
        _IS_SHARED[kind] = isinstance(store, SharedIdempotencyStore)
    return cast(SharedIdempotencyStore, store) if _IS_SHARED[kind] else None


_IS_SHARED: Final[dict[type, bool]] = {}


async def _persist(write: Awaitable[None]) -> None:
    """Await a write to the store of idempotency keys; log an error instead of raising it.

    After an error the key stays claimed, so the call never runs twice.
    """
    try:
        await write
    except Exception:
        _log.exception("the outcome of a call with an idempotency key could not be stored")


def _identify_call(call: Call) -> tuple[IdempotencyKey, str]:
    key = call.idempotency_key or ""
    if not 1 <= len(key) <= MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        raise AccessDenied(
            "an idempotency key must have 1 to 255 printable ASCII characters",
            server=call.server,
            tool=call.name,
            code="E-KEY",
        )
    return IdempotencyKey(call.caller, call.server, call.name, key), call_fingerprint(
        call.name, call.params.get("arguments")
    )


def _pack(result: CallResult, approved_by: str) -> Json:
    """Return what is stored for a finished call: its result, and who approved it."""
    return {"result": result.raw, "approvedBy": approved_by}


def _earlier_call(call: Call, record: IdempotencyRecord, digest: str) -> EarlierCall:
    """Return the finished call in a record. Raises `CallError` if it has no result to return."""
    if record.fingerprint != digest:
        raise _key_mismatch(call)
    if record.state == "finished" and record.outcome is not None:
        result = result_type(call.method)(call.server, call.name, record.outcome["result"], replayed=True)
        return EarlierCall(Certainty.EXECUTED, record.outcome["approvedBy"], lambda: result)
    if record.state == "finished":
        raise CallError(
            f"{call.server}.{call.name} ran with this key, but its result is no longer stored",
            server=call.server,
            tool=call.name,
            certainty=Certainty.EXECUTED,
            detail="old results are dropped when the store is full",
            hint="it already ran: read the result from the server, or use a new key to run it again",
            code=RESULT_DROPPED_CODE,
        )
    raise _unknown_outcome(call)


def _unknown_outcome(call: Call, detail: str = "") -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the outcome of an earlier call to {call.server}.{call.name} with this key is unknown",
        server=call.server,
        tool=call.name,
        certainty=Certainty.UNKNOWN,
        detail=detail,
        hint="check whether it ran; to run it again, use a new key",
    )


def _key_mismatch(call: Call) -> ProtocolError:
    return ProtocolError(
        "this idempotency key belongs to another call",
        server=call.server,
        tool=call.name,
        certainty=Certainty.NOT_SENT,
        detail="the arguments differ",
        hint="use a new key for a new call",
        code="E-KEY-MISMATCH",
    )
