"""The order of the stages, written once.

    resolve    which server and tool is meant
    deadline   one budget for everything below
    limit      a slot, held only while the call is really under way

Each stage is a function of `(call, next)`, so it can be read, tested and removed alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolway.model import Call, Next, Reply, Stage


def in_order(*, resolve: Stage, deadline: Stage, limit: Stage) -> tuple[Stage, ...]:
    """The stages, outermost first."""
    return (resolve, deadline, limit)


def chain(stages: Sequence[Stage], last: Next) -> Next:
    """One function that passes a call through `stages` to `last`."""
    for stage in reversed(stages):
        last = _link(stage, last)
    return last


def _link(stage: Stage, next: Next) -> Next:
    async def linked(call: Call) -> Reply:
        return await stage(call, next)

    return linked
