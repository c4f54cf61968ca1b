"""Admin API for the overview, events, alerts, tools, toolsets, doctor, and configuration.

The dashboard and the command line show the same data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from msgspec.structs import asdict

from toolway.catalog.catalog import Catalog, Tool
from toolway.errors import ConfigError, NotFound
from toolway.gateway.admin import servers
from toolway.gateway.admin.activity import ActivityRecorder
from toolway.gateway.admin.calls import CallsAdmin, parse_number, parse_query_fields
from toolway.gateway.admin.config import ConfigHistory
from toolway.gateway.admin.dashboard import BrowserSessions
from toolway.gateway.mcp.responses import EventStream
from toolway.gateway.principals import Principal
from toolway.gateway.tool_filter import ToolFilter
from toolway.http.exchange import Exchange
from toolway.hub.servers import HubServers
from toolway.types import Json

EVENTS_POLL_INTERVAL_S: Final = 0.25  # seconds between two checks for new events of a stream
MAX_EVENT_STREAMS: Final = 64
MAX_EVENTS_PER_REPLY: Final = 500  # events in one reply
BATCH_SIZE: Final = 200  # tools or calls processed before the event loop runs other tasks
EVENT_QUERY: Final = {
    "server": "name of a server",
    "kind": "kind of event: state, connection, catalog, alert, loop or change",
    "limit": f"at most {MAX_EVENTS_PER_REPLY}",
}
PREVIEW_QUERY: Final = {"preview": "1: return the diff, and change nothing"}
RunDoctor = Callable[[str | None], Awaitable[Json]]


class OverviewAdmin:
    """Handles the `/admin` routes that concern the whole gateway.

    `doctor` checks all servers or one, `config_history` manages the config file. Either may be None.
    """

    def __init__(
        self,
        servers: HubServers,
        catalog: Catalog,
        activity: ActivityRecorder,
        calls_admin: CallsAdmin,
        browser_sessions: BrowserSessions,
        toolsets: Callable[[], Mapping[str, ToolFilter]],
        config_history: ConfigHistory | None,
        doctor: RunDoctor | None,
    ) -> None:
        self._servers = servers
        self._catalog = catalog
        self._activity = activity
        self._calls_admin = calls_admin
        self._browser_sessions = browser_sessions
        self._toolsets = toolsets
        self._config_history = config_history
        self._doctor = doctor
        self._event_streams: set[EventStream] = set()
        self._doctor_lock = asyncio.Lock()
        self._tool_rows: dict[tuple[str, str], tuple[Any, Json]] = {}  # row of each tool, valid for this tool object

    def dashboard_url(self, principal: Principal) -> str:
        """Return the URL path of the dashboard with a one-time code that logs this principal in."""
        return f"/dashboard/#code={self._browser_sessions.issue_code(principal)}"

    # -- events -------------------------------------------------------------------------------------------------------

    def list_events(self, query: str) -> Json:
        fields = parse_query_fields(query)
        server, kind = fields.get("server"), fields.get("kind")
        limit = min(MAX_EVENTS_PER_REPLY, parse_number(fields.get("limit", "200")))
        return {
            "events": self._activity.recent_events(
                lambda e: server in (None, e["server"]) and kind in (None, e["kind"]), limit
            ),
            "last": self._activity.events.last_number,
        }

    def list_alerts(self) -> Json:
        return {"alerts": [{"name": name, **asdict(each)} for name, each in self._activity.alerts.items()]}

    def resolve_alert(self, name: str) -> Json:
        """Remove an alert that a user has resolved. Raises `NotFound` if there is none."""
        found = self._activity.alerts.pop(name, None)
        if found is None:
            raise NotFound(f"unknown alert {name!r}")
        self._activity.add_event("change", found.server, f"alert resolved by an administrator: {found.message}")
        return {"resolved": name}

    async def stream_events(self, exchange: Exchange) -> None:
        """Stream calls and events to a client as they happen, until the client disconnects.

        This is `GET /admin/events` with `Accept: text/event-stream`. Raises `ConfigError` if too many streams are open.
        """
        if len(self._event_streams) >= MAX_EVENT_STREAMS:
            raise ConfigError("too many event streams", detail=f"{len(self._event_streams)} streams are open")
        stream = EventStream(exchange)
        stream.close_on_disconnect()
        activity = self._activity
        calls, events = activity.calls.count, activity.events.last_number
        stream.write(_encode_named_event("hello", {"now": time.time(), "calls": calls, "last_event": events}))
        self._event_streams.add(stream)
        try:
            while not stream.closed.is_set():
                await asyncio.sleep(EVENTS_POLL_INTERVAL_S)
                if activity.calls.count != calls:
                    new_count, calls = activity.calls.count - calls, activity.calls.count
                    names = self._calls_admin.key_names()
                    new = activity.calls.find_newest(limit=min(new_count, BATCH_SIZE))
                    rows = [
                        servers.masked_call_to_json(fact, activity.masks.mask_for(fact.server), names)
                        for fact in reversed(new)
                    ]
                    stream.write(_encode_named_event("calls", {"calls": rows, "overflow": new_count - len(rows)}))
                if activity.events.last_number != events:
                    rows = [{"n": n, **event} for n, event in activity.events.after(events)]
                    stream.write(_encode_named_event("events", {"events": rows}))
                    events = activity.events.last_number
        finally:
            self._event_streams.discard(stream)
            stream.close()

    def close_streams(self) -> None:
        """Close all event streams, because open ones would delay the shutdown."""
        for stream in self._event_streams:
            stream.close()

    # -- tools --------------------------------------------------------------------------------------------------------

    def get_tools(self) -> Json:
        """Return the complete definitions of all tools, as their servers list them."""
        return {"tools": [_tool_to_json(tool) for tool in self._catalog.tools()]}

    async def list_tools(self) -> Json:
        """Return one row per tool for the dashboard, with the size of its definition.

        It is computed in batches, so the event loop can serve other requests in between.
        """
        rows, cached_rows = [], self._tool_rows
        self._tool_rows = {}
        for count, tool in enumerate(self._catalog.tools()):
            key = (tool.server, tool.name)
            cached = cached_rows.get(key)
            if cached is None or cached[0] is not tool:
                cached = (tool, servers.tool_to_json(tool))
            self._tool_rows[key] = cached
            rows.append(cached[1])
            if count % BATCH_SIZE == BATCH_SIZE - 1:
                await asyncio.sleep(0)
        return {"tools": rows}

    def get_tool(self, server: str, name: str) -> Json:
        for tool in self._catalog.tools(server=server):
            if tool.name == name:
                return {**servers.tool_to_json(tool), "description": tool.description or "", "raw": tool.raw}
        raise NotFound(f"unknown tool {server}.{name}", server=server)

    def list_endpoints(self) -> Json:
        """Return the MCP endpoints: `/mcp`, one per toolset, one per server."""
        tools = [(tool.qualified_name, tool) for tool in self._catalog.tools()]
        toolsets = []
        for name, tool_filter in self._toolsets().items():
            included = [tool for full, tool in tools if full in tool_filter]
            toolsets.append(
                {
                    "name": name,
                    "path": f"/mcp/{quote(name)}",
                    "patterns": list(tool_filter.patterns),
                    "search": tool_filter.search,
                    "tools": len(included),
                    "size": sum(servers.tool_to_json(tool)["size"] for tool in included),
                    "servers": sorted({tool.server for tool in included}),
                }
            )
        return {
            "all": {"path": "/mcp", "tools": len(tools)},
            "toolsets": toolsets,
            "servers": list(self._servers.entries),
        }

    # -- doctor and configuration -------------------------------------------------------------------------------------

    async def run_doctor(self, body: Json) -> Json:
        name = body.get("server")
        if self._doctor is None:
            raise ConfigError("this gateway cannot run the doctor", hint="run it in a terminal: toolway doctor")
        if name is not None and name not in self._servers.entries:
            raise NotFound(f"unknown server {name!r}", server=str(name))
        async with self._doctor_lock:  # one run at a time: it starts its own server processes
            return await self._doctor(name)

    def get_config(self) -> Json:
        return self._history().to_json()

    def get_config_diff(self, number: str) -> Json:
        return self._history().diff(parse_number(number))

    async def roll_back(self, number: str) -> Json:
        result = await self._history().roll_back(parse_number(number))
        self._activity.add_event("change", "", f"configuration rolled back to version {number}")
        return result

    async def set_toolset(self, name: str, body: Json | None, query: str) -> Json:
        """Add, change, or remove (None) a toolset in the configuration file.

        With `preview` in the query, return the diff.
        """
        preview = is_preview(query)
        result = await self._history().set_toolset(name, body, preview=preview)
        if not preview:
            action = "removed from" if body is None else "written to"
            self._activity.add_event(
                "change", "", f"toolset {name[:80]} {action} the configuration by an administrator"
            )
        return result

    async def change_server(self, name: str, body: Json, query: str = "") -> Json:
        """Change a server's settings in the configuration file. `preview` in the query returns the diff."""
        if is_preview(query):
            return await self._history().change_server(name, body, preview=True)
        result = await self._history().change_server(name, body)
        self._activity.add_event(
            "change", name, f"{', '.join(sorted(body))} changed in the configuration by an administrator"
        )
        return result

    async def remove_server(self, name: str) -> Json:
        """Remove a server from the configuration file."""
        result = await self._history().remove_server(name)
        self._activity.add_event("change", name, "removed from the configuration by an administrator")
        return result

    def _history(self) -> ConfigHistory:
        if self._config_history is None:
            raise ConfigError("no configuration file", detail="the servers were passed to the gateway in code")
        return self._config_history


def is_preview(query: str) -> bool:
    """Return True if a request asks for the diff of a change instead of making the change."""
    return parse_query_fields(query).get("preview") == "1"


def _tool_to_json(tool: Tool) -> Json:
    return {
        "name": tool.qualified_name,
        "model_name": tool.model_name,
        "server": tool.server,
        "title": tool.title,
        "description": tool.description,
        "raw": tool.raw,
    }


def _encode_named_event(name: str, data: Json) -> bytes:
    """Encode a server-sent event with this event name and JSON data."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), servers.encode_for_display(data))
