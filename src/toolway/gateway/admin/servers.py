"""Admin API for servers: status, details, temporary changes, circuit breakers.

The JSON forms of servers, calls and tools are here too, with secrets masked.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import msgspec

from toolway.catalog.catalog import Tool
from toolway.config.admission.command_line import Rejection, program_name
from toolway.config.admission.entry import (
    AdmissionPolicy,
    as_untrusted,
    check_entry,
    check_written,
    keep_restrictions,
    rejection_error,
    with_guard_facts_of,
)
from toolway.config.masking import mask_entry, mask_value
from toolway.config.schema import ConfigIssue, Server
from toolway.config.server_entry import parse_entry_with_issues
from toolway.errors import ConfigError, NotFound
from toolway.events import CallFinished, Event, PolicyDecision
from toolway.gateway.admin.activity import ActivityRecorder, Mask
from toolway.gateway.admin.config import ConfigHistory
from toolway.gateway.cluster_hooks import ClusterHooks
from toolway.hub.servers import HubServers
from toolway.middleware.circuit_breaker import BreakerState, BreakerStatus
from toolway.protocol.jsonrpc import decode_json, encode_json
from toolway.protocol.sanitize import has_invisible, map_texts, remove_invisible
from toolway.search.tokens import tool_chars
from toolway.secrets.server_secrets import mask_target
from toolway.telemetry.metrics import summarize_stats
from toolway.telemetry.recent_calls import call_details_to_json, call_to_json
from toolway.types import Json
from toolway.upstream.status import HealthResult, ServerStatus

MAX_ARGUMENTS_CHARS: Final = 64 * 1024  # characters of a call's arguments
MAX_DESCRIPTION_CHARS: Final = 300  # characters of a description in a list
OVERVIEW_BATCH_SIZE: Final = 25  # servers processed before the event loop runs other tasks
_BREAKER_RESULTS: Final = {"trip": "opened", "reset": "closed"}


class ServersAdmin:
    """Handles `/admin/servers`, `/admin/overview`, and `/admin/breakers`.

    `admission` returns the rules for servers that are added through `/admin`.
    """

    def __init__(
        self,
        servers: HubServers,
        emit: Callable[[Event], None],
        activity: ActivityRecorder,
        config_history: ConfigHistory | None,
        admission: Callable[[], AdmissionPolicy],
        cluster: ClusterHooks,
    ) -> None:
        self._servers = servers
        self._emit = emit
        self._activity = activity
        self._config_history = config_history
        self._admission = admission
        self._cluster = cluster

    # -- status -------------------------------------------------------------------------------------------------------

    async def list_status(self) -> Json:
        owners = await self._owners()
        return {
            "servers": [self._status_row(status, owners) for status in self._servers.status().values()],
            "needs_review": self._config_history.list_held() if self._config_history is not None else [],
        }

    async def check_health(self) -> Json:
        """Check all servers now, and return the results as JSON."""
        results = await self._servers.check_health()
        return {
            "servers": [_health_to_json(each, self._activity.masks.mask_for(name)) for name, each in results.items()]
        }

    async def get_status(self, name: str) -> Json:
        """Return the status of one server as JSON. Raises `NotFound` if the server is unknown."""
        return self._status_row(self._find_status(name), await self._owners())

    async def _owners(self) -> Mapping[str, Sequence[str]]:
        """Return the ids of the nodes that own each server, by server name; empty without a cluster."""
        return await self._cluster.admin.owners_by_server() if self._cluster.admin is not None else {}

    def _status_row(self, status: ServerStatus, owners: Mapping[str, Sequence[str]]) -> Json:
        row = status_to_json(status, self._activity.masks.mask_for(status.server))
        row["nodes"] = nodes = owners.get(status.server, ())
        if nodes and status.state == "idle":  # idle on this node, because its owner runs it
            row["why"] = "runs on its owner node; this node connects on the first call"
        return row

    def _find_status(self, name: str) -> ServerStatus:
        found = self._servers.status().get(name)
        if found is None:
            raise NotFound(f"unknown server {name!r}", server=name)
        return found

    async def get_overview(self) -> Json:
        """Return one row per server with its status and load, and totals.

        It is computed in batches, so the event loop can serve other requests in between.
        """
        now = time.time()
        activity, breakers, owners = self._activity, self._servers.breaker_status(), await self._owners()
        minutes = activity.minutes
        open_tools = Counter(server for (server, tool), facts in breakers.items() if tool and facts.retry_in_s > 0)
        rows = []
        for count, (name, found) in enumerate(self._servers.status().items(), 1):
            if count % OVERVIEW_BATCH_SIZE == 0:
                await asyncio.sleep(0)
            server = self._servers.entries.get(name)
            if server is None:
                continue  # removed since
            row = self._status_row(found, owners)
            row["stderr"] = row["stderr"][-500:]
            row["minutes"] = summarize_stats([minutes[name]] if name in minutes else [], now)
            breaker = breakers.get((name, ""))
            row["breaker"] = breaker.state.value if breaker is not None else "closed"
            if breaker is not None and breaker.state is not BreakerState.CLOSED:
                row["why"] = f"{_describe_breaker(breaker)}; {row['why']}"
            row["open_tools"] = open_tools[name]
            row["limit"] = server.limits.max_concurrent
            rows.append(row | self._load(name))
        overview = {
            "now": now,
            "servers": rows,
            "minutes": summarize_stats(minutes.values(), now),
            "calls": activity.calls.count,
            "last_event": activity.events.last_number,
        }
        return overview if self._cluster.admin is None else {**overview, "cluster": True}

    async def get_detail(self, name: str) -> Json:
        """Return one server's status, timeline, settings, breakers, and recent events.

        Raises `NotFound` if the server is unknown.
        """
        status = await self.get_status(name)
        info = self._servers.info(name)
        now = time.time()
        minutes = self._activity.minutes
        return {
            "now": now,
            "status": status,
            **({"info": map_texts(msgspec.to_builtins(info), self._activity.masks.mask_for(name))} if info else {}),
            "timeline": list(self._activity.timelines.get(name, ())),
            "minutes": summarize_stats([minutes[name]] if name in minutes else [], now),
            "definition": server_to_json(self._servers.entries[name]),
            "origins": self._config_history.value_origins(name) if self._config_history is not None else [],
            "breakers": [each for each in self.list_breakers() if each["server"] == name],
            "events": self._activity.recent_events(lambda event: event["server"] == name, 100),
            "load": self._load(name),
        }

    def _load(self, name: str) -> Json:
        return dict(zip(("queued", "retries", "retries_denied"), self._servers.load(name), strict=True))

    # -- changes ------------------------------------------------------------------------------------------------------

    async def put(self, name: str, body: Json) -> Json:
        """Add or replace a server until the next reload of the configuration file.

        If the file has an entry with this name, its restrictions stay in force, even if that server was removed.
        References in the entry to the gateway's environment variables are not resolved. Raises `ConfigError` if the
        admission rules reject the server.
        """
        server, problems = self._admit(name, body)
        if name in self._servers.entries:
            await self._servers.replace(name, server)
        else:
            await self._servers.add(name, server)
        return {"server": name, "problems": [str(each.message) for each in problems]}

    async def add_to_file(self, name: str, body: Json, *, preview: bool) -> Json:
        """Add a server to the configuration file if the admission rules allow it. With `preview`, return the diff.

        Raises `ConfigError` if the rules reject the server, or if the file is missing.
        """
        history = self._history()
        self._admit_to_file(name, body)
        result = await history.add_server(name, body, preview=preview)
        if not preview:
            self._activity.add_event("change", name, "added to the configuration by an administrator")
        return result

    async def change_file(self, body: Json, *, preview: bool) -> Json:
        """Apply the changes between two versions of the configuration file. With `preview`, return the diff.

        Raises `ValueError` or `ConfigError` if a change is not allowed; the file is then unchanged.
        """
        before, after = body.get("before"), body.get("after")
        if not isinstance(before, str) or not isinstance(after, str):
            raise ValueError("before and after must be strings")
        result = await self._history().change_text(before, after, self._admit_to_file, preview=preview)
        if not preview:
            self._activity.add_event("change", "", "configuration edited by an administrator")
        return result

    def _history(self) -> ConfigHistory:
        if self._config_history is None:
            raise ConfigError("no configuration file", detail="the servers were passed to the gateway in code")
        return self._config_history

    def _admit_to_file(self, name: str, body: Json) -> None:
        """Raise `ConfigError` if the admission rules reject an entry for the configuration file."""
        server, _ = self._admit(name, body)
        rejection = check_written(body, server, self._servers.config.network_policy)
        if rejection is not None:
            raise rejection_error(name, rejection, _admission_hint(rejection))

    def _admit(self, name: str, body: Json) -> tuple[Server, list[ConfigIssue]]:
        """Return the server defined by an entry in a request, and warnings about it.

        Raises `ConfigError` if the admission rules reject it.
        """
        entry, problems = parse_entry_with_issues(body, {})
        server = as_untrusted(entry)
        rejection = check_entry(server, self._admission(), self._servers.config.network_policy)
        configured = self._servers.config.servers.get(name)
        if rejection is None and configured is not None:
            kept = keep_restrictions(server, configured)
            server, rejection = (server, kept) if isinstance(kept, Rejection) else (kept, None)
        server = with_guard_facts_of(server, self._servers.config.servers.values())
        self._emit(PolicyDecision(name, "admission", rejection is None, _recorded_reason(rejection, server)))
        if rejection is not None:
            raise rejection_error(name, rejection, _admission_hint(rejection))
        return server, problems

    async def remove(self, name: str) -> Json:
        await self._servers.remove(name)
        return {"removed": name}

    def restart(self, name: str) -> Json:
        """Restart a server. In a cluster, the nodes that own the server restart it too."""
        self._servers.restart(name)
        if self._cluster.admin is not None:
            self._cluster.admin.restart(name)
        return {"restarting": name}

    async def set_enabled(self, name: str, action: str) -> Json:
        """Enable or disable a server until the next reload. `action` is "enable" or "disable".

        Raises `NotFound` if the server is unknown.
        """
        server = self._servers.entries.get(name)
        if server is None:
            raise NotFound(f"unknown server {name!r}", server=name)
        self._activity.add_event("change", name, f"{action}d by an administrator, until the next reload")
        await self._servers.replace(name, replace(server, enabled=action == "enable"))
        return {action + "d": name}

    # -- circuit breakers ---------------------------------------------------------------------------------------------

    def get_breakers(self) -> Json:
        return {"breakers": self.list_breakers()}

    def list_breakers(self) -> list[Json]:
        return [
            {
                "server": server,
                "tool": tool,
                "position": facts.state.value,
                "wait": facts.retry_in_s,
                "consecutive_failures": facts.consecutive_failures,
                "ended": facts.attempts,
                "failures": facts.failures,
                "opened_count": facts.openings,
            }
            for (server, tool), facts in self._servers.breaker_status().items()
        ]

    def set_breaker(self, server: str, tool: str, action: str) -> Json:
        """Trip or reset the circuit breaker of a server, or of one tool if `tool` is not empty."""
        (self._servers.trip_breaker if action == "trip" else self._servers.reset_breaker)(server, tool)
        name = f"{server}.{tool}" if tool else server
        self._activity.add_event(
            "change", server, f"circuit breaker of {name} {_BREAKER_RESULTS[action]} by an administrator"
        )
        return {_BREAKER_RESULTS[action]: name}


def _describe_breaker(facts: BreakerStatus) -> str:
    if facts.retry_in_s <= 0:
        return "calls are paused until one of them succeeds"
    failures = "1 failure" if facts.failures == 1 else f"{facts.failures} failures"
    return f"calls are paused for {facts.retry_in_s:.0f} s after {failures}"


def _recorded_reason(rejection: Rejection | None, server: Server) -> str:
    """Return why an entry was rejected, for the audit log.

    It omits a command's arguments, which may contain a secret.
    """
    if rejection is None or not server.command:
        return rejection.reason if rejection is not None else ""
    return f"the command line, variables or folder of {program_name(server.command)[:80]} are not allowed"


def _admission_hint(rejection: Rejection) -> str:
    """Return a hint on how to allow a rejected server entry."""
    if rejection.setting:
        return f'allow it in the configuration file: "toolway": {{"gateway": {{{rejection.setting}}}}}'
    return rejection.hint or "add it to the configuration file: toolway add; toolway.addresses allows a private address"


# -- JSON of servers, calls and tools, with secrets masked -------------------------------------------------------------


def encode_for_display(value: Any) -> bytes:
    """Encode an admin route's response as JSON without control, direction, and invisible characters.

    `/admin` is for human users. A program that needs a tool's exact result calls the tool at `/mcp`.
    """
    encoded = encode_json(value)
    if not has_invisible(encoded):
        return encoded
    return encode_json(map_texts(decode_json(encoded), remove_invisible))


def status_to_json(facts: ServerStatus, mask: Mask) -> Json:
    """Return a server's status as JSON.

    All strings are masked: a server may print its own secrets.
    """
    result = msgspec.to_builtins(facts)
    result["problems"] = [mask(each) for each in facts.problems]
    return {key: mask(value) if isinstance(value, str) else value for key, value in result.items()}


def _health_to_json(result: HealthResult, mask: Mask) -> Json:
    return {key: mask(value) if isinstance(value, str) else value for key, value in msgspec.to_builtins(result).items()}


def masked_call_to_json(fact: CallFinished, mask: Mask, names: Mapping[str, str]) -> Json:
    """Return one call as a row for call lists, with secrets masked.

    `names` maps caller ids to names of API keys.
    """
    return _mask_and_name(call_to_json(fact), fact, mask, names)


def call_detail_to_json(fact: CallFinished, mask: Mask, names: Mapping[str, str]) -> Json:
    """Return one call in detail, with timing waterfall and arguments; secrets are masked.

    `names` maps caller ids to names of API keys.
    """
    return {**_mask_and_name(call_details_to_json(fact), fact, mask, names), "arguments": _masked_arguments(fact, mask)}


def _mask_and_name(facts: Json, fact: CallFinished, mask: Mask, names: Mapping[str, str]) -> Json:
    for key in ("message", "detail", "hint"):
        facts[key] = mask(facts[key])
    facts["name"] = mask_target(fact.server, fact.method, fact.name, mask)
    tool = fact.tool or fact.name.removeprefix(f"{fact.server}.")
    facts["tool"] = mask_target(fact.server, fact.method, tool, mask)
    facts["principal"] = names.get(fact.caller, fact.caller) or "local"
    return facts


def _masked_arguments(fact: CallFinished, mask: Mask) -> Any:
    """Return a recorded call's arguments with secrets masked.

    Return None if the arguments are not stored; truncated JSON text if they are too long.
    """
    if not isinstance(fact.params, dict) or "arguments" not in fact.params:
        return None
    text = mask(msgspec.json.encode(mask_value(fact.params["arguments"])).decode())
    return msgspec.json.decode(text) if len(text) <= MAX_ARGUMENTS_CHARS else f"{text[:MAX_ARGUMENTS_CHARS]}…"


def tool_to_json(tool: Tool) -> Json:
    """Return one tool as a row for lists of tools.

    The row has a short description, and the number of characters in the definition that a model gets.
    """
    notes = tool.annotations
    return {
        "server": tool.server,
        "tool": tool.name,
        "model_name": tool.model_name,
        "title": tool.title or "",
        "description": (tool.description or "")[:MAX_DESCRIPTION_CHARS],
        "size": tool_chars(tool),
        "read_only": notes.get("readOnlyHint") is True,
        "destructive": notes.get("destructiveHint") is True,
    }


def server_to_json(server: Server) -> Json:
    """Return a server's non-default settings, with secrets masked."""
    defaults = asdict(Server(command="x") if server.command else Server(url="http://x"))
    found: Json = {}
    for key, value in asdict(replace(server, guard_facts={})).items():
        if value != defaults.get(key) and value is not None:
            found[key] = mask_entry(msgspec.to_builtins(value, enc_hook=str), key)
    return found
