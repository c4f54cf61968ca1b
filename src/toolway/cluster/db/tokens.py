"""OAuth logins at upstream servers, encrypted and shared by all nodes, with a refresh lock.

The revision of each login is cached in memory (`load_revisions`), so transports detect changes without waiting.

A token is refreshed once for all nodes that need it. An issuer that rotates refresh tokens accepts each of them once
and treats a second use as theft. So one node at a time may refresh, under a reservation that is longer than a refresh
can take. The next node first checks whether the token is already refreshed. If a node dies during a refresh, the
others wait until its reservation expires. A node that was suspended sees by its clock that its reservation has
expired, and sends nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from toolway._os import boot_time
from toolway.auth.token_slot import REFRESH_TIMEOUT_S, Clock, TokenSlot, request_refresh, token_store_error
from toolway.auth.token_store import (
    Credential,
    CredentialsByIssuer,
    TokenKey,
    credential_from_dict,
    credential_to_dict,
    put_credential,
    remove_credential,
    replace_credential,
)
from toolway.cluster.db.changes import record_change
from toolway.cluster.db.engine import db_now, insert_if_absent, with_snapshot
from toolway.cluster.db.integrity import NO_EXPIRY_S, Integrity, StateRefused, TenantState
from toolway.cluster.db.tables import CredentialRow
from toolway.cluster.node_auth import CallTokenSealer
from toolway.errors import ConfigError
from toolway.network import NetworkPolicy
from toolway.types import AuthError

LOGINS_CHANGE: Final = "logins"
CLOSE_TIMEOUT_S: Final = REFRESH_TIMEOUT_S + 5.0  # seconds on close for refreshes in progress
DATABASE_MARGIN_S: Final = 2.0  # seconds that the database may take to respond
REFRESH_RESERVATION_S: Final = REFRESH_TIMEOUT_S + 2 * DATABASE_MARGIN_S  # seconds for which one node alone may refresh
OBTAIN_RESERVATION_S: Final = 2 * REFRESH_TIMEOUT_S + 2 * DATABASE_MARGIN_S  # to obtain a token without a user
RESERVE_INTERVALS_S: Final = (0.05, 0.1, 0.2, 0.5)  # seconds between two attempts to reserve; the last value repeats
_NONCE_BYTES: Final = 12


class DbTokenStore:
    """`TokenStore` of OAuth tokens in the cluster database, with one token slot per login.

    A login is one principal at one upstream server. Its encrypted tokens are bound to the revision of its row, so
    earlier ones cannot be put back. Methods raise `DecryptionError`, `StateRefused` and SQLAlchemy errors.
    """

    def __init__(self, engine: AsyncEngine, sealer: CallTokenSealer, tenant: str, integrity: Integrity) -> None:
        self._engine = engine
        self._snapshot_engine = with_snapshot(engine)
        self._envelopes = EnvelopeCipher(sealer)
        self._tenant = tenant
        self._integrity = integrity
        self._revisions: dict[str, int] | None = None  # last revision of each login; None before the first load
        self._loaded: dict[str, int] = {}  # revisions of all logins that were last checked against the state
        self._loaded_sum = 0  # sum of their marks
        self._refreshes: set[asyncio.Task[Credential]] = set()

    # -- TokenStore ---------------------------------------------------------------------------------------------------

    async def get(self, key: TokenKey) -> Credential | None:
        return (await self.read(key.upstream, key.principal)).get(key.issuer)

    async def put(self, key: TokenKey, credential: Credential) -> None:
        await self.update(key.upstream, key.principal, lambda stored: put_credential(stored, key.issuer, credential))

    async def remove(self, key: TokenKey) -> None:
        await self.update(key.upstream, key.principal, lambda stored: remove_credential(stored, key.issuer))

    async def issuers(self, upstream: str, principal: str) -> list[str]:
        return list(reversed(await self.read(upstream, principal)))

    def token_slot(self, upstream: str, principal: str, now: Clock = time.time) -> TokenSlot:
        return DbTokenSlot(self, upstream, principal, now)

    # -- for nodes that share the store -------------------------------------------------------------------------------

    def run_detached(self, refresh: Coroutine[Any, Any, Credential]) -> asyncio.Task[Credential]:
        """Run a token refresh in its own task, so cancelling the waiter does not cancel it."""
        task = asyncio.create_task(refresh)
        self._refreshes.add(task)
        task.add_done_callback(self._refreshes.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiter handles the error
        return task

    async def close(self) -> None:
        """Wait at most `CLOSE_TIMEOUT_S` for running token refreshes, so new tokens are stored.

        Call before the engine closes.
        """
        if self._refreshes:
            await asyncio.wait(self._refreshes, timeout=CLOSE_TIMEOUT_S)

    async def load_revisions(self) -> None:
        """Load the revisions of changed logins: on startup, and when a node announces a change.

        If they do not match the tenant's state, all revisions are loaded and checked.
        """
        known, known_sum = self._loaded, self._loaded_sum
        state, changed = await self._fetch_revisions(max(known.values(), default=0))
        total = known_sum + sum(self._mark(id, new) - self._mark(id, known.get(id, 0)) for id, new in changed.items())
        if not self._integrity.adds_up(state, "logins", [total]):
            known = {}
            state, changed = await self._fetch_revisions(0)
            total = sum(self._mark(id, revision) for id, revision in changed.items())
            self._integrity.check(state, self._tenant, "logins", [total])
        self._loaded, self._loaded_sum = known | changed, total
        own = self._revisions or {}
        self._revisions = own | {id: max(revision, own.get(id, 0)) for id, revision in changed.items()}

    async def _fetch_revisions(self, after: int) -> tuple[TenantState, dict[str, int]]:
        query = select(CredentialRow.id, CredentialRow.revision).where(
            CredentialRow.tenant == self._tenant, CredentialRow.revision > after
        )
        newest = self._integrity.newest(self._tenant)
        async with self._snapshot_engine.connect() as db:
            state = await self._integrity.read_state(db, self._tenant, newest)
            return state, {row.id: row.revision for row in await db.execute(query)}

    def _mark(self, id: str, revision: int) -> int:
        return self._integrity.mark("logins", self._tenant, id, revision) if revision else 0

    def known_revision(self, upstream: str, principal: str) -> int | None:
        """Return a login's last known revision, without I/O, or None if it was never stored."""
        return self._revisions.get(_login_id(upstream, principal)) if self._revisions is not None else 0

    async def read(self, upstream: str, principal: str) -> CredentialsByIssuer:
        """Return a login's OAuth credentials by issuer, in the order they were stored."""
        known = self.known_revision(upstream, principal)
        async with self._engine.connect() as db:
            row = (await db.execute(select(CredentialRow).where(self._where_login(upstream, principal)))).one_or_none()
        self._check_newest(upstream, principal, known, row.revision if row is not None else 0)
        if row is None:
            return {}
        credentials = self._decrypt(row.sealed, upstream, principal, row.revision)
        self._set_known_revision(upstream, principal, row.revision)
        return credentials

    async def update(
        self, upstream: str, principal: str, modify: Callable[[CredentialsByIssuer], CredentialsByIssuer]
    ) -> None:
        """Read, modify and write the credentials of a login under a row lock.

        Credentials that cannot be decrypted are treated as missing and overwritten.
        """
        known = self.known_revision(upstream, principal)
        async with self._engine.begin() as db:
            encrypted, replaced = await self._lock_row(db, upstream, principal)
            self._check_newest(upstream, principal, known, replaced)
            try:
                before = self._decrypt(encrypted, upstream, principal, replaced)
            except DecryptionError:
                before = {}
            after = modify(before)
            if after == before and (before or not encrypted):
                return
            state = await self._integrity.lock_state(db, self._tenant)
            revision = await record_change(db, LOGINS_CHANGE, self._tenant)
            values = {"sealed": self._encrypt(after, upstream, principal, revision), "revision": revision}
            await db.execute(update(CredentialRow).where(self._where_login(upstream, principal)).values(values))
            id = _login_id(upstream, principal)
            difference = self._mark(id, revision) - self._mark(id, replaced)
            await self._integrity.write_state(db, self._tenant, state.changed({"logins": difference}))
        self._set_known_revision(upstream, principal, revision)

    # -- exclusive refresh --------------------------------------------------------------------------------------------

    async def reserve_refresh(self, upstream: str, principal: str, seconds: float) -> str | None:
        """Reserve the right to refresh a login's token for `seconds`; return the reservation id.

        Return None if another node holds the reservation.
        """
        reservation = secrets.token_hex(8)
        async with self._engine.begin() as db:
            await self._lock_row(db, upstream, principal)
            is_free = and_(self._where_login(upstream, principal), CredentialRow.renewer_until < db_now())
            reserved = {"renewer": reservation, "renewer_until": db_now() + seconds}
            result = await db.execute(update(CredentialRow).where(is_free).values(reserved))
            return reservation if result.rowcount else None

    async def release_refresh(self, upstream: str, principal: str, reservation: str) -> None:
        async with self._engine.begin() as db:
            is_ours = and_(self._where_login(upstream, principal), CredentialRow.renewer == reservation)
            await db.execute(update(CredentialRow).where(is_ours).values(renewer_until=0.0))

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _lock_row(self, db: AsyncConnection, upstream: str, principal: str) -> tuple[str, int]:
        """Lock the row of a login until the transaction ends. Return its encrypted credentials and revision."""
        row = {"tenant": self._tenant, "id": _login_id(upstream, principal)}
        await insert_if_absent(
            db, CredentialRow, {**row, "sealed": "", "revision": 0, "renewer": "", "renewer_until": 0.0}
        )
        where = self._where_login(upstream, principal)
        query = select(CredentialRow.sealed, CredentialRow.revision).where(where).with_for_update()
        found = (await db.execute(query)).one()
        return found.sealed, found.revision

    def _where_login(self, upstream: str, principal: str) -> ColumnElement[bool]:
        return and_(CredentialRow.tenant == self._tenant, CredentialRow.id == _login_id(upstream, principal))

    def _check_newest(self, upstream: str, principal: str, known: int | None, revision: int) -> None:
        """Raise `StateRefused` if a login's row is older than what this node knew before the query."""
        if revision < (known or 0):
            detail = f"revision {known} of a login was seen before, and the database has {revision}"
            self._integrity.report("credentials", {_login_id(upstream, principal): detail})
            raise StateRefused(self._tenant, "logins", detail)

    def _set_known_revision(self, upstream: str, principal: str, revision: int) -> None:
        if self._revisions is not None and revision:
            id = _login_id(upstream, principal)
            self._revisions[id] = max(revision, self._revisions.get(id, 0))

    def _encrypt(self, credentials: CredentialsByIssuer, upstream: str, principal: str, revision: int) -> str:
        if not credentials:
            return ""
        packed_credentials = [[issuer, credential_to_dict(credential)] for issuer, credential in credentials.items()]
        binding = login_binding(self._tenant, _login_id(upstream, principal), revision)
        return self._envelopes.encrypt(packed_credentials, *binding)

    def _decrypt(self, encrypted: str, upstream: str, principal: str, revision: int) -> CredentialsByIssuer:
        binding = login_binding(self._tenant, _login_id(upstream, principal), revision)
        packed_credentials: list[tuple[str, dict[str, Any]]] = (
            self._envelopes.decrypt(encrypted, *binding) if encrypted else []
        )
        return {issuer: credential_from_dict(each) for issuer, each in packed_credentials}


def login_binding(tenant: str, id: str, revision: int) -> tuple[str, ...]:
    """Return what a login's encrypted tokens are bound to: tenant, login and revision.

    They can only be decrypted with the same values.
    """
    return ("login", tenant, id, str(revision))


def _login_id(upstream: str, principal: str) -> str:
    return hashlib.sha256(json.dumps([upstream, principal]).encode()).hexdigest()[:40]


class DbTokenSlot(TokenSlot):
    """OAuth credentials of one login in the database; refreshes them on one node at a time.

    `clock` must keep running while the machine or process is suspended.
    """

    def __init__(
        self,
        store: DbTokenStore,
        upstream: str,
        principal: str,
        now: Clock = time.time,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        super().__init__(store, upstream, principal, now)
        self._db_store = store
        self._clock = clock
        self._seen_revision: int | None = None

    @property
    def may_have_token(self) -> bool:
        return self._db_store.known_revision(self._upstream, self._principal) is not None

    def has_changed(self) -> bool:
        return self._db_store.known_revision(self._upstream, self._principal) != self._seen_revision

    async def load(self) -> Credential | None:
        found = await super().load()
        self._seen_revision = self._db_store.known_revision(self._upstream, self._principal)
        return found

    async def save(self, credential: Credential) -> None:
        await super().save(credential)
        self._seen_revision = self._db_store.known_revision(self._upstream, self._principal)

    async def refresh(self, current: Credential, network_policy: NetworkPolicy) -> Credential:
        """Refresh the token in its own task, so it is stored even if the caller is cancelled."""
        return await asyncio.shield(self._db_store.run_detached(self._refresh_reserved(current, network_policy)))

    async def _refresh_reserved(self, current: Credential, network_policy: NetworkPolicy) -> Credential:
        async with self._hold_reservation(REFRESH_RESERVATION_S) as until:
            found, is_done = await self._reload_locked(current)
            if is_done:
                return found
            await self._refresh_and_store(found, network_policy, until)
        return await self.load() or found

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._hold_reservation(OBTAIN_RESERVATION_S):
            yield

    # -- reserved refresh ---------------------------------------------------------------------------------------------

    async def _refresh_and_store(self, current: Credential, network_policy: NetworkPolicy, until: float) -> None:
        """Refresh the token at its issuer and store the new one.

        Raises `AuthError` if the issuer rejects it, or if the reservation `until` is too close to its end.
        """
        if self._clock() > until - REFRESH_TIMEOUT_S - DATABASE_MARGIN_S:
            raise AuthError("node was suspended during the token refresh", code="E-AUTH-SERVER", hint="try again")
        try:
            new = await request_refresh(current, network_policy, self._now)
        except AuthError as exc:
            if exc.code == "E-AUTH-LOGIN":
                await self._store_refreshed(
                    current, replace(current, refresh=None)
                )  # spares other nodes the same request
            raise
        await self._store_refreshed(current, new)

    async def _store_refreshed(self, current: Credential, new: Credential) -> None:
        replace_current = partial(replace_credential, current, new)
        for pause in (0.1, 0.5, 1.0, None):  # this is the only copy
            try:
                return await self._db_store.update(self._upstream, self._principal, replace_current)
            except Exception as exc:
                if pause is None:
                    raise token_store_error(exc) from exc
                await asyncio.sleep(pause)
        return None

    @asynccontextmanager
    async def _hold_reservation(self, seconds: float) -> AsyncIterator[float]:
        """Hold the exclusive right to refresh the token while the context is open.

        Yields when the reservation ends, by our clock. Raises `AuthError` if it cannot be obtained.
        """
        reservation, until = await self._wait_for_reservation(seconds)
        try:
            yield until
        finally:
            with suppress(Exception):  # then the reservation expires
                await self._db_store.release_refresh(self._upstream, self._principal, reservation)

    async def _wait_for_reservation(self, seconds: float) -> tuple[str, float]:
        give_up_at = self._clock() + seconds + DATABASE_MARGIN_S  # longer than any reservation lasts
        attempts = 0
        while True:
            started_at = self._clock()
            try:
                reservation = await self._db_store.reserve_refresh(self._upstream, self._principal, seconds)
            except Exception as exc:
                raise token_store_error(exc) from exc
            if reservation is not None:
                return reservation, started_at + seconds
            if started_at > give_up_at:
                reason = f"other nodes have been refreshing the token for {seconds:.0f} s"
                raise AuthError(reason, code="E-AUTH-SERVER", hint="try again")
            await asyncio.sleep(RESERVE_INTERVALS_S[min(attempts, len(RESERVE_INTERVALS_S) - 1)])
            attempts += 1


# -- envelope encryption ----------------------------------------------------------------------------------------------


class EnvelopeCipher:
    """Encrypts each value with its own data key, which is encrypted with the cluster key.

    A value is bound to its row: copied into another row, it cannot be decrypted.
    """

    def __init__(self, sealer: CallTokenSealer) -> None:
        self._sealer = sealer

    def encrypt(self, value: Any, *binding: str) -> str:
        key, nonce = os.urandom(32), os.urandom(_NONCE_BYTES)
        body = nonce + AESGCM(key).encrypt(nonce, msgspec.json.encode(value), None)
        return f"{self._sealer.seal(_binding_text(binding), key.hex(), NO_EXPIRY_S)}.{base64.b64encode(body).decode()}"

    def decrypt(self, text: str, *binding: str) -> Any:
        """Decrypt a stored value that was encrypted with the same `binding` (names of its row).

        Raises `DecryptionError` if the key or the row is another one, or the value is damaged.
        """
        sealed_key, _, body = text.partition(".")
        key = self._sealer.open(_binding_text(binding), sealed_key)
        if not isinstance(key, str):
            raise DecryptionError(binding, "it was encrypted with another key or for another row")
        try:
            data = base64.b64decode(body, validate=True)
            return msgspec.json.decode(
                AESGCM(bytes.fromhex(key)).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)
            )
        except (InvalidTag, ValueError, binascii.Error):
            raise DecryptionError(binding, "it is damaged") from None


def _binding_text(binding: tuple[str, ...]) -> str:
    return json.dumps(["record", *binding])


class DecryptionError(ConfigError):
    """Raised when a stored value has another key, belongs to another row, or is damaged."""

    def __init__(self, binding: tuple[str, ...], detail: str) -> None:
        super().__init__(
            f"cluster database entry cannot be decrypted: {' '.join(binding)}",
            detail=detail,
            hint="start this node with the other nodes' cluster key: --cluster-key-file",
            code="E-CLUSTER-KEY",
        )
