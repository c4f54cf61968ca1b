"""Admin API for approvals: calls that wait for an operator, with their arguments, and the answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from toolway.errors import ConfigError, NotFound
from toolway.events import PolicyDecision
from toolway.gateway.approvals.form import cut_arguments
from toolway.gateway.approvals.gate import CallApprovals
from toolway.gateway.approvals.records import ApprovalRequest
from toolway.gateway.principals import Principal
from toolway.hub.core import HubCore
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


class FlowsAdmin:
    """Handlers of `/admin/flows`: labels of the tools that each caller called in the last half hour.

    A label says what a call does: it reads private data, reads untrusted texts, or sends data out.
    """

    def __init__(
        self,
        approvals: CallApprovals | None,
        hub: HubCore,
        key_names: Callable[[], dict[str, str]],
        find_key: Callable[[str], str | None],
    ) -> None:
        """Create the handlers.

        Args:
            approvals: Has the labels; None if this gateway follows no data flows.
            hub: Has the tools, and reports events.
            key_names: Returns the names of API keys and people by caller id.
            find_key: Returns the caller id of the only API key with a name; None if there is no such key.
        """
        self._approvals = approvals
        self._hub = hub
        self._key_names = key_names
        self._find_key = find_key

    async def show(self) -> Json:
        """Return how risky data flows are treated (the mode), and for each caller the last call with each label.

        A label says what a tool does: it reads private data, reads untrusted texts, or sends data out.
        """
        flows = self._approvals.flows if self._approvals is not None else None
        if flows is None or not flows.is_on:
            return {"enabled": False, "mode": "note", "callers": []}
        names, windows = self._key_names(), await flows.load()
        return {
            "enabled": True,
            "mode": flows.mode,
            "callers": [
                {
                    "caller": caller,
                    "name": names.get(caller, caller) or "owner",
                    "labels": [{"label": label, "tool": each.tool, "at": each.at} for label, each in window.items()],
                }
                for caller, window in sorted(windows.items())
            ],
        }

    def suggest(self) -> Json:
        """Return, for each tool, its configured labels about data flows, and those that its name and hints suggest."""
        from toolway.config.call_rules.flow_labels import labels_of, suggest_labels

        found = []
        for tool in self._hub.known_tools():
            server = self._hub.servers.get(tool.server)
            command = " ".join((server.command or "", *server.args)) if server is not None else ""
            given = labels_of(server, tool.name, "note")
            wanted = suggest_labels(tool.server, tool.name, tool.annotations or {}, command)
            if wanted or given:
                row = {"server": tool.server, "tool": tool.name, "labels": sorted(given)}
                found.append({**row, "suggested": [each for each in wanted if each not in given]})
        return {"tools": found}

    async def reset(self, who: str) -> Json:
        """Clear the labels that are recorded for a caller's recent calls, so that only its new calls count.

        `who` is a caller id, `owner`, or the name of exactly one API key: anybody may choose the name of a person.
        Raises `NotFound` if no labels are recorded.
        """
        flows = self._approvals.flows if self._approvals is not None else None
        if flows is not None:
            for caller in (who, "" if who == "owner" else self._find_key(who)):
                if caller is not None and await flows.reset(caller):
                    self._hub.emit(PolicyDecision("", "flows", True, f"reset: {who[:100]}"))
                    return {"reset": who}
        raise NotFound(
            f"no labels of {who[:100]!r} are known",
            detail="a person, or one of several keys with the same name, is found by its id alone",
            hint="list all callers and their ids: toolway policy flows show",
        )


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
