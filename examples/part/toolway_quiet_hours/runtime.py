"""Quiet hours in one running gateway: the limit on calls, the table of rejected calls, the route and the metrics."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from toolway.part_api import (
    AdminRequest,
    BoundLimit,
    CallRefused,
    Certainty,
    Gauge,
    Json,
    Part,
    PartCondition,
    PartContext,
    PartRuntime,
    Principal,
    Route,
    RpcResult,
    Table,
    Transaction,
)
from toolway_quiet_hours.settings import Hours

REFUSED: Final = Table("quiet_hours_rejected", {"times": "BIGINT"})  # by tool
TABLES: Final = (REFUSED,)
CONDITION: Final = "quiet-hours"  # of the alert


class QuietRuntime(PartRuntime):
    """Rejects calls during the quiet hours. It is the limit on the calls of every caller."""

    def __init__(self, part: Part, context: PartContext, now: Callable[[], float] = time.time) -> None:
        self.hours: Hours | None = None
        self.now = now
        self._hub = context.hub
        self._limits = context.limits
        self._database = context.open_database(part)
        self._rejected = Counter[str]()  # by this process
        context.limits.add(self)

    def apply(self, settings: Any) -> None:
        self.hours = settings
        self._limits.on_changed()  # what is bound knows the hours before

    @property
    def is_quiet(self) -> bool:
        """Return True if calls are rejected now."""
        return self.hours is not None and self.hours.are_now(self.now())

    # -- limit on calls ------------------------------------------------------------------------------------------------

    def concerns(self, principal: Principal) -> bool:
        return self.hours is not None

    def bind(self, principal: Principal, target: str) -> BoundLimit | None:
        if self.hours is None or self.hours.allow(target):
            return None
        return QuietLimit(self, target)

    async def add_rejected(self, target: str) -> None:
        """Count a rejected call, in the table that all processes of the gateway share, and tell the administrator."""
        self._rejected[target] += 1
        self._hub.emit(
            PartCondition(
                "",
                CONDITION,
                message="calls are rejected, because it is quiet now",
                detail=f"the last one was of {target}",
                hint='list the tools that may be called at any hour in "quietHours": {"except": […]}',
            )
        )
        if self._database is not None:
            await self._database.run(partial(_add, target))

    async def run(self) -> None:
        """End the alert when the quiet hours end."""
        was_quiet = False
        while True:
            if was_quiet and not self.is_quiet:
                self._hub.emit(PartCondition("", CONDITION, is_open=False))
            was_quiet = self.is_quiet
            await asyncio.sleep(10)

    # -- what is shown -------------------------------------------------------------------------------------------------

    async def show(self, request: AdminRequest) -> Json:
        """Return whether it is quiet, and how often each tool was rejected."""
        rejected: dict[str, int] = {}
        if self._database is not None:
            rows = await self._database.run(lambda db: db.select(REFUSED, "times > :least", least=0))
            rejected = {target: times for target, (times,) in rows.items()}
        return {"quiet": self.is_quiet, "rejected": rejected}

    def gauges(self) -> Iterable[Gauge]:
        yield Gauge("toolway_quiet_hours_now", float(self.is_quiet))
        for target, times in self._rejected.items():
            yield Gauge("toolway_quiet_hours_rejected", times, {"tool": target})

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()


class QuietLimit:
    """Limit on the calls of one tool."""

    def __init__(self, runtime: QuietRuntime, target: str) -> None:
        self._runtime = runtime
        self._target = target

    def try_take(self) -> bool:
        """Let a call pass on the fast path, unless it is quiet: `run` decides then."""
        return not self._runtime.is_quiet

    def give_back(self) -> None:
        """Do nothing: nothing was counted."""

    async def run(self, work: Coroutine[Any, Any, RpcResult], *, is_followup: bool) -> RpcResult:
        if is_followup or not self._runtime.is_quiet:
            return await work
        work.close()
        await self._runtime.add_rejected(self._target)
        server, _, tool = self._target.partition(".")
        raise CallRefused(
            f"{self._target} may not be called now",
            server=server,
            tool=tool,
            certainty=Certainty.NOT_SENT,
            detail="these are the quiet hours of the gateway",
            hint="call it later; toolway quiet shows when",
            code="E-QUIET-HOURS",
        )


def _add(target: str, db: Transaction) -> None:
    (times,) = db.lock_rows(REFUSED, [target], (0,))[target]
    db.put_rows(REFUSED, {target: (times + 1,)})


async def _show(runtime: QuietRuntime, request: AdminRequest) -> Json:
    return await runtime.show(request)


ROUTES: Final = (Route("GET", "/admin/quiet-hours", "Whether calls are rejected now", "QuietHours", _show),)
SCHEMAS: Final[dict[str, Json]] = {
    "QuietHours": {
        "type": "object",
        "properties": {
            "quiet": {"type": "boolean"},
            "rejected": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["quiet", "rejected"],
    }
}
