"""The store of tokens on disk: sealed, bound to its place, shared, and never asked for where no one has logged in."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolway.auth.encrypted_token_store import KEY_SECRET_NAME, EncryptedTokenStore, default_token_store
from toolway.auth.shared_token_slot import SharedTokenSlot
from toolway.auth.token_store import MAX_ISSUERS, Credential, OAuthClient, TokenKey
from toolway.secrets import open_store
from toolway.types import AuthError

pytestmark = pytest.mark.anyio

KEY = TokenKey("https://issuer.example", "github https://github.example/mcp", "")
HELD = Credential(
    issuer=KEY.issuer,
    token_url="https://issuer.example/token",
    client=OAuthClient("me", "canary-secret", "client_secret_basic", "http://127.0.0.1:33418/callback"),
    access="canary-access",
    refresh="canary-refresh",
    scope="read write",
    resource="https://github.example/mcp",
    renew_at=1000.0,
    expires_at=1060.0,
)


def _store() -> EncryptedTokenStore:
    store = default_token_store(os.environ)
    assert store is not None
    return store


async def test_stored_token_is_read_by_another_process() -> None:
    await _store().put(KEY, HELD)
    assert await _store().get(KEY) == HELD
    script = (
        "import asyncio, os\n"
        "from toolway.auth.encrypted_token_store import default_token_store\n"
        "from toolway.auth.token_store import TokenKey\n"
        f"print(asyncio.run(default_token_store(os.environ).get(TokenKey(*{tuple(KEY)!r}))).access)"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "canary-access\n", done.stderr


async def test_token_files_are_encrypted_and_private(tmp_path: Path) -> None:
    await _store().put(KEY, HELD)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.suffix == ".token" for file in files)
    for file in files:
        assert not re.search(rb"canary|issuer\.example|github", file.read_bytes()), file
        assert not file.stat().st_mode & 0o077, file


async def test_token_file_is_bound_to_server_and_principal(tmp_path: Path) -> None:
    """Whoever can write files cannot have the token of one server sent to another."""
    store = _store()
    await store.put(KEY, HELD)
    for upstream, principal in ((f"evil {'x' * 3}", ""), (KEY.upstream, "key:1234")):
        store.file_path(upstream, principal).write_bytes(store.file_path(KEY.upstream, "").read_bytes())
        with pytest.raises(AuthError) as caught:
            await SharedTokenSlot(store, upstream, principal).load()
        assert caught.value.code == "E-AUTH-STORE" and "canary" not in str(caught.value)


async def test_damaged_file_raises_and_new_login_replaces_it() -> None:
    store = _store()
    await store.put(KEY, HELD)
    file = store.file_path(KEY.upstream, "")
    for damage in (b"", b"{}", b"[1]", b"\xff", file.read_bytes()[:-9] + b'AAAAAAA"}'):
        file.write_bytes(damage)
        with pytest.raises(AuthError):
            await SharedTokenSlot(store, KEY.upstream, "").load()
    await store.put(KEY, HELD)
    assert await store.get(KEY) == HELD


async def test_lost_key_costs_only_the_logins() -> None:
    await _store().put(KEY, HELD)
    open_store(os.environ).delete(KEY_SECRET_NAME)
    with pytest.raises(AuthError):
        await SharedTokenSlot(_store(), KEY.upstream, "").load()
    store = _store()
    await store.put(KEY, HELD)
    assert await store.get(KEY) == HELD


async def test_changed_store_key_is_picked_up() -> None:
    old = _store()
    await old.put(KEY, HELD)
    open_store(os.environ).delete(KEY_SECRET_NAME)
    await _store().put(KEY, HELD)  # a new login in another process, with a new key
    assert await old.get(KEY) == HELD


async def test_issuers_are_newest_first_and_bounded() -> None:
    store = _store()
    for number in range(MAX_ISSUERS + 2):
        await store.put(KEY._replace(issuer=f"https://{number}.example"), HELD)
    issuers = await store.issuers(KEY.upstream, "")
    assert (issuers[0], len(issuers)) == (f"https://{MAX_ISSUERS + 1}.example", MAX_ISSUERS)
    for issuer in issuers:
        await store.remove(KEY._replace(issuer=issuer))
    assert store.version(KEY.upstream, "") is None


async def test_concurrent_writers_lose_nothing() -> None:
    stores = [_store() for _ in range(4)]
    await stores[0].put(KEY, HELD)
    keys = [KEY._replace(principal=f"key:{number}") for number in range(20)]
    await asyncio.gather(*(stores[number % 4].put(key, HELD) for number, key in enumerate(keys)))
    assert all([await _store().get(key) == HELD for key in keys])


def test_hub_without_login_needs_no_key_and_no_cryptography() -> None:
    script = (
        "import asyncio, os, sys\n"
        "from toolway.auth.encrypted_token_store import default_token_store\n"
        "from toolway.auth.shared_token_slot import SharedTokenSlot\n"
        "slot = SharedTokenSlot(default_token_store(os.environ), 'a b', '')\n"
        "assert asyncio.run(slot.load()) is None and not slot.may_have_token\n"
        "assert not [name for name in sys.modules if name.startswith(('cryptography', 'keyring', 'httpx2', 'mcp.'))]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (Path(os.environ["XDG_DATA_HOME"]) / "toolway").exists()


def test_no_home_means_no_store() -> None:
    assert default_token_store({}) is None
