"""`/admin/approvals`: lists the calls that wait for an administrator, with their arguments, and takes the answers."""

from __future__ import annotations

from typing import Final

import msgspec

from toolway.errors import ConfigError
from toolway.gateway.admin.routes import AdminRequest, Route
from toolway.gateway.admin.schema import BOOLEAN, NUMBER, STRING, array_of, object_of, ref_to
from toolway.parts.approvals.form import cut_arguments
from toolway.parts.approvals.gate import CallApprovals
from toolway.parts.approvals.records import ApprovalRequest
from toolway.parts.approvals.runtime import ApprovalsRuntime
from toolway.types import Json

SCHEMAS: Final = {
    "Approval": object_of(
        {
            **dict.fromkeys(("id", "state", "caller", "server", "tool", "effect"), STRING),
            **dict.fromkeys(("digest", "definition", "call", "who", "reason"), STRING),
            "arguments": array_of(object_of({"name": STRING, "value": STRING, "note": STRING})),
            "complete": BOOLEAN,
            "asked_at": NUMBER,
            "until": NUMBER,
        }
    ),
    "ApprovalList": object_of({"enabled": BOOLEAN, "requests": array_of(ref_to("Approval"))}),
    "ApprovalAnswer": object_of({"yes": BOOLEAN, "note?": STRING, "link?": STRING}),
}


async def list_requests(runtime: ApprovalsRuntime, request: AdminRequest) -> Json:
    """Return the requests that wait for an administrator, then the ones answered in the last 15 minutes.

    Long arguments are cut, and `complete` is then False. `get_request` returns them in full.
    """
    if runtime.gate is None:
        return {"enabled": False, "requests": []}
    names = request.key_names()
    found = await runtime.gate.list_requests()
    return {"enabled": runtime.gate.is_active, "requests": [_to_json(each, names, cut=True) for each in found]}


async def get_request(runtime: ApprovalsRuntime, request: AdminRequest) -> Json:
    """Return one approval request with the arguments of its call.

    Raises `NotFound` if it is unknown or expired.
    """
    return _to_json(await _gate_of(runtime).get_request(request.decoded("id")), request.key_names())


async def get_linked_request(runtime: ApprovalsRuntime, request: AdminRequest) -> Json:
    """Return the approval request that a link in a message to administrators points to.

    Raises `NotFound` if the link is forged or has expired.
    """
    return _to_json(await _gate_of(runtime).get_linked_request(request.decoded("link")), request.key_names())


async def decide(runtime: ApprovalsRuntime, request: AdminRequest) -> Json:
    """Approve or deny the call in a request.

    Raises `NotFound` if the request no longer waits for an answer, or if the body contains a link that is not valid for
    it.
    """
    body = request.body
    yes, note, link = body.get("yes"), body.get("note", ""), body.get("link")
    if not isinstance(yes, bool):
        raise ValueError("yes must be true or false")
    if not isinstance(note, str):
        raise ValueError("note must be a string")
    if link is not None and not isinstance(link, str):
        raise ValueError("link must be a string")
    id_, who = request.decoded("id"), request.principal.caller_id
    decided = await _gate_of(runtime).decide(id_, "approved" if yes else "denied", who, note, link=link)
    return _to_json(decided, request.key_names())


def _gate_of(runtime: ApprovalsRuntime) -> CallApprovals:
    if runtime.gate is None:
        raise ConfigError("this gateway does not ask for approvals", hint='set "approve" in the configuration file')
    return runtime.gate


def _to_json(request: ApprovalRequest, names: dict[str, str], *, cut: bool = False) -> Json:
    arguments = cut_arguments(request.arguments) if cut else request.arguments
    shown: Json = msgspec.to_builtins(msgspec.structs.replace(request, arguments=arguments))
    del shown["key"]
    shown["complete"] = arguments == request.arguments
    for field in ("caller", "who"):
        shown[field] = names.get(shown[field], shown[field]) or "local"
    if request.state == "pending":
        shown["who"] = ""
    return shown


ROUTES: Final = (
    Route(
        "GET",
        "/admin/approvals",
        "Calls that need an administrator's approval, and calls decided in the last 15 minutes",
        "ApprovalList",
        list_requests,
    ),
    Route("GET", "/admin/approvals/{id}", "One call that waits, with its arguments", "Approval", get_request),
    Route(
        "POST",
        "/admin/approvals/{id}",
        "Approve or deny one call",
        "Approval",
        decide,
        body="ApprovalAnswer",
    ),
    Route(
        "GET",
        "/admin/approval-links/{link}",
        "The call behind a link in a message to administrators; 404 if the link is forged or has expired",
        "Approval",
        get_linked_request,
    ),
)
