"""Admin API for approvals: calls that wait for an operator, with their arguments, and the answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from toolway.errors import ConfigError
from toolway.gateway.approvals.gate import CallApprovals
from toolway.gateway.approvals.records import ApprovalRequest
from toolway.gateway.principals import Principal
from toolway.types import Json


class ApprovalsAdmin:
    """Handlers of `/admin/approvals`. `approvals` is None if the gateway was created without a gate."""

    def __init__(self, approvals: CallApprovals | None, key_names: Callable[[], dict[str, str]]) -> None:
        self._approvals = approvals
        self._key_names = key_names

    async def list_requests(self) -> Json:
        """Return the requests that wait, then those of the last 15 minutes that were answered."""
        if self._approvals is None:
            return {"enabled": False, "requests": []}
        names = self._key_names()
        found = await self._approvals.list_requests()
        return {"enabled": self._approvals.is_active, "requests": [_to_json(each, names) for each in found]}

    async def get_request(self, id_: str) -> Json:
        """Return one request with its arguments. Raises `NotFound`."""
        return _to_json(await self._gate.get_request(id_), self._key_names())

    async def decide(self, id_: str, body: Json, principal: Principal) -> Json:
        """Approve or deny the call of a request. Raises `NotFound` if it does not wait."""
        yes, note = body.get("yes"), body.get("note", "")
        if not isinstance(yes, bool):
            raise ValueError("yes must be true or false")
        if not isinstance(note, str):
            raise ValueError("note must be a text")
        decided = await self._gate.decide(id_, "approved" if yes else "denied", principal.caller_id, note)
        return _to_json(decided, self._key_names())

    @property
    def _gate(self) -> CallApprovals:
        if self._approvals is None:
            raise ConfigError("this gateway asks for no approvals", hint='set "approve" in the configuration file')
        return self._approvals


def _to_json(request: ApprovalRequest, names: dict[str, str]) -> Json:
    shown: Json = msgspec.to_builtins(request)
    del shown["key"]
    shown["arguments"] = [{"name": name, "value": value} for name, value in request.arguments]
    for field in ("caller", "who"):
        shown[field] = names.get(shown[field], shown[field]) or "owner"
    if request.state == "pending":
        shown["who"] = ""
    return shown
