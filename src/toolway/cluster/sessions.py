"""Legacy sessions in a cluster: a client may send each request to another node.

Rule 1. The session id is sealed and contains the fixed properties of the session: every node can read it.
Rule 2. Later state (log level, subscriptions, end) is stored in the database. A node reads it when it first sees a
        session, when another node published a change, and after it may have missed messages.
Rule 3. State that lives at one node (a server request, a broken stream, an `/sse` stream) is found by the node tag in
        its name. A request that reaches another node is forwarded (`session_handover.py`). The state ends with its
        node.
Rule 4. A cancellation names no node, so it is published to all; the node with the request handles it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final
from weakref import WeakValueDictionary

from sqlalchemy.exc import SQLAlchemyError

from toolway.cluster.db.client_state import SessionState, SessionStateStore
from toolway.cluster.queries import QueryRunner
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.cluster.session_handover import (
    NodeRequests,
    execute_node_request,
    forward_post,
    forward_response,
    forward_resume,
    tag_for_node,
)
from toolway.gateway.admin.dashboard import SESSION_LIFETIME_S as BROWSER_SESSION_LIFETIME_S
from toolway.gateway.admin.dashboard import EndedSessions
from toolway.gateway.mcp.context import Notify
from toolway.gateway.mcp.legacy_session import CLIENT_REQUEST_ID_PREFIX, LegacySession
from toolway.gateway.mcp.legacy_sessions import MAX_SESSIONS, SESSION_LIFETIME_S, LegacySessions
from toolway.gateway.mcp.legacy_sse import LegacySseEndpoint
from toolway.gateway.mcp.responses import EventStream
from toolway.gateway.mcp.subscriptions import MAX_TOPICS
from toolway.protocol.cancellation import CANCELLED, cancellation_params, cancelled_request_id
from toolway.protocol.jsonrpc import Message
from toolway.types import Json

SESSION_MESSAGE_KIND: Final = "session"  # kind of our messages
QUERY_TIMEOUT_S: Final = 2.0  # seconds for a query
DATABASE_RETRY_DELAY_S: Final = 2.0  # seconds after which an unavailable database is queried again
MAX_AGE_WITHOUT_NATS_S: Final = 1.0  # seconds for which stored state counts as current while NATS is disconnected
REFRESH_BATCH: Final = 200  # sessions in one query
_BROWSER_PREFIX: Final = "browser."  # of the ids of dashboard sessions in the table of sessions
_SERVER_REQUEST_ID: Final = re.compile(rf"{CLIENT_REQUEST_ID_PREFIX}([0-9a-z]+)\.[0-9]+")
log = logging.getLogger("toolway.cluster")


class SharedSessions:
    """Shares the legacy sessions of a gateway with the other nodes; implements `SessionPeers`.

    `is_connected()` returns True while NATS messages are received.
    """

    def __init__(
        self,
        node: str,
        tenant: str,
        store: SessionStateStore,
        node_requests: NodeRequests,
        change_feed: ChangeFeed,
        is_connected: Callable[[], bool],
        legacy_sessions: LegacySessions,
        legacy_sse: LegacySseEndpoint,
        ended_sessions: EndedSessions,
    ) -> None:
        self.node_tag = tag_for_node(node)
        self._tenant = tenant
        self._store = store
        self._node_requests = node_requests
        self._change_feed = change_feed
        self._is_connected = is_connected
        self._legacy_sessions = legacy_sessions
        self._legacy_sse = legacy_sse
        self._now = asyncio.get_running_loop().time
        self._run_query = QueryRunner(QUERY_TIMEOUT_S)
        self._live: WeakValueDictionary[str, LegacySession] = WeakValueDictionary()  # by digest
        #: Ids of sessions that started here and were not used since.
        self._started_here: OrderedDict[str, None] = OrderedDict()
        self._gap_at = 0.0
        self._database_retry_at = 0.0
        self._stale: set[str] = set()  # digests
        self._refresh_task: asyncio.Task[None] | None = None
        self._ended_sessions = ended_sessions
        self._logout_tasks: set[asyncio.Task[None]] = set()
        change_feed.on_message(SESSION_MESSAGE_KIND, self._on_message)
        self._start(self._load_browser_logouts())

    async def close(self) -> None:
        tasks = [*self._logout_tasks, *([self._refresh_task] if self._refresh_task is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._run_query.wait_pending()

    # -- stored session state -----------------------------------------------------------------------------------------

    def on_session_started(self, id_: str) -> None:
        self._started_here[id_] = None
        if len(self._started_here) > MAX_SESSIONS:
            self._started_here.popitem(last=False)

    def on_session_loaded(self, session: LegacySession) -> None:
        self._live[_session_digest(session.id)] = session
        if session.id in self._started_here:
            del self._started_here[session.id]
            session.state_loaded_at = self._now()

    def is_current(self, session: LegacySession) -> bool:
        now = self._now()
        if now < self._database_retry_at:
            return True
        if not session.state_loaded_at or session.state_loaded_at < self._gap_at:
            return False
        return self._is_connected() or now - session.state_loaded_at < MAX_AGE_WITHOUT_NATS_S

    async def load_state(self, session: LegacySession) -> None:
        await self._refresh([session])

    async def save_state(
        self,
        session: LegacySession,
        *,
        log_level: str | None = None,
        add_uri: str = "",
        remove_uri: str = "",
        ended: bool = False,
    ) -> None:
        digest = _session_digest(session.id)

        def merge(stored: SessionState) -> SessionState:
            uris = [uri for uri in stored.uris if uri not in (add_uri, remove_uri)]
            if add_uri and len(uris) < MAX_TOPICS:
                uris.append(add_uri)
            return SessionState(
                log_level if log_level is not None else stored.level, tuple(uris), stored.ended or ended
            )

        local_state = merge(SessionState(session.log_level, session.subscribed_uris, session.ended))
        try:
            stored = await self._run_query(self._store.update(self._tenant, digest, merge, SESSION_LIFETIME_S))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            log.warning("session state not saved, known to this node only: %s", type(exc).__name__)
            await self._apply_state(session, local_state)
        else:
            await self._apply_state(session, stored)  # includes changes made at other nodes
            self._change_feed.publish(SESSION_MESSAGE_KIND, {"session": digest})

    async def _refresh(self, sessions: list[LegacySession]) -> None:
        """Read the stored state of these sessions from the database and apply it.

        If the database is unavailable, the sessions continue with the known state.
        """
        started_at = self._now()
        digests = [_session_digest(session.id) for session in sessions]
        try:
            found = await self._run_query(self._store.load_many(self._tenant, digests))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            log.warning("session state not readable: %s", type(exc).__name__)
            self._database_retry_at = self._now() + DATABASE_RETRY_DELAY_S
            return
        for digest, session in zip(digests, sessions, strict=True):
            session.state_loaded_at = max(started_at, session.state_loaded_at)
            if digest in found:
                await self._apply_state(session, found[digest])

    async def _apply_state(self, session: LegacySession, state: SessionState) -> None:
        """Apply stored state to a session of this node: log level, subscribed URIs, end."""
        session.log_level, session.subscribed_uris = state.level, state.uris
        if state.ended:
            session.ended = True
            self._legacy_sessions.end_session(session.id)
        else:
            await self._legacy_sessions.sync_subscriptions(session)

    # -- dashboard sessions that ended --------------------------------------------------------------------------------
    # A session of an API key works on every node, so its logout must be known on every node.

    def share_browser_logout(self, digest: str) -> None:
        """Store that a dashboard session ended, and publish it to the other nodes."""
        self._start(self._save_browser_logout(digest))

    async def _save_browser_logout(self, digest: str) -> None:
        row = f"{_BROWSER_PREFIX}{digest}"
        ended = SessionState(ended=True)
        try:
            await self._run_query(self._store.update(self._tenant, row, lambda _: ended, BROWSER_SESSION_LIFETIME_S))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            log.warning("logout from the dashboard not stored, known to running nodes only: %s", type(exc).__name__)
        self._change_feed.publish(SESSION_MESSAGE_KIND, {"browser": digest})

    async def _load_browser_logouts(self) -> None:
        try:
            found = await self._run_query(self._store.list_ids(self._tenant, _BROWSER_PREFIX))
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            log.warning("logouts from the dashboard not readable: %s", type(exc).__name__)
            return
        for row in found:
            self._remember_browser_logout(row.removeprefix(_BROWSER_PREFIX))

    def _remember_browser_logout(self, digest: str) -> None:
        if digest not in self._ended_sessions:
            self._ended_sessions.add(digest, time.time() + BROWSER_SESSION_LIFETIME_S, save=False)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._logout_tasks.add(task)
        task.add_done_callback(self._logout_tasks.discard)

    # -- messages -----------------------------------------------------------------------------------------------------

    def on_stream_opened(self, session: LegacySession) -> None:
        self._change_feed.publish(
            SESSION_MESSAGE_KIND, {"session": _session_digest(session.id), "stream": self.node_tag}
        )

    def _on_message(self, message: Json) -> None:
        if "browser" in message:
            self._remember_browser_logout(str(message["browser"])[:64])
            return
        session = self._live.get(str(message.get("session")))
        if session is None:
            return
        if "cancel" in message:
            self._legacy_sessions.handle_message(session, _cancelled_notification(message["cancel"]))
        elif "stream" in message:
            if session.stream is not None and message["stream"] != self.node_tag:
                session.stream.close()  # the client has reconnected at another node
        else:
            self._refresh_soon(str(message["session"]))

    def on_gap(self) -> None:
        """Read session state again after other nodes' messages may have been missed.

        Sessions with an open stream are refreshed now, the rest at their next request.
        """
        self._gap_at = self._now()
        self._start(self._load_browser_logouts())
        for digest, session in list(self._live.items()):
            if session.stream is not None:
                self._refresh_soon(digest)

    def _refresh_soon(self, digest: str) -> None:
        self._stale.add(digest)
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.get_running_loop().create_task(self._run_refresh())

    async def _run_refresh(self) -> None:
        while self._stale:
            batch = [self._stale.pop() for _ in range(min(REFRESH_BATCH, len(self._stale)))]
            found = [session for digest in batch if (session := self._live.get(digest)) is not None]
            if found:
                await self._refresh(found)

    # -- state of another node ----------------------------------------------------------------------------------------

    async def forward(self, session: LegacySession, message: Message) -> None:
        if message.method == CANCELLED:
            id_ = cancelled_request_id(message)
            if id_ is not None:
                self._change_feed.publish(SESSION_MESSAGE_KIND, {"session": _session_digest(session.id), "cancel": id_})
            return
        match = _SERVER_REQUEST_ID.fullmatch(message.id) if isinstance(message.id, str) else None
        if match is not None and match[1] != self.node_tag:
            await forward_response(self._node_requests, match[1], session, message)

    async def resume_stream(self, session: LegacySession, last_event_id: str, stream: EventStream) -> bool:
        tag, dot, _ = last_event_id.partition(".")
        return (
            bool(dot)
            and tag != self.node_tag
            and await forward_resume(self._node_requests, tag, session, last_event_id, stream)
        )

    async def forward_sse_message(self, node_tag: str, id_: str, principal_id: str, message: Message) -> int:
        return await forward_post(self._node_requests, node_tag, id_, principal_id, message)

    async def handle_node_request(self, principal: str, params: Json, notify: Notify) -> Json:
        """Handle a request that another node forwarded because the client's session is here."""
        return await execute_node_request(self._legacy_sessions, self._legacy_sse, principal, params, notify)


def _session_digest(id_: str) -> str:
    """Return a digest of a session id, which names the session in messages and in the database.

    The id itself is a secret of its client.
    """
    return hashlib.sha256(id_.encode()).hexdigest()[:40]


def _cancelled_notification(id_: Any) -> Message:
    return Message("notification", None, CANCELLED, cancellation_params(id_))
