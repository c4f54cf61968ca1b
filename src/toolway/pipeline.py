"""The order of the stages, written once.

    resolve    which server and tool is meant, and what it does
    deadline   one budget of time for everything below
    keys       a call with an idempotency key is executed once
    cache      an answer that may be given again
    dedup      the same read at the same time is made once
    audit      what changes something is in the log before it is sent; absent where no log is kept
    retry      tried again, where that is safe
    breaker    sees every attempt; leaves alone what keeps failing
    limit      a slot, held only while an attempt is really under way

Each stage is a function of `(call, next)`, so it can be read, tested and removed alone. One that has nothing to do
with a call returns what `next` does: a coroutine of its own would be paid for by every call.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolway.model import Next, Stage


def in_order(
    *,
    resolve: Stage,
    deadline: Stage,
    keys: Stage,
    cache: Stage,
    dedup: Stage,
    audit: Stage | None = None,
    retry: Stage,
    breaker: Stage,
    limit: Stage,
) -> tuple[Stage, ...]:
    """The stages, outermost first."""
    logged = (audit,) if audit is not None else ()
    return (resolve, deadline, keys, cache, dedup, *logged, retry, breaker, limit)


def chain(stages: Sequence[Stage], last: Next) -> Next:
    """One function that passes a call through `stages` to `last`."""
    for stage in reversed(stages):
        last = _link(stage, last)
    return last


def _link(stage: Stage, next: Next) -> Next:
    # Not async itself: a coroutine that only waits for another one would be paid for at every stage of every call.
    return lambda call: stage(call, next)
