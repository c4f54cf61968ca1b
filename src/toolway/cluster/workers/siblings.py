"""One machine's workers as one gateway: totals, administration, API keys and reloads.

Worker 0 answers /admin, /metrics and the login of the dashboard for all. The other workers forward such requests to it,
so every answer is the same, whichever worker a connection reaches. Before each answer, worker 0 collects a report of
every other worker: its counters since its start, and its calls since the last report.

The counters of a worker that was killed stay part of the sums. Worker 0 stores all counters before it shows them in
/metrics, so they do not decrease if it is killed itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from toolway.cluster.node_context import NodeContext
from toolway.cluster.options import WorkerPlace
from toolway.cluster.session_handover import NodeRequests, tag_for_node
from toolway.events import CallFinished
from toolway.gateway.authenticator import json_error
from toolway.gateway.cluster_hooks import WorkerReport
from toolway.gateway.gateway import Gateway
from toolway.gateway.principals import ApiKey, FileApiKeyStore
from toolway.http.client import ClientLimits, HttpClient, HttpError, HttpTarget, encode_headers
from toolway.http.exchange import Exchange
from toolway.hub.core import HubCore
from toolway.network.policy import NetworkPolicy
from toolway.secrets.encrypted_file import write_private
from toolway.telemetry.metrics import MetricsStore
from toolway.types import Json

REPORT_ACTION: Final = "report"
KEYS_ACTION: Final = "keys"
RELOAD_ACTION: Final = "reload"
COLLECT_INTERVAL_S: Final = 1.0  # counts of a worker that is killed are lost for at most this time
COLLECT_TIMEOUT_S: Final = 2.0
RELOAD_TIMEOUT_S: Final = 60.0
MAX_REPORTED_CALLS: Final = 500  # calls in one report; all are counted
MAX_REPLY_BYTES: Final = 256 * 1024 * 1024
TOTALS_NAME: Final = "totals.json"
#: Events that concern one worker. What happens to servers is reported by their owner, worker 0.
_REPORTED_EVENTS: Final = frozenset({"alert", "loop", "pause"})
_OWN_REQUEST_HEADERS: Final = frozenset(
    {"host", "content-length", "connection", "keep-alive", "transfer-encoding", "te", "upgrade", "expect"}
    | {"accept-encoding", "x-request-id"}
)
_OWN_RESPONSE_HEADERS: Final = frozenset({"content-length", "connection", "transfer-encoding", "date", "x-request-id"})

Reload = Callable[[], Awaitable[Json]]
log = logging.getLogger("toolway.cluster")


class SiblingWorkers:
    """All workers (gateway processes) of this machine, from one worker's point of view.

    `reload` reads the configuration of this worker again.
    """

    def __init__(
        self,
        place: WorkerPlace,
        context: NodeContext,
        node_requests: NodeRequests,
        hub: HubCore,
        gateway: Gateway,
        reload: Reload,
        keys: WorkerKeyStore | None,
    ) -> None:
        self._place = place
        self._context = context
        self._node_requests = node_requests
        self._hub = hub
        self._gateway = gateway
        self._reload = reload
        self._keys = keys
        self._reports: dict[str, WorkerReport] = {}  # the last one of each other worker, also of those that ended
        self._live: set[str] = set()  # workers that answered last time
        self._cursors: dict[str, tuple[int, int]] = {}  # number of calls and last event that were reported
        self._lock = asyncio.Lock()
        self._client = HttpClient(ClientLimits(), NetworkPolicy(), unix_path=WorkerPlace(0, place.folder).socket_path)
        self._task: asyncio.Task[None] | None = None
        if keys is not None:
            keys.announce = self._announce_keys
        if place.is_first:
            self._load_totals()
            gateway.metrics.other_stores = self._other_stores
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._client.close()

    # -- all workers --------------------------------------------------------------------------------------------------

    async def ask_others(self, params: Json, timeout: float = COLLECT_TIMEOUT_S) -> dict[str, Json]:
        """Send a request to all other workers at once. Return the replies by node id; a worker may have none."""
        ids = [node.info.id for node in self._context.live_nodes() if node.info.id != self._context.id]

        async def ask(id: str) -> Json | None:
            own = {**params, "after": self._cursors.get(id, (0, 0))} if params["do"] == REPORT_ACTION else params
            return await self._node_requests.send(tag_for_node(id), "", own, timeout=timeout)

        replies = await asyncio.gather(*map(ask, ids))
        return {id: reply for id, reply in zip(ids, replies, strict=True) if reply is not None}

    async def execute(self, params: Json) -> Json:
        """Execute another worker's request (send a report, read the API keys, reload) and reply."""
        action = params.get("do")
        if action == REPORT_ACTION:
            calls, event = params.get("after") or (0, 0)
            return self._build_report(int(calls), int(event))
        if action == KEYS_ACTION:
            if self._keys is not None:
                self._keys.reload()
            return {"done": True}
        try:
            return {"done": True, **await self._reload()}
        except Exception as exc:  # says why to the one who asked
            return {"done": False, "problem": str(exc)}

    async def _announce_keys(self) -> None:
        """Make all other workers read the API keys again, and wait until they have."""
        replies = await self.ask_others({"do": KEYS_ACTION})
        missing = {node.info.id for node in self._context.live_nodes()} - replies.keys() - {self._context.id}
        if missing:
            log.warning("API keys changed; not confirmed by %s, which read them in half a second", ", ".join(missing))

    async def reload_others(self) -> list[str]:
        """Make all other workers reload the configuration. Return their problems."""
        replies = await self.ask_others({"do": RELOAD_ACTION}, RELOAD_TIMEOUT_S)
        return [f"{id}: {reply.get('problem')}" for id, reply in replies.items() if reply.get("done") is not True]

    # -- reports ------------------------------------------------------------------------------------------------------

    def _build_report(self, calls_before: int, event_before: int) -> Json:
        activity, gateway = self._gateway.activity, self._gateway
        calls = activity.calls
        new = calls.find_newest(limit=min(max(0, calls.count - calls_before), MAX_REPORTED_CALLS))
        events = [event for _, event in activity.events.after(event_before) if event["kind"] in _REPORTED_EVENTS]
        status = self._hub.servers.status()
        return {
            "metrics": gateway.metrics.store.to_json(),
            "stalls": [gateway.metrics.stalls, gateway.metrics.stalled_seconds],
            "stats": gateway.own_stats(),
            "running": Counter(call.server for call in self._hub.calls.running()),
            "messages": {name: [each.messages_sent, each.messages_received] for name, each in status.items()},
            "parts": gateway.parts.own_reports(),
            "count": calls.count,
            "calls": [msgspec.to_builtins(each) for each in reversed(new)],
            "events": events,
            "last_event": activity.events.last_number,
        }

    async def collect(self) -> None:
        """Request a report (counters, recent calls) from every other worker. Only worker 0 does that."""
        if not self._place.is_first:
            return
        async with self._lock:
            replies = await self.ask_others({"do": REPORT_ACTION})
            self._live = set(replies)
            for id, reply in replies.items():
                self._take_report(id, reply)

    def _take_report(self, id: str, reply: Json) -> None:
        activity = self._gateway.activity
        calls_before, _ = self._cursors.get(id, (0, 0))
        self._cursors[id] = (reply["count"], reply["last_event"])
        self._reports[id] = _to_report(reply)
        calls = [msgspec.convert(each, CallFinished, strict=False) for each in reply["calls"]]
        activity.calls.add_reported(calls, reply["count"] - calls_before)
        for event in reply["events"]:
            activity.events.add(event)

    def live_reports(self) -> list[WorkerReport]:
        """Return the last report of each other worker that is still running."""
        return [report for id, report in self._reports.items() if id in self._live]

    def _other_stores(self) -> list[tuple[MetricsStore, int, float]]:
        return [(report.store, *report.stalls) for report in self._reports.values()]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(COLLECT_INTERVAL_S)
            try:
                await self.collect()
            except Exception:
                log.exception("reports of the other workers not collected")

    # -- counters that were shown -------------------------------------------------------------------------------------

    @property
    def _totals_file(self) -> Path:
        return Path(self._place.folder) / TOTALS_NAME

    def save_totals(self) -> None:
        """Save all workers' counters to a file, for the next worker 0 if this one is killed.

        Worker 0 collects the counters of all workers of a machine and shows their sums.
        """
        metrics = self._gateway.metrics
        own = {"metrics": metrics.store.to_json(), "stalls": [metrics.stalls, metrics.stalled_seconds]}
        others = {
            id: {"metrics": report.store.to_json(), "stalls": report.stalls} for id, report in self._reports.items()
        }
        with suppress(OSError):
            write_private(self._totals_file, msgspec.json.encode({**others, self._context.id: own}))

    def _load_totals(self) -> None:
        try:
            found = msgspec.json.decode(self._totals_file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as exc:
            log.warning("cannot read counters from the previous workers: %s", exc)
            return
        self._reports = {id: _to_report(each) for id, each in found.items()}

    # -- requests to worker 0 -----------------------------------------------------------------------------------------

    async def forward(self, exchange: Exchange) -> bool:
        """Forward an HTTP request to worker 0 and pass its answer to the client. Return False if we are worker 0."""
        if self._place.is_first:
            return False
        request = exchange.request
        query = f"?{request.query}" if request.query else ""
        headers = {name: value for name, value in request.headers.items() if name not in _OWN_REQUEST_HEADERS}
        headers |= {"accept-encoding": "identity", "x-request-id": exchange.request_id}
        task = asyncio.current_task()
        assert task is not None

        def on_disconnect() -> None:
            task.cancel()

        try:
            target = HttpTarget.parse(f"http://{request.headers.get('host', 'localhost')}{request.path}{query}")
            method = "GET" if request.method == "HEAD" else request.method
            async with self._client.send(method, target, (encode_headers(headers),), request.body) as response:
                fields = [
                    (name, value) for name, value in response.headers.items() if name not in _OWN_RESPONSE_HEADERS
                ]
                fields = [(name, value) for name, value in fields if name not in dict(exchange.extra_headers)]
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    exchange.on_disconnect = on_disconnect
                    exchange.open(response.status, fields)
                    async for chunk in response:
                        exchange.write(chunk)
                    exchange.end()
                else:
                    exchange.reply(response.status, await response.read(MAX_REPLY_BYTES), fields)
        except (HttpError, ValueError) as exc:
            if exchange.opened:
                exchange.abort()
                return True
            status, body, error_fields = json_error(
                503, "the first worker is restarting", detail=str(exc), hint="retry in a second"
            )
            exchange.reply(status, body, (*error_fields, ("retry-after", "1")))
        return True


def _to_report(reply: Json) -> WorkerReport:
    return WorkerReport(
        MetricsStore.from_json(reply["metrics"]),
        (int(reply["stalls"][0]), float(reply["stalls"][1])),
        reply.get("stats") or {},
        reply.get("running") or {},
        reply.get("messages") or {},
        reply.get("parts") or {},
    )


class WorkerKeyStore(FileApiKeyStore):
    """The API key file that several workers share. A change is confirmed once all workers know it."""

    announce: Callable[[], Awaitable[None]] | None = None

    async def add_key(self, key: ApiKey) -> None:
        await super().add_key(key)
        await self._announce()

    async def end_logins(self, user: str, now: float) -> None:
        await super().end_logins(user, now)
        await self._announce()

    async def revoke_key(self, id: str) -> bool:
        revoked = await super().revoke_key(id)
        await self._announce()
        return revoked

    async def _announce(self) -> None:
        if self.announce is not None:
            await self.announce()
