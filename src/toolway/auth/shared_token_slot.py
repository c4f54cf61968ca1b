"""Token slot (a server and principal's stored credential) on disk, which one process at a time refreshes.

An issuer that rotates refresh tokens accepts each token once. It takes a second use for theft, and ends every login
in that token family. So only one process at a time may refresh, and the next one first checks whether that has been
done. Between the issuer's response and the write to disk, the only copy of the new token is in memory. So the refresh
runs in a separate process that holds the lock (`refresh_process.py`) and finishes even if its parent is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolway._async import run_in_daemon_thread
from toolway._os import O_PRIVATE, start_detached, try_lock_handle
from toolway.auth.encrypted_token_store import EncryptedTokenStore, TokenFileUnreadable
from toolway.auth.token_slot import REFRESH_TIMEOUT_S, Clock, TokenSlot, request_refresh, token_store_error
from toolway.auth.token_store import Credential, credential_to_dict, replace_credential
from toolway.network import NetworkPolicy
from toolway.types import AuthError

LOCK_TIMEOUT_S: Final = 2 * REFRESH_TIMEOUT_S  # seconds to wait for another process that refreshes
REFRESH_PROCESS_TIMEOUT_S: Final = REFRESH_TIMEOUT_S + 10.0  # includes its start on a busy machine
REFRESH_PROCESS: Final = Path(__file__).with_name("refresh_process.py")
CHANGE_CHECK_INTERVAL_S: Final = 1.0  # seconds between two checks for a change by another process


class SharedTokenSlot(TokenSlot):
    """A server and principal's credential in the encrypted store, which other processes may change too.

    A file lock lets only one process at a time refresh the token.
    """

    def __init__(self, store: EncryptedTokenStore, upstream: str, principal: str, now: Clock = time.time) -> None:
        super().__init__(store, upstream, principal, now)
        self._encrypted_store = store
        self._seen_version: tuple[int, int] | None = None
        self._checked_at = 0.0

    @property
    def may_have_token(self) -> bool:
        return self._encrypted_store.version(self._upstream, self._principal) is not None

    def has_changed(self) -> bool:
        now = time.monotonic()
        if now - self._checked_at < CHANGE_CHECK_INTERVAL_S:
            return False
        self._checked_at = now
        return self._encrypted_store.version(self._upstream, self._principal) != self._seen_version

    async def load(self) -> Credential | None:
        self._checked_at = time.monotonic()
        self._seen_version = self._encrypted_store.version(self._upstream, self._principal)
        return await super().load()

    async def save(self, credential: Credential) -> None:
        await super().save(credential)
        self._seen_version = self._encrypted_store.version(self._upstream, self._principal)

    async def refresh(self, current: Credential, network_policy: NetworkPolicy) -> Credential:
        async with self._refresh_lock() as lock:
            found, already_refreshed = await self._reload_locked(current)
            if already_refreshed:
                return found
            await self._refresh_and_store(found, lock, network_policy)
        return await self.load() or found

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._refresh_lock():
            yield

    @asynccontextmanager
    async def _refresh_lock(self) -> AsyncIterator[int]:
        lock = await self._acquire_lock()
        try:
            yield lock
        finally:
            os.close(lock)

    async def _acquire_lock(self) -> int:
        file = self._encrypted_store.file_path(self._upstream, self._principal).with_suffix(".renewing")
        try:
            return await acquire_file_lock(LOCK_TIMEOUT_S, file)
        except TimeoutError:
            reason = f"another process has been refreshing the token for {LOCK_TIMEOUT_S:.0f} s"
            raise AuthError(reason, code="E-AUTH-SERVER", hint="try again") from None
        except OSError as exc:
            raise token_store_error(exc) from exc

    async def _refresh_and_store(self, current: Credential, lock: int, network_policy: NetworkPolicy) -> None:
        """Refresh `current` and store the new credential, in a separate process if possible.

        Raises `AuthError` if the issuer does not refresh it, or if the token store fails.
        """
        try:
            key = await asyncio.to_thread(self._encrypted_store.load_key)
        except Exception as exc:
            raise token_store_error(exc) from exc
        order = {
            "path": _import_path(),
            "folder": str(self._encrypted_store.folder),
            "upstream": self._upstream,
            "principal": self._principal,
            "key": key.hex(),
            "issuer": current.issuer,
            "held": credential_to_dict(current),
            "allow": network_policy.allow,
            "written": network_policy.entry_hosts,
        }
        result: dict[str, Any] = {"unable": True}
        if network_policy.lookup is None and sys.executable:  # a custom DNS lookup exists only in this process
            with suppress(OSError):
                result = await _refresh_in_subprocess(json.dumps(order).encode(), lock)
        if result.get("unable"):  # no process can be started: then refresh in this one
            await refresh_stored_token(
                self._encrypted_store, self._upstream, self._principal, current, network_policy, self._now
            )
            return
        if result != {}:
            raise AuthError(
                str(result.get("reason", "the refresh process ended without a result")),
                code=str(result.get("code", "E-AUTH-SERVER")),
                hint=str(result.get("fix", "try again")),
            )


async def _refresh_in_subprocess(order: bytes, lock: int) -> dict[str, Any]:
    """Run the refresh process and return its result: `{}`, or the error as a dict.

    The process finishes even if the caller is cancelled. Raises `OSError` if the process cannot be started.
    """
    process = await asyncio.to_thread(_start_refresh_process, lock)

    def wait() -> dict[str, Any]:
        try:
            out, _ = process.communicate(order, REFRESH_PROCESS_TIMEOUT_S)
            result = json.loads(out)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            result = None  # the process ends by its own alarm
        return result if isinstance(result, dict) else {"reason": "the refresh process ended without a result"}

    return await run_in_daemon_thread(wait)


def _import_path() -> list[str]:
    return [entry for entry in sys.path if entry]


def _start_refresh_process(lock: int) -> subprocess.Popen[bytes]:
    return start_detached([sys.executable, "-I", "-S", str(REFRESH_PROCESS)], lock)


# -- file lock --------------------------------------------------------------------------------------------------------

_LOCK_RETRY_DELAYS_S: Final = (0.005, 0.01, 0.02, 0.05)  # seconds between attempts; the last one repeats


async def acquire_file_lock(timeout: float, file: Path) -> int:
    """Lock `file` and return its open file descriptor; closing that releases the lock.

    The lock excludes all processes that share the file. It is a kernel lock (`flock`), so it is released when its
    holder is killed. It belongs to an open file, so a child can inherit it and keep it after the parent has ended.

    Raises `TimeoutError` if the lock is not free within `timeout` seconds, and `OSError` if the file cannot be
    opened.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | O_PRIVATE, 0o600)
    try:
        async with asyncio.timeout(timeout):
            attempts = 0
            while not try_lock_handle(handle):
                await asyncio.sleep(_LOCK_RETRY_DELAYS_S[min(attempts, len(_LOCK_RETRY_DELAYS_S) - 1)])
                attempts += 1
    except BaseException:
        os.close(handle)
        raise
    return handle


async def refresh_stored_token(
    store: EncryptedTokenStore,
    upstream: str,
    principal: str,
    old: Credential,
    network_policy: NetworkPolicy,
    now: Clock,
) -> None:
    """Refresh the credential `old` at its issuer and store the new one.

    Raises `AuthError` if the issuer does not refresh it, or if the store fails. A refresh token that the issuer no
    longer accepts is removed from the store.
    """

    def store_new(new: Credential) -> None:
        store.update(upstream, principal, partial(replace_credential, old, new))

    try:
        new = await request_refresh(old, network_policy, now)
    except AuthError as error:
        if error.code == "E-AUTH-LOGIN":
            store_new(replace(old, refresh=None))  # so no process sends the rejected refresh token again
        raise
    try:
        store_new(new)
    except (OSError, TokenFileUnreadable) as exc:
        raise token_store_error(exc) from exc
