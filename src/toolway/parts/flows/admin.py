"""`/admin/flows`: the labels of the tools that each caller used in the last half hour.

A label says what a call does: read private data, read untrusted content, or send data out.
"""

from __future__ import annotations

from typing import Final

from toolway.errors import NotFound
from toolway.events import PolicyDecision
from toolway.gateway.admin.routes import AdminRequest, Route
from toolway.gateway.admin.schema import BOOLEAN, NUMBER, STRING, STRINGS, array_of, object_of
from toolway.parts.flows.labels import labels_of, suggest_labels
from toolway.parts.flows.runtime import FlowsRuntime
from toolway.types import Json

SCHEMAS: Final = {
    "FlowList": object_of(
        {
            "enabled": BOOLEAN,
            "mode": STRING,
            "callers": array_of(
                object_of(
                    {
                        "caller": STRING,
                        "name": STRING,
                        "labels": array_of(object_of({"label": STRING, "tool": STRING, "at": NUMBER})),
                    }
                )
            ),
        }
    ),
    "FlowSuggestions": object_of(
        {"tools": array_of(object_of({"server": STRING, "tool": STRING, "labels": STRINGS, "suggested": STRINGS}))}
    ),
    "FlowReset": object_of({"reset": STRING}),
}


async def show(runtime: FlowsRuntime, request: AdminRequest) -> Json:
    """Return the flow mode, and each caller's most recent call with each label.

    A label says what a tool does: read private data, read untrusted content, or send data out.
    """
    flows = runtime.flows
    if flows is None or not flows.is_on:
        return {"enabled": False, "mode": "note", "callers": []}
    names, windows = request.key_names(), await flows.load()
    return {
        "enabled": True,
        "mode": flows.mode,
        "callers": [
            {
                "caller": caller,
                "name": names.get(caller, caller) or "local",
                "labels": [{"label": label, "tool": each.tool, "at": each.at} for label, each in window.items()],
            }
            for caller, window in sorted(windows.items())
        ],
    }


def suggest(runtime: FlowsRuntime, request: AdminRequest) -> Json:
    """Return each tool's configured flow labels, and the labels that its name and hints suggest."""
    found, hub = [], runtime.hub
    for tool in hub.lists.catalog.tools():
        server = hub.servers.entries.get(tool.server)
        command = " ".join((server.command or "", *server.args)) if server is not None else ""
        given = labels_of(server, tool.name, "note")
        wanted = suggest_labels(tool.server, tool.name, tool.annotations or {}, command)
        if wanted or given:
            row = {"server": tool.server, "tool": tool.name, "labels": sorted(given)}
            found.append({**row, "suggested": [each for each in wanted if each not in given]})
    return {"tools": found}


async def reset(runtime: FlowsRuntime, request: AdminRequest) -> Json:
    """Clear the labels from a caller's recent calls, so only new calls count.

    Name the caller by caller id, `local`, or the name of exactly one API key. User names do not work, because anyone
    may choose any user name. Raises `NotFound` if no labels are recorded.
    """
    flows, who = runtime.flows, request.decoded("who")
    if flows is not None:
        for caller in (who, "" if who == "local" else request.find_key(who)):
            if caller is not None and await flows.reset(caller):
                runtime.hub.emit(PolicyDecision("", "flows", True, f"reset: {who[:100]}"))
                return {"reset": who}
    raise NotFound(
        f"{who[:100]!r} has no known labels",
        detail="users, and keys that share a name, can only be looked up by id",
        hint="list all callers and their ids: toolway policy flows show",
    )


ROUTES: Final = (
    Route(
        "GET",
        "/admin/flows",
        "Labels that each caller's calls set in the last half hour",
        "FlowList",
        show,
    ),
    Route(
        "GET",
        "/admin/flows/suggestions",
        "Labels that tools may need, judging by their names and hints",
        "FlowSuggestions",
        suggest,
    ),
    Route(
        "DELETE",
        "/admin/flows/{who}",
        "Clear a caller's labels",
        "FlowReset",
        reset,
    ),
)
