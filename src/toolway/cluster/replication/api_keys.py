"""A tenant's API keys, replicated from the database to each node before a client uses one.

A revoked key is published to the other nodes at once, and each rejects it before its next poll. A node that misses the
message finds the revocation in the database a second later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from toolway.cluster.bootstrap import database_unavailable
from toolway.cluster.db.client_state import API_KEYS_CHANGE, ApiKeyTable
from toolway.cluster.replication.change_feed import ChangeFeed
from toolway.gateway.principals import ENDED_LOGINS_S, ApiKey, ApiKeyStore, generate_ended_login
from toolway.types import Json

#: Seconds for which a published revocation overrides a query that may have started before it.
REVOCATION_MEMORY_S: Final = 10.0
MAX_REMEMBERED_REVOCATIONS: Final = 10_000
MAX_FORGOTTEN: Final = 10  # ended logins of more than a month ago that are removed with each new one

log = logging.getLogger("toolway.cluster")


class DbApiKeyStore(ApiKeyStore):
    """Store of API keys in the cluster database, with a copy in memory that follows changes.

    `token` is the local admin token of this machine. Creating and revoking raise `ServerUnavailable` if the database
    does not respond.
    """

    def __init__(self, keys: ApiKeyTable, tenant: str, token: str, now: Callable[[], float]) -> None:
        super().__init__(token)
        self._stored_keys = keys
        self._tenant = tenant
        self._now = now
        self._revoked: dict[str, float] = {}  # ids of keys that were revoked recently, and when
        self._change_feed: ChangeFeed | None = None

    def register(self, feed: ChangeFeed) -> None:
        """Follow changes of API keys through the change feed. Call this before the feed starts."""
        self._change_feed = feed
        feed.on_change(API_KEYS_CHANGE, self._load, self._on_message)

    async def end_logins(self, user: str, now: float) -> None:
        await self.add_key(generate_ended_login(user, now))
        limit = now - ENDED_LOGINS_S
        old = [key.id for key in self._keys.values() if key.ended_user and key.created <= limit]
        for id in old[:MAX_FORGOTTEN]:
            await self.revoke_key(id)

    async def add_key(self, key: ApiKey) -> None:
        try:
            await self._stored_keys.add(self._tenant, key.id, key.to_json())
        except (SQLAlchemyError, OSError) as exc:
            raise database_unavailable(exc) from None
        self._replace_keys([*self._keys.values(), key])
        self._publish({})

    async def revoke_key(self, id: str) -> bool:
        try:
            revoked = await self._stored_keys.revoke(self._tenant, id)
        except (SQLAlchemyError, OSError) as exc:
            raise database_unavailable(exc) from None
        if revoked:
            self._remove(id)
            self._publish({"revoked": id})
        return revoked

    def reload(self) -> None:
        """Make the change feed poll the database soon, for a caller that needs current API keys."""
        if self._change_feed is not None:
            self._change_feed.resync()

    # -- changes of other nodes ---------------------------------------------------------------------------------------

    async def _load(self, since: int) -> None:
        found = await self._stored_keys.load_all(self._tenant)
        revoked = self._recently_revoked()
        keys = [key for stored in found.valid if (key := _parse_api_key(stored)) is not None and key.id not in revoked]
        if {key.hash: key for key in keys} != self._keys:
            self._replace_keys(keys)

    def _on_message(self, message: Json) -> None:
        id = message.get("revoked")
        if isinstance(id, str):
            self._remove(id)

    def _remove(self, id: str) -> None:
        if len(self._revoked) < MAX_REMEMBERED_REVOCATIONS:
            self._revoked[id] = self._now()
        if any(key.id == id for key in self._keys.values()):
            self._replace_keys([key for key in self._keys.values() if key.id != id])

    def _recently_revoked(self) -> frozenset[str]:
        """Return the ids of recently revoked API keys.

        The result of a query that began before a revocation must not restore the API key.
        """
        limit = self._now() - REVOCATION_MEMORY_S
        self._revoked = {id: at for id, at in self._revoked.items() if at > limit}
        return frozenset(self._revoked)

    def _publish(self, message: Json) -> None:
        if self._change_feed is not None:
            self._change_feed.publish(API_KEYS_CHANGE, message)


def _parse_api_key(stored: Json) -> ApiKey | None:
    """Parse a stored API key, or log it and return None if it is unreadable.

    A key with a limit of a newer version is not accepted (`ApiKey.is_valid`).
    """
    try:
        return ApiKey.from_json(stored, strict=False)
    except msgspec.ValidationError:
        log.error("API key in the database unreadable, ignored: %s", str(stored.get("id"))[:40])
        return None
