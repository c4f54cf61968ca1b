"""Limits that parts add to a principal's calls, such as budgets. They are charged before a call is sent.

A limit is bound once per principal and tool, and kept in the plan (mcp/flights.py). A call without a limit therefore
has no overhead, and a call with one is charged without a lookup.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from toolway.gateway.mcp.responses import RpcResult
from toolway.gateway.principals import Principal
from toolway.protocol.jsonrpc import RawResult, encode_json


class BoundLimit(Protocol):
    """A limit on one principal's calls to one tool."""

    def try_take(self) -> bool:
        """Charge one call without waiting. Return False without charging anything if `run` must decide.

        A limit that counts something at the end of a call must always return False, because `run` alone sees that
        end.
        """
        ...

    def give_back(self) -> None:
        """Undo a `try_take` right after it, because the call was not made."""
        ...

    async def run(self, work: Coroutine[Any, Any, RpcResult], *, is_followup: bool) -> RpcResult:
        """Charge one call, wait for its result, and return it. `work` is the call; close it if it is not made.

        `is_followup` is True if the request only asks for an earlier call's result. Raises `CallRefused` if the limit
        is reached, or `RpcFailure` for an error with its own code.
        """
        ...


class CallLimit(Protocol):
    """A limit on calls that a part adds."""

    def concerns(self, principal: Principal) -> bool:
        """Return False if this principal's calls are never limited. This runs on each call, so it must be cheap."""
        ...

    def bind(self, principal: Principal, target: str) -> BoundLimit | None:
        """Return the limit on a principal's calls to the tool `target` (`server.tool`), or None.

        It is valid until `CallLimits.on_changed` is called.
        """
        ...


class CallLimits:
    """All of a gateway's limits that parts added."""

    def __init__(self) -> None:
        self.version = 0  # grows when bound limits become invalid
        self._limits: list[CallLimit] = []

    def add(self, limit: CallLimit) -> None:
        self._limits.append(limit)
        self.on_changed()

    def on_changed(self) -> None:
        """Make every plan bind its limits again, because the rules changed."""
        self.version += 1

    def concern(self, principal: Principal) -> bool:
        """Return False if this principal's calls are never limited."""
        for each in self._limits:  # noqa: SIM110 - asked on each call: a generator would cost more
            if each.concerns(principal):
                return True
        return False

    def bind(self, principal: Principal, target: str) -> tuple[BoundLimit, ...]:
        """Return all limits on a principal's calls to the tool `target` (`server.tool`)."""
        bound = [each.bind(principal, target) for each in self._limits if each.concerns(principal)]
        return tuple(each for each in bound if each is not None)


def count_bytes(result: RpcResult) -> int:
    """Return the size of an encoded result in bytes."""
    if isinstance(result, RawResult):
        return len(result.prefix) + len(result.received) + len(result.suffix)
    return len(encode_json(result))
