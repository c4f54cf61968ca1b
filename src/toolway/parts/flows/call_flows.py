"""Data flows of callers: records the labels of each call, and decides what happens if a caller has all three.

A tool's labels are `private` (reads private data), `untrusted` (reads untrusted content), and `sink` (sends data out).
A caller's window has the last call with each label within half an hour. If all three labels are in it, the mode `note`
reports the flow, `ask` requires an administrator's approval, and `deny` rejects the call. The gateway only sees calls
that go through it, not what a client does by itself, and it does not follow the data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from toolway.config.schema import Server
from toolway.errors import CallRefused, Certainty, StoreUnavailable
from toolway.events import Event, PolicyDecision
from toolway.parts.flows.labels import (
    LABELS,
    FlowLabels,
    FlowMode,
    LabelledCall,
    Window,
    current,
    labels_of,
    meets,
)
from toolway.parts.flows.store import FlowStore, FlowStoreError
from toolway.types import Call

FLOW_CODE: Final = "E-FLOW"
FLOW_STORE_CODE: Final = "E-FLOW-STORE"
REFRESH_S: Final = 1.0  # seconds after which a label is stored again: calls in between skip the store
MAX_REMEMBERED: Final = 10_000  # callers and labels that were stored a moment ago


class CallFlows:
    """Every caller's window (the last call with each flow label), and the decision about each call.

    This is a `CallCheck` of the gate.

    `servers` returns the server entries, and `emit` reports events. `now` returns the wall-clock time.
    """

    def __init__(
        self,
        store: FlowStore,
        servers: Callable[[], Mapping[str, Server]],
        emit: Callable[[Event], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._servers = servers
        self._emit = emit
        self._now = now
        self.mode: FlowMode = "note"
        self.is_on = False
        self._stored: dict[tuple[str, frozenset[str]], float] = {}  # when labels of a caller were stored

    def set_mode(self, mode: FlowMode | None) -> bool:
        """Set what happens when a caller's recent calls have all three labels. Return True if the mode has changed.

        `note` reports the flow, `ask` requires an administrator's approval, and `deny` rejects the call. None means
        `note` if any tool has labels; otherwise the check is off.
        """
        has_labels = any(
            each.labels or any(tool.labels for tool in each.tools.values()) for each in self._servers().values()
        )
        before, self.mode, self.is_on = (self.mode, self.is_on), mode or "note", mode is not None or has_labels
        return before != (self.mode, self.is_on)

    @property
    def may_ask(self) -> bool:
        return self.is_on and self.mode == "ask"

    def rules_for(self, server: str, name: str) -> Sequence[FlowLabels]:
        """Return a tool's flow labels as an approval rule, or () if it has no labels or checks are off."""
        if not self.is_on:
            return ()
        labels = labels_of(self._servers().get(server), name, self.mode)
        return (FlowLabels(labels),) if labels else ()

    def quick_check(self, rule: FlowLabels, caller: str) -> Callable[[], bool] | None:
        """Return a function that says whether a caller's labels were just stored, or None.

        None means that every call needs the full check, because the tool can send data out and other processes may have
        added labels.
        """
        return partial(self.was_just_stored, caller, rule.labels) if rule.is_read else None

    async def check(self, call: Call, rule: FlowLabels) -> Literal["pass", "ask"]:
        """Check a call by its tool's labels. Return `ask` if an administrator must approve it first, or else `pass`.

        If the call passes, its labels are added to the caller's window. Raises `AccessDenied` if the call is rejected,
        and `ServerUnavailable` if the window cannot be read or written.
        """
        now, found = self._now(), dict[str, LabelledCall]()
        if rule.is_read and self.was_just_stored(call.caller, rule.labels):
            return "pass"

        def change(window: Window) -> Window | None:
            found.clear()
            found.update(current(window, now))
            if self.mode != "note" and meets(found, rule.labels):
                return None
            return found | dict.fromkeys(rule.labels, LabelledCall(f"{call.server}.{call.name}", now))

        is_stored = await self._change(call, change)
        if not meets(found, rule.labels):
            if is_stored:
                self._remember(call.caller, rule.labels, now)
            return "pass"
        reason = _describe(call, found, rule.labels)
        self._emit(PolicyDecision(call.server, "flows", self.mode == "note", f"{self.mode}: {reason}"))
        if self.mode == "deny":
            raise CallRefused(
                f"{call.server}.{call.name} could leak private data "
                "(it combines private data, untrusted content, and a way to send data out)",
                server=call.server,
                tool=call.name,
                certainty=Certainty.NOT_SENT,
                detail=reason,
                hint="wait 30 minutes, or ask an administrator to run: toolway policy flows reset CALLER",
                code=FLOW_CODE,
            )
        return "ask" if self.mode == "ask" else "pass"

    async def add(self, call: Call, rule: FlowLabels) -> None:
        """Add the labels of a call that an administrator approved to the caller's window."""
        now = self._now()
        tool = LabelledCall(f"{call.server}.{call.name}", now)
        await self._change(call, lambda window: current(window, now) | dict.fromkeys(rule.labels, tool))

    async def load(self) -> Mapping[str, Window]:
        """Return each caller's last call with each label within the last half hour.

        Raises `ServerUnavailable` if the store fails.
        """
        now = self._now()
        try:
            found = await self._store.load(now)
        except FlowStoreError as exc:
            raise _unavailable(exc) from exc
        return {caller: window for caller, each in found.items() if (window := current(each, now))}

    async def reset(self, caller: str) -> bool:
        """Forget a caller's labeled calls, so only later calls count. Return False if there were none.

        The gateway's other processes follow within `REFRESH_S`.
        """
        self._stored.clear()
        try:
            return await self._store.remove(caller)
        except FlowStoreError as exc:
            raise _unavailable(exc) from exc

    async def close(self) -> None:
        """Close the store of windows."""
        await self._store.close()

    def was_just_stored(self, caller: str, labels: frozenset[str]) -> bool:
        """Return True if these labels were just stored for a caller, so a read does not have to store them again.

        Use this only for reads. A call that sends data out always needs the full check, because other processes may
        have added labels.
        """
        return 0 <= self._now() - self._stored.get((caller, labels), 0.0) < REFRESH_S

    def _remember(self, caller: str, labels: frozenset[str], now: float) -> None:
        if len(self._stored) >= MAX_REMEMBERED:
            self._stored.clear()
        self._stored[caller, labels] = now

    async def _change(self, call: Call, change: Callable[[Window], Window | None]) -> bool:
        """Change the stored window of a call's caller. Return True if it was stored.

        If the store fails, return False in the mode `note`, where calls pass anyway. Otherwise raise
        `ServerUnavailable`.
        """
        try:
            await self._store.change(call.caller, change, self._now())
            return True
        except FlowStoreError as exc:
            if self.mode != "note":  # what is not known may be the third label
                raise _unavailable(exc) from exc
            return False


def _describe(call: Call, window: Window, labels: frozenset[str]) -> str:
    own = f"{call.server}.{call.name}"
    return ", ".join(f"{label} by {own if label in labels else window[label].tool}" for label in LABELS)


def _unavailable(exc: FlowStoreError) -> StoreUnavailable:
    return StoreUnavailable(
        "flow labels cannot be read",
        detail=str(exc)[:300],
        hint="see the gateway log for the cause, then try again",
        code=FLOW_STORE_CODE,
    )
