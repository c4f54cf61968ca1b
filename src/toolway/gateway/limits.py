"""Limits on the calls of a principal that parts add, such as budgets: charged before a call is sent.

A limit is bound once per principal and tool, and kept in the plan (mcp/flights.py). So a call without a limit has no
overhead, and one with a limit is charged without a lookup.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from toolway.gateway.mcp.responses import RpcResult
from toolway.gateway.principals import Principal
from toolway.protocol.jsonrpc import RawResult, encode_json


class BoundLimit(Protocol):
    """Limit on the calls of one principal to one tool."""

    def try_take(self) -> bool:
        """Charge one call without waiting. Return False, with nothing charged, if `run` must decide.

        Always return False if something is counted when a call ends, because the end of such a call is not reported.
        """
        ...

    def give_back(self) -> None:
        """Undo `try_take`, right after it, because the call was not made."""
        ...

    async def run(self, work: Coroutine[Any, Any, RpcResult], *, is_followup: bool) -> RpcResult:
        """Charge one call, wait for its result and return it. `work` is the call; close it if it is not made.

        `is_followup` is True if the request only asks for the result of an earlier call. Raises `CallRefused` if the
        limit is reached, or `RpcFailure` for an error with its own code.
        """
        ...


class CallLimit(Protocol):
    """Limit on calls that a part adds."""

    def concerns(self, principal: Principal) -> bool:
        """Return False if no call of this principal is limited. Called on each call, so it must be cheap."""
        ...

    def bind(self, principal: Principal, target: str) -> BoundLimit | None:
        """Return the limit on a principal's calls to the tool `target` (`server.tool`), or None.

        It is valid until `CallLimits.on_changed` is called.
        """
        ...


class CallLimits:
    """All limits of a gateway that parts added."""

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
        """Return False if no call of this principal is limited."""
        for each in self._limits:  # noqa: SIM110 - asked on each call: a generator would cost more
            if each.concerns(principal):
                return True
        return False

    def bind(self, principal: Principal, target: str) -> tuple[BoundLimit, ...]:
        """Return all limits on calls of a principal to the tool `target` (`server.tool`)."""
        bound = [each.bind(principal, target) for each in self._limits if each.concerns(principal)]
        return tuple(each for each in bound if each is not None)


def count_bytes(result: RpcResult) -> int:
    """Return the size of an encoded result."""
    if isinstance(result, RawResult):
        return len(result.prefix) + len(result.received) + len(result.suffix)
    return len(encode_json(result))
