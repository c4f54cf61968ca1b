"""Admin API for approvals: calls that wait for an operator, with their arguments, and the answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from toolway.errors import ConfigError
from toolway.gateway.approvals.form import cut_arguments
from toolway.gateway.approvals.gate import CallApprovals
from toolway.gateway.approvals.records import ApprovalRequest
from toolway.gateway.principals import Principal
from toolway.types import Json


class ApprovalsAdmin:
    """Handlers of `/admin/approvals`. `approvals` is None if this gateway cannot ask for approvals."""

    def __init__(self, approvals: CallApprovals | None, key_names: Callable[[], dict[str, str]]) -> None:
        self._approvals = approvals
        self._key_names = key_names

    async def list_requests(self) -> Json:
        """Return the requests that wait for an operator, then those of the last 15 minutes that were answered.

        Long arguments are cut here, and `complete` is False. `get_request` returns all of them.
        """
        if self._approvals is None:
            return {"enabled": False, "requests": []}
        names = self._key_names()
        found = await self._approvals.list_requests()
        return {"enabled": self._approvals.is_active, "requests": [_to_json(each, names, cut=True) for each in found]}

    async def get_request(self, id_: str) -> Json:
        """Return one request for approval with the arguments of its call.

        Raises `NotFound` if it is unknown or expired.
        """
        return _to_json(await self._gate.get_request(id_), self._key_names())

    async def get_linked_request(self, link: str) -> Json:
        """Return the request for approval that a link in a message to operators names.

        Raises `NotFound` if the link is forged or has expired.
        """
        return _to_json(await self._gate.get_linked_request(link), self._key_names())

    async def decide(self, id_: str, body: Json, principal: Principal) -> Json:
        """Approve or deny the call of a request.

        Raises `NotFound` if the request no longer waits for an answer, or if a link is given that is not valid for it.
        """
        yes, note, link = body.get("yes"), body.get("note", ""), body.get("link")
        if not isinstance(yes, bool):
            raise ValueError("yes must be true or false")
        if not isinstance(note, str):
            raise ValueError("note must be a text")
        if link is not None and not isinstance(link, str):
            raise ValueError("link must be a text")
        decided = await self._gate.decide(id_, "approved" if yes else "denied", principal.caller_id, note, link=link)
        return _to_json(decided, self._key_names())

    @property
    def _gate(self) -> CallApprovals:
        if self._approvals is None:
            raise ConfigError("this gateway asks for no approvals", hint='set "approve" in the configuration file')
        return self._approvals


def _to_json(request: ApprovalRequest, names: dict[str, str], *, cut: bool = False) -> Json:
    arguments = cut_arguments(request.arguments) if cut else request.arguments
    shown: Json = msgspec.to_builtins(msgspec.structs.replace(request, arguments=arguments))
    del shown["key"]
    shown["complete"] = arguments == request.arguments
    for field in ("caller", "who"):
        shown[field] = names.get(shown[field], shown[field]) or "owner"
    if request.state == "pending":
        shown["who"] = ""
    return shown
