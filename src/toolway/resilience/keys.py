"""The keys stage: a call with an idempotency key is executed at most once, whoever repeats it and however often.

The same key with the same call: while it runs, the same outcome; when it has finished, the stored one; when nobody
knows what became of it, `OutcomeUnknown` again, and no execution. The same key with another call is refused. A key is
never made from arguments: two identical payments can both be meant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import msgspec
import msgspec.structs

from toolway.errors import CallError, Certainty, Denied, OutcomeUnknown, ProtocolError, Unavailable
from toolway.model import Call, Json, Next, Reply, Stage
from toolway.resilience.flights import Flights

LONGEST_KEY: Final = 255


@dataclass(frozen=True, slots=True)
class KeyId:
    """Whose key it is: two callers, servers or tools never share one."""

    caller: str
    server: str
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a key."""

    state: Literal["running", "finished", "unknown"]
    fingerprint: str
    outcome: Json | None = None  # the server's result, when finished


class KeyStore(Protocol):
    """Where keys are remembered. Any exception means that it cannot be relied on now."""

    async def claim(self, id: KeyId, fingerprint: str) -> Record | None:
        """Remember the key as running and return None, or return what is known of it, in one step."""
        ...

    async def finish(self, id: KeyId, outcome: Json) -> None: ...

    async def mark_unknown(self, id: KeyId) -> None: ...

    async def release(self, id: KeyId) -> None:
        """Nothing was executed: the key may be used again."""
        ...


class MemoryKeys:
    """Keys of this process, for as long as it lives or a day."""

    def __init__(self, now: Callable[[], float], keep: float = 86_400.0, most: int = 100_000) -> None:
        self._now = now
        self._keep = keep
        self._most = most
        self._records: dict[KeyId, tuple[float, Record]] = {}

    async def claim(self, id: KeyId, fingerprint: str) -> Record | None:
        self._forget_old()
        known = self._records.get(id)
        if known is not None:
            return known[1]
        if len(self._records) >= self._most:
            raise OverflowError(f"{self._most} keys are remembered already")
        self._put(id, Record("running", fingerprint))
        return None

    async def finish(self, id: KeyId, outcome: Json) -> None:
        self._put(id, replace(self._records[id][1], state="finished", outcome=outcome))

    async def mark_unknown(self, id: KeyId) -> None:
        self._put(id, replace(self._records[id][1], state="unknown"))

    async def release(self, id: KeyId) -> None:
        self._records.pop(id, None)

    def _put(self, id: KeyId, record: Record) -> None:
        self._records.pop(id, None)
        self._records[id] = (self._now() + self._keep, record)

    def _forget_old(self) -> None:
        """Records are in the order of their time, oldest first."""
        while self._records:
            id_, (until, record) = next(iter(self._records.items()))
            if until > self._now() or record.state == "running":
                return
            del self._records[id_]


def fingerprint(name: str, arguments: Any, definition: str) -> str:
    """What makes two calls the same call."""
    canonical = msgspec.json.encode([name, arguments, definition], order="deterministic")
    return hashlib.sha256(canonical).hexdigest()


def keys(store: KeyStore, definition_of: Callable[[Call], str]) -> Stage:
    running = Flights()

    async def stage(call: Call, next: Next) -> Reply:
        if call.key is None:
            return await next(call)
        id_, print_ = _identify(call, definition_of(call))
        flight = running.get(id_)
        if flight is None:
            flight = running.start(id_, lambda: _once(store, id_, print_, call, next))
            return await running.join(flight)
        known = await _consult(call, store.claim(id_, print_))
        if known is not None and known.fingerprint != print_:
            raise _mismatch(call)
        return msgspec.structs.replace(await running.join(flight), replayed=True)

    return stage


async def _once(store: KeyStore, id_: KeyId, print_: str, call: Call, next: Next) -> Reply:
    known = await _consult(call, store.claim(id_, print_))
    if known is not None:
        return _known(call, known, print_)
    try:
        reply = await next(call)
    except CallError as exc:
        await (store.release(id_) if exc.executed == "no" else store.mark_unknown(id_))
        raise
    except BaseException:
        # Cancelled: what was never sent may be tried again under this key.
        sent = call.attempt.judge() > Certainty.C1
        await (store.mark_unknown(id_) if sent else store.release(id_))
        raise
    await store.finish(id_, reply.raw)
    return reply


def _identify(call: Call, definition: str) -> tuple[KeyId, str]:
    key = call.key or ""
    if not 1 <= len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise Denied(
            "an idempotency key is 1 to 255 printable ASCII characters",
            server=call.server,
            tool=call.name,
            code="E-KEY",
        )
    print_ = fingerprint(call.name, call.params.get("arguments"), definition)
    return KeyId(call.caller, call.server, call.name, key), print_


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
        evidence="the tool, its definition or the arguments differ",
        fix="use a new key for a new call",
        code="E-KEY-MISMATCH",
    )


async def _consult(call: Call, question: Any) -> Record | None:
    try:
        known: Record | None = await question
    except Exception as exc:
        raise Unavailable(
            "the store of idempotency keys cannot be used, so the call was not made",
            server=call.server,
            tool=call.name,
            certainty=Certainty.C0,
            evidence=repr(exc),
            code="E-KEY-STORE",
        ) from exc
    return known
