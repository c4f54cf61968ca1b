"""What a shelf that processes share does when its errand cannot be run, and whom a renewal goes before."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.auth.oauth_lab import Issuer
from toolway.auth import shared_token_slot
from toolway.auth.encrypted_token_store import EncryptedTokenStore, default_token_store
from toolway.auth.shared_token_slot import SharedTokenSlot
from toolway.auth.token_store import Credential, OAuthClient, TokenKey
from toolway.network import NetworkPolicy
from toolway.types import AuthError

pytestmark = pytest.mark.anyio

UPSTREAM = "guarded https://guarded.example/mcp"
HERE = NetworkPolicy(("127.0.0.1",))


def _store() -> EncryptedTokenStore:
    store = default_token_store(os.environ)
    assert store is not None
    return store


@asynccontextmanager
async def _shelf() -> AsyncIterator[tuple[Issuer, SharedTokenSlot, Credential]]:
    async with Issuer() as issuer:
        issuer.clients["me"] = "secret"
        given = issuer.tokens("one", "me")
        held = Credential(
            issuer.issuer,
            f"{issuer.issuer}/token",
            OAuthClient("me", "secret", "client_secret_basic"),
            given["access_token"],
            given["refresh_token"],
            "one",
        )
        shelf = SharedTokenSlot(_store(), UPSTREAM, "")
        await shelf.save(held)
        yield issuer, shelf, held


@pytest.mark.parametrize("trouble", ["", "no program", "another program", "no code"])
async def test_refresh_works_with_and_without_subprocess(
    trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if trouble == "no program":
        monkeypatch.setattr(sys, "executable", "")
    elif trouble == "another program":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    elif trouble == "no code":  # found by something else than a path
        monkeypatch.setattr(shared_token_slot, "_import_path", lambda: [os.path.dirname(os.__file__)])
    async with _shelf() as (issuer, shelf, held):
        new = await shelf.refresh(held, HERE)
        assert new.access in issuer.valid and new.access != held.access
        assert await _store().get(TokenKey(issuer.issuer, UPSTREAM, "")) == new
        assert issuer.made["refresh_token"] == 1


async def test_cancelled_refresh_is_completed() -> None:
    async with _shelf() as (issuer, shelf, held):
        leaving = asyncio.create_task(shelf.refresh(held, HERE))
        while not issuer.made["refresh_token"]:
            await asyncio.sleep(0.01)
        leaving.cancel()
        new = await SharedTokenSlot(_store(), UPSTREAM, "").refresh(held, HERE)
        assert new.access in issuer.valid and issuer.made["refresh_token"] == 1


async def test_new_login_wins_over_running_refresh() -> None:
    async with _shelf() as (issuer, shelf, held):
        renewing = asyncio.create_task(shelf.refresh(held, HERE))
        while not issuer.made["refresh_token"]:
            await asyncio.sleep(0.01)
        login = replace(held, access="of the new login", refresh="its own")
        await _store().put(TokenKey(held.issuer, UPSTREAM, ""), login)
        await renewing
        assert await shelf.load() == login


async def test_waiting_for_a_held_lock_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_token_slot, "LOCK_TIMEOUT_S", 0.2)
    async with _shelf() as (issuer, shelf, held), SharedTokenSlot(_store(), UPSTREAM, "").exclusive():
        with pytest.raises(AuthError) as caught:
            await shelf.refresh(held, HERE)
        assert caught.value.code == "E-AUTH-SERVER" and not issuer.made


async def test_refresh_process_has_no_secret_in_args_or_env(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    start = shared_token_slot._start_refresh_process

    def watched(lock: int) -> object:
        process = start(lock)
        seen.extend(Path(f"/proc/{process.pid}/{what}").read_bytes() for what in ("cmdline", "environ"))
        return process

    monkeypatch.setattr(shared_token_slot, "_start_refresh_process", watched)
    async with _shelf() as (_, shelf, held):
        await shelf.refresh(held, HERE)
        key = _store().load_key().hex()
        assert seen and held.refresh is not None
        assert not [s for s in (held.access, held.refresh, key) for text in seen if s.encode() in text]
