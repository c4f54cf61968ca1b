"""The keys stage: a call with an idempotency key is executed at most once, whoever repeats it and however often.

The same key with the same call: while it runs, the same outcome; when it has finished, the stored one; when nobody
knows what became of it, `OutcomeUnknown` again, and no execution. The same key with another call is refused. A key is
never made from arguments: two identical payments can both be meant.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

import msgspec
from msgspec.structs import replace

from toolway.errors import CallError, Certainty, Denied, OutcomeUnknown, ProtocolError, Unavailable
from toolway.model import Call, Json, Next, Reply, Stage
from toolway.resilience.flights import Flight, Flights

LONGEST_KEY: Final = 255
_log = logging.getLogger(__name__)


class KeyId(msgspec.Struct, frozen=True):
    """Whose key it is: two callers, servers or tools never share one."""

    caller: str
    server: str
    name: str
    key: str


class Record(msgspec.Struct, frozen=True):
    """What is known of a key."""

    state: Literal["running", "finished", "unknown"]
    fingerprint: str
    outcome: Json | None = None  # the server's result, when finished


class KeyStore(Protocol):
    """Where keys are remembered. Any exception means that it cannot be relied on now."""

    async def claim(self, id: KeyId, fingerprint: str, call: str) -> Record | None:
        """Remember the key as running under the id of a call and return None, or return what is known of it, in one
        step. The same call again is the same claim: while it runs, that is None too."""
        ...

    async def finish(self, id: KeyId, outcome: Json) -> None: ...

    async def mark_unknown(self, id: KeyId) -> None: ...

    async def release(self, id: KeyId) -> None:
        """Nothing was executed: the key may be used again."""
        ...


@runtime_checkable
class SharedKeyStore(KeyStore, Protocol):
    """One that several processes share, so that a key may be claimed by a call that none of ours can join."""

    async def claim_or_follow(
        self, id: KeyId, fingerprint: str, call: str, following: Callable[[], None]
    ) -> Record | None:
        """The same as `claim`. What another process makes of the key is waited for, in bounded time; `following` is
        called when that begins, and may be told so more than once."""
        ...


class MemoryKeys:
    """Keys of this process, for as long as it lives or a day."""

    def __init__(self, now: Callable[[], float], keep: float = 86_400.0, most: int = 100_000) -> None:
        self._now = now
        self._keep = keep
        self._most = most
        self._records: dict[KeyId, tuple[float, Record]] = {}
        self._running: dict[KeyId, str] = {}  # under which call

    async def claim(self, id: KeyId, fingerprint: str, call: str) -> Record | None:
        self._forget_old()
        known = self._records.get(id)
        if known is not None:
            return None if call and self._running.get(id) == call else known[1]
        if len(self._records) >= self._most:
            raise OverflowError(f"{self._most} keys are remembered already")
        self._put(id, Record("running", fingerprint))
        self._running[id] = call
        return None

    async def finish(self, id: KeyId, outcome: Json) -> None:
        self._put(id, replace(self._records[id][1], state="finished", outcome=outcome))

    async def mark_unknown(self, id: KeyId) -> None:
        self._put(id, replace(self._records[id][1], state="unknown"))

    async def release(self, id: KeyId) -> None:
        self._running.pop(id, None)
        self._records.pop(id, None)

    def _put(self, id: KeyId, record: Record) -> None:
        self._running.pop(id, None)
        self._records.pop(id, None)
        self._records[id] = (self._now() + self._keep, record)

    def _forget_old(self) -> None:
        """Records are in the order of their time, oldest first; what still runs is kept."""
        now = self._now()
        old = takewhile(lambda item: item[1][0] <= now, self._records.items())
        for id_ in [id_ for id_, (_, record) in old if record.state != "running"]:
            del self._records[id_]


def fingerprint(name: str, arguments: Any) -> str:
    """What makes two calls the same call."""
    return hashlib.sha256(msgspec.json.encode([name, arguments], order="deterministic")).hexdigest()


def keys(store: KeyStore) -> Stage:
    running = Flights()

    def stage(call: Call, next: Next) -> Awaitable[Reply]:
        return next(call) if call.key is None else keyed(call, next)

    async def keyed(call: Call, next: Next) -> Reply:
        id_, print_ = _identify(call)
        while (flight := running.get(id_)) is not None and flight.leaving:
            await asyncio.wait({flight.work})  # what became of it decides what may be done under this key
        if flight is None:
            return await _lead(running, store, id_, print_, call, next)
        if flight.label != print_:
            raise _mismatch(call)
        return replace(await running.join(flight, call.attempt), replayed=True)

    return stage


async def _lead(running: Flights, store: KeyStore, id_: KeyId, print_: str, call: Call, next: Next) -> Reply:
    """Begin the call under its key. Whoever leaves first, the work has its own record, and no ear of the leaver."""
    here = True

    def heard(progress: float, total: float | None, message: str | None) -> None:
        if here and call.on_progress is not None:
            call.on_progress(progress, total, message)

    listener = heard if call.on_progress is not None else None
    shared = replace(call, attempt=call.attempt.fresh(), on_progress=listener)
    flight = running.start(id_, lambda flight: _once(flight, store, id_, print_, shared, next), shared.attempt, print_)
    try:
        return await running.join(flight, call.attempt)
    finally:
        here = False


async def _once(flight: Flight, store: KeyStore, id_: KeyId, print_: str, call: Call, next: Next) -> Reply:
    flight.begin_whole()  # the store may take a claim although nobody waits for it any more
    known = await _claim(store, id_, print_, call, flight)
    if known is not None:
        return _known(call, known, print_)
    call.attempt.certainty = Certainty.C0
    try:
        flight.end_whole()
        reply = await next(call)
        flight.begin_whole()  # what is known is stored, also where everybody has left
    except BaseException as exc:
        flight.begin_whole()
        # What was never executed may be tried again under this key; of anything else nobody knows.
        sure = exc.executed == "no" if isinstance(exc, CallError) else call.attempt.judge() <= Certainty.C1
        await _remember(store.release(id_) if sure else store.mark_unknown(id_))
        raise
    # A question is no outcome: the same key comes again with the answer.
    asks = reply.raw.get("resultType") == "input_required"
    await _remember(store.release(id_) if asks else store.finish(id_, reply.raw))
    return reply


async def _claim(store: KeyStore, id_: KeyId, print_: str, call: Call, flight: Flight) -> Record | None:
    """Claim the key. Raises `Unavailable` where the store cannot be relied on: then nothing is executed."""

    def following() -> None:
        # Somebody else makes the call. If our time ends first, nobody here knows whether it was made.
        call.attempt.certainty = Certainty.C2
        flight.end_whole()

    try:
        if (shared := _shared(store)) is not None:
            return await shared.claim_or_follow(id_, print_, call.id, following)
        return await store.claim(id_, print_, call.id)
    except Exception as exc:
        raise Unavailable(
            "the store of idempotency keys cannot be used, so the call was not made",
            server=call.server,
            tool=call.name,
            certainty=call.attempt.certainty,
            evidence=repr(exc),
            code="E-KEY-STORE",
        ) from exc


def _shared(store: KeyStore) -> SharedKeyStore | None:
    """`isinstance` of a protocol looks at every method of it: of each kind of store once."""
    kind = type(store)
    if kind not in _IS_SHARED:
        _IS_SHARED[kind] = isinstance(store, SharedKeyStore)
    return cast(SharedKeyStore, store) if _IS_SHARED[kind] else None


_IS_SHARED: Final[dict[type, bool]] = {}


async def _remember(note: Awaitable[None]) -> None:
    """Write to the store. Its failure is not the call's: the key stays claimed, and nothing runs twice."""
    try:
        await note
    except Exception:
        _log.exception("the outcome of a call with an idempotency key could not be stored")


def _identify(call: Call) -> tuple[KeyId, str]:
    key = call.key or ""
    if not 1 <= len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise Denied(
            "an idempotency key is 1 to 255 printable ASCII characters",
            server=call.server,
            tool=call.name,
            code="E-KEY",
        )
    return KeyId(call.caller, call.server, call.name, key), fingerprint(call.name, call.params.get("arguments"))


def _known(call: Call, known: Record, print_: str) -> Reply:
    if known.fingerprint != print_:
        raise _mismatch(call)
    if known.state == "finished" and known.outcome is not None:
        return Reply(call.server, call.name, known.outcome, replayed=True)
    raise OutcomeUnknown(
        f"an earlier call of {call.server}.{call.name} with this key has no known outcome",
        server=call.server,
        tool=call.name,
        certainty=Certainty.C2,
        fix="check whether it happened; to do it again, use a new key",
    )


def _mismatch(call: Call) -> ProtocolError:
    return ProtocolError(
        "this idempotency key belongs to another call",
        server=call.server,
        tool=call.name,
        certainty=Certainty.C0,
        evidence="the arguments differ",
        fix="use a new key for a new call",
        code="E-KEY-MISMATCH",
    )
