"""The API keys of a tenant, at each of its gateways: those of the record, known here before anybody shows one.

A key that is revoked at one gateway is told to the others at once, and each stops taking it before it has looked. Who
hears no news finds it in the record, a second later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from toolway.cluster.record.api_keys import KIND, ApiKeys
from toolway.gateway.principals import ApiKey, KnownKeys, new_key
from toolway.gateway.rates import Rate
from toolway.gateway.replica.shared.news import Following
from toolway.gateway.replica.troubles import record_silent
from toolway.model import Json

HEARSAY: Final = 10.0  # seconds for which news of a revocation count, whatever a look finds that may have begun before
MOST_HEARD: Final = 10_000  # such news

log = logging.getLogger("toolway.cluster")


class ClusterKeyring(KnownKeys):
    """`token` is that of this machine. Raises `Unavailable` where the record does not answer."""

    def __init__(self, keys: ApiKeys, tenant: str, token: str, now: Callable[[], float]) -> None:
        super().__init__(token)
        self._record = keys
        self._tenant = tenant
        self._now = now
        self._heard: dict[str, float] = {}  # ids of keys that were revoked, as news said, and when
        self._following: Following | None = None

    def follow(self, following: Following) -> None:
        """Before it begins."""
        self._following = following
        following.on(KIND, self._take, self._hear)

    async def issue(
        self, name: str, scopes: Iterable[str] | None, admin: bool, now: float, rate: Rate | None = None
    ) -> tuple[str, ApiKey]:
        token, key = new_key(name, scopes, admin, now, rate)
        try:
            await self._record.add(self._tenant, key.id, msgspec.to_builtins(key))
        except (SQLAlchemyError, OSError) as exc:
            raise record_silent(exc) from None
        self._know([*self._keys.values(), key])
        self._say({})
        return token, key

    async def withdraw(self, id: str) -> bool:
        try:
            was = await self._record.revoke(self._tenant, id)
        except (SQLAlchemyError, OSError) as exc:
            raise record_silent(exc) from None
        if was:
            self._drop(id)
            self._say({"revoked": id})
        return was

    def reload(self) -> None:
        """Somebody wants to be sure."""
        if self._following is not None:
            self._following.gap()

    # -- what others changed ------------------------------------------------------------------------------------------

    async def _take(self, since: int) -> None:
        found = await self._record.all(self._tenant)
        dropped = self._dropped()
        keys = [key for facts in found.valid if (key := _key(facts)) is not None and key.id not in dropped]
        if {key.hash: key for key in keys} != self._keys:
            self._know(keys)

    def _hear(self, news: Json) -> None:
        id = news.get("revoked")
        if isinstance(id, str):
            self._drop(id)

    def _drop(self, id: str) -> None:
        if len(self._heard) < MOST_HEARD:
            self._heard[id] = self._now()
        if any(key.id == id for key in self._keys.values()):
            self._know([key for key in self._keys.values() if key.id != id])

    def _dropped(self) -> frozenset[str]:
        """A look that began before a key was revoked must not bring it back."""
        limit = self._now() - HEARSAY
        self._heard = {id: at for id, at in self._heard.items() if at > limit}
        return frozenset(self._heard)

    def _say(self, news: Json) -> None:
        if self._following is not None:
            self._following.say(KIND, news)


def _key(facts: Json) -> ApiKey | None:
    """One that a newer version made may say more than we know; one that we cannot read opens nothing."""
    try:
        return msgspec.convert(facts, ApiKey, strict=False)
    except msgspec.ValidationError:
        log.error("an API key of the record cannot be read, and is not taken: %s", str(facts.get("id"))[:40])
        return None
