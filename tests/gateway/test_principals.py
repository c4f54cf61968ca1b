"""Who may enter: keys that are never kept, and take effect at once."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from pathlib import Path

import pytest

from toolway.errors import ConfigError
from toolway.gateway.principals import LOCAL_ADMIN, FileApiKeyStore, Principal

TOKEN = "tw_the-token-of-this-machine"


@pytest.fixture
def keyring(tmp_path: Path) -> FileApiKeyStore:
    return FileApiKeyStore(tmp_path / "keys.json", TOKEN)


def test_local_token_is_the_local_administrator(keyring: FileApiKeyStore):
    assert keyring.authenticate(TOKEN) == LOCAL_ADMIN
    for other in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "None", "null"):
        assert keyring.authenticate(other) is None


def test_key_is_shown_once_and_stored_as_a_hash(keyring: FileApiKeyStore, tmp_path: Path):
    token, key = keyring.create_key_sync("ci", ["both"], False, 5.0)
    kept = (tmp_path / "keys.json").read_text()
    assert token not in kept and token.removeprefix("tw_") not in kept and TOKEN not in kept
    assert key.hash in kept and key.hash != token
    assert keyring.authenticate(key.hash) is None  # the stored hash is not a token
    found = keyring.authenticate(token)
    assert found == Principal(key.id, "ci", f"key:{key.id}", False, ("both",))


@pytest.mark.attack("held-22")
def test_tokens_are_compared_by_hash_in_constant_time(keyring: FileApiKeyStore, monkeypatch: pytest.MonkeyPatch):
    """Nothing depends on how much of a token is right: only hashes of whole tokens are compared."""
    token, key = keyring.create_key_sync("mine", None, False, 0.0)
    compared: list[str] = []
    real = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.extend((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for guess in (token, token[:-1], TOKEN, TOKEN[:-1], f"{TOKEN}x"):
        keyring.authenticate(guess)
    assert len(compared) == 10 and all(re.fullmatch("[0-9a-f]{64}", text) for text in compared)
    assert list(keyring._keys) == [key.hash] == [hashlib.sha256(token.encode()).hexdigest()]


def test_key_files_are_private(keyring: FileApiKeyStore, tmp_path: Path):
    old = os.umask(0)
    try:
        keyring.create_key_sync("ci", None, False, 0.0)
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in os.listdir(tmp_path)}
    assert modes["keys.json"] == 0o600 and set(modes.values()) == {0o600}


def test_revoked_key_is_rejected_from_then_on(keyring: FileApiKeyStore, tmp_path: Path):
    revoked: list[str] = []
    keyring.on_revoked(revoked.append)
    token, key = keyring.create_key_sync("ci", None, False, 0.0)
    other, _ = keyring.create_key_sync("other", None, False, 0.0)
    assert keyring.revoke_key_sync(key.id) and not keyring.revoke_key_sync(key.id)
    assert keyring.authenticate(token) is None and keyring.authenticate(other) is not None
    assert revoked == [key.id]
    assert FileApiKeyStore(tmp_path / "keys.json", TOKEN).authenticate(token) is None


def test_changes_of_another_process_need_no_restart(keyring: FileApiKeyStore, tmp_path: Path):
    other = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    token, key = other.create_key_sync("ci", None, False, 0.0)
    assert keyring.authenticate(token) is None
    keyring.reload()
    assert keyring.authenticate(token) is not None
    other.revoke_key_sync(key.id)
    keyring.reload()
    assert keyring.authenticate(token) is None


def test_same_size_changes_in_the_same_moment_are_seen(keyring: FileApiKeyStore, tmp_path: Path):
    """The clock of a file system is coarse, and two keys look alike."""
    other = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    for _ in range(20):
        token, key = other.create_key_sync("ci", None, False, 0.0)
        keyring.reload()
        assert keyring.authenticate(token) is not None
        other.revoke_key_sync(key.id)
        replaced, new = other.create_key_sync("ci", None, False, 0.0)
        keyring.reload()
        assert keyring.authenticate(token) is None and keyring.authenticate(replaced) is not None
        other.revoke_key_sync(new.id)


def test_two_processes_changing_keys_lose_nothing(keyring: FileApiKeyStore, tmp_path: Path):
    other = FileApiKeyStore(tmp_path / "keys.json", TOKEN)
    token, key = other.create_key_sync("one", None, False, 0.0)
    second, _ = keyring.create_key_sync("two", None, False, 0.0)  # without having read the first
    assert keyring.authenticate(token) is not None
    other.revoke_key_sync(key.id)
    keyring.create_key_sync("three", None, False, 0.0)  # must not bring the revoked one back
    assert keyring.authenticate(token) is None
    other.reload()
    assert other.authenticate(token) is None and other.authenticate(second) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"keys": [{"id": 1}]}', '{"keys": 5}', "\0"])
def test_unreadable_key_file_raises_and_changes_nothing(keyring: FileApiKeyStore, tmp_path: Path, text: str):
    token, _ = keyring.create_key_sync("ci", None, False, 0.0)
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(ConfigError):
        keyring.reload()
    assert keyring.authenticate(token) is not None
    with pytest.raises(ConfigError):
        keyring.create_key_sync("more", None, False, 0.0)
    with pytest.raises(ConfigError):
        FileApiKeyStore(tmp_path / "keys.json", TOKEN)


def test_missing_key_file_means_no_keys(keyring: FileApiKeyStore, tmp_path: Path):
    token, _ = keyring.create_key_sync("ci", None, False, 0.0)
    (tmp_path / "keys.json").unlink()
    keyring.reload()
    assert keyring.authenticate(token) is None and keyring.authenticate(TOKEN) == LOCAL_ADMIN


def test_key_is_limited_to_its_scopes():
    of = {access: Principal("id", "n", "c", access=access) for access in (None, (), ("x",), ("server/a",))}
    allowed = {access: [e for e in ("x", "server/a", "server/b", "y") if p.can_access(e)] for access, p in of.items()}
    assert allowed == {
        None: ["x", "server/a", "server/b", "y"],
        (): [],
        ("x",): ["x"],
        ("server/a",): ["server/a"],
    }
