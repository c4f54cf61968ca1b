"""A shelf of the store on disk: whoever needs another token, in whatever process, has it renewed once for all.

An issuer that rotates refresh tokens takes each of them once, and a second use for theft: then every login of that
family has ended. So one process at a time may renew, and whoever comes after it looks first whether it is done. And
between the moment in which the issuer answers and the one in which the answer is on disk, the only copy of the new
token is in memory. So renewing is an errand (`errand.py`), a process of its own that has the lock: it comes to its end
though whoever sent it was killed.
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
from pathlib import Path
from typing import Any, Final

from toolway.addresses import Addresses
from toolway.addresses.aside import in_thread
from toolway.model import NotAuthorized
from toolway.security.errand import UNABLE
from toolway.security.locks import held_within
from toolway.security.on_disk import renew_on_disk
from toolway.security.sealed_tokens import SealedTokens
from toolway.security.shelf import RENEW_LIMIT, Now, Shelf, store_failed
from toolway.security.tokens import Credential, packed

LOCK_LIMIT: Final = 2 * RENEW_LIMIT  # seconds to wait for whoever renews
ERRAND_LIMIT: Final = RENEW_LIMIT + 10.0  # seconds of an errand, its start on a busy machine included
ERRAND: Final = Path(__file__).with_name("errand.py")
LOOK: Final = 1.0  # seconds between two looks at whether another process has changed it


class SharedShelf(Shelf):
    def __init__(self, store: SealedTokens, upstream: str, principal: str, now: Now = time.time) -> None:
        super().__init__(store, upstream, principal, now)
        self._sealed = store
        self._seen: tuple[int, int] | None = None
        self._looked = 0.0

    @property
    def may_hold(self) -> bool:
        return self._sealed.stamp(self._upstream, self._principal) is not None

    def changed(self) -> bool:
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        return self._sealed.stamp(self._upstream, self._principal) != self._seen

    async def load(self) -> Credential | None:
        self._looked = time.monotonic()
        self._seen = self._sealed.stamp(self._upstream, self._principal)
        return await super().load()

    async def keep(self, credential: Credential) -> None:
        await super().keep(credential)
        self._seen = self._sealed.stamp(self._upstream, self._principal)

    async def renew(self, held: Credential, reach: Addresses) -> Credential:
        async with self._locked() as lock:
            found, is_done = await self._look_again(held)
            if is_done:
                return found
            await self._send(found, lock, reach)
        return await self.load() or found

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._locked():
            yield

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[int]:
        lock = await self._lock()
        try:
            yield lock
        finally:
            os.close(lock)

    async def _lock(self) -> int:
        file = self._sealed.file(self._upstream, self._principal).with_suffix(".renewing")
        try:
            return await held_within(LOCK_LIMIT, file)
        except TimeoutError:
            reason = f"another process has been renewing the token for {LOCK_LIMIT:.0f} s"
            raise NotAuthorized(reason, code="E-AUTH-SERVER", fix="try again") from None
        except OSError as exc:
            raise store_failed(exc) from exc

    async def _send(self, held: Credential, lock: int, reach: Addresses) -> None:
        """Have `held` renewed, and what comes of it kept. Raises `NotAuthorized`."""
        try:
            key = await asyncio.to_thread(self._sealed.key)
        except Exception as exc:
            raise store_failed(exc) from exc
        order = {
            "path": _path(),
            "folder": str(self._sealed.folder),
            "upstream": self._upstream,
            "principal": self._principal,
            "key": key.hex(),
            "issuer": held.issuer,
            "held": packed(held),
            "allow": reach.allow,
            "written": reach.written,
        }
        answer: dict[str, Any] = UNABLE
        if reach.lookup is None and sys.executable:  # else names are looked up by somebody in this process
            with suppress(OSError):
                answer = await _errand(json.dumps(order).encode(), lock)
        if answer == UNABLE:  # no process can be had: better renewed by us than not at all
            await renew_on_disk(self._sealed, self._upstream, self._principal, held, reach, self._now)
            return
        if answer != {}:
            raise NotAuthorized(
                str(answer.get("reason", "the renewal ended without saying how")),
                code=str(answer.get("code", "E-AUTH-SERVER")),
                fix=str(answer.get("fix", "try again")),
            )


async def _errand(order: bytes, lock: int) -> dict[str, Any]:
    """What it says at its end: nothing, or why not. Whoever waits may leave; the errand goes on. Raises `OSError`."""
    process = await asyncio.to_thread(_started, lock)

    def wait() -> dict[str, Any]:
        try:
            out, _ = process.communicate(order, ERRAND_LIMIT)
            said = json.loads(out)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            said = None  # it ends by itself
        return said if isinstance(said, dict) else {"reason": "the renewal ended without saying how"}

    return await in_thread(wait)


def _path() -> list[str]:
    return [entry for entry in sys.path if entry]


def _started(lock: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(ERRAND)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,  # a signal to our group is not meant for it
    )
