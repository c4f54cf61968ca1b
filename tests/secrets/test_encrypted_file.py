"""Secrets in a sealed file: nothing readable on disk, nothing lost, nothing opened by another key."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from toolway.secrets import SecretsError, check_secret_name, open_store
from toolway.secrets.encrypted_file import EncryptedFileStore, read_private

CANARY = "canary-5d1c0b7e"


def folders(tmp_path, **more):
    return {
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TOOLWAY_SECRETS": "file",
        **more,
    }


def on_disk(tmp_path):
    return [path for path in tmp_path.rglob("*") if path.is_file()]


def test_secret_is_read_by_another_process(tmp_path):
    open_store(folders(tmp_path)).set("github.TOKEN", CANARY)
    program = "import os; from toolway.secrets import open_store; print(open_store(os.environ).get('github.TOKEN'))"
    environ = {**os.environ, **folders(tmp_path)}
    result = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == CANARY


@pytest.mark.parametrize("passphrase", ["", "correct horse"])
def test_names_and_values_are_encrypted_in_private_file(tmp_path, passphrase):
    store = open_store(folders(tmp_path, TOOLWAY_SECRETS_PASSPHRASE=passphrase))
    store.set("github.TOKEN", CANARY)
    assert store.names() == ["github.TOKEN"]
    files = on_disk(tmp_path)
    assert files
    for file in files:
        assert CANARY.encode() not in file.read_bytes()
        assert b"github" not in file.read_bytes()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (tmp_path / "state/toolway/secrets.key").exists() == (not passphrase)


def test_key_is_stored_in_another_folder(tmp_path):
    open_store(folders(tmp_path)).set("a", CANARY)
    (sealed,) = tmp_path.rglob("secrets.sealed")
    (key,) = tmp_path.rglob("secrets.key")
    assert sealed.parent != key.parent


def test_changed_file_is_rejected(tmp_path):
    store = open_store(folders(tmp_path))
    store.set("a", CANARY)
    (sealed,) = tmp_path.rglob("secrets.sealed")
    parts = json.loads(sealed.read_bytes())
    parts["data"] = ("A" if parts["data"][0] != "A" else "B") + parts["data"][1:]
    sealed.write_text(json.dumps(parts))
    with pytest.raises(SecretsError, match="does not decrypt it"):
        store.get("a")
    sealed.write_text("{")
    with pytest.raises(SecretsError, match="damaged"):
        store.get("a")


def test_wrong_or_missing_passphrase_decrypts_nothing(tmp_path):
    open_store(folders(tmp_path, TOOLWAY_SECRETS_PASSPHRASE="right")).set("a", CANARY)
    with pytest.raises(SecretsError, match="does not decrypt it"):
        open_store(folders(tmp_path, TOOLWAY_SECRETS_PASSPHRASE="wrong")).get("a")
    with pytest.raises(SecretsError, match="encrypted with a passphrase") as caught:
        open_store(folders(tmp_path)).get("a")
    assert "export TOOLWAY_SECRETS_PASSPHRASE" in caught.value.hint


def test_later_passphrase_reencrypts_old_secrets(tmp_path):
    open_store(folders(tmp_path)).set("old", CANARY)
    store = open_store(folders(tmp_path, TOOLWAY_SECRETS_PASSPHRASE="new"))
    store.set("other", "value-of-other")
    (key,) = tmp_path.rglob("secrets.key")
    key.unlink()
    assert store.get("old") == CANARY


def test_missing_key_raises_and_is_not_recreated(tmp_path):
    store = open_store(folders(tmp_path))
    store.set("a", CANARY)
    (key,) = tmp_path.rglob("secrets.key")
    key.unlink()
    for act in (lambda: store.get("a"), lambda: store.set("b", "value-of-b")):
        with pytest.raises(SecretsError, match="is missing"):
            act()
    assert not key.exists()


def test_readable_file_modes_are_tightened(tmp_path):
    store = open_store(folders(tmp_path))
    store.set("a", CANARY)
    for file in on_disk(tmp_path):
        file.chmod(0o644)
    assert store.get("a") == CANARY
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in on_disk(tmp_path)}
    assert modes["secrets.sealed"] == modes["secrets.key"] == 0o600


def test_concurrent_writers_lose_nothing(tmp_path):
    program = """
import os, sys
from toolway.secrets import open_store
for number in range(5):
    open_store(os.environ).set(f"{sys.argv[1]}.{number}", "value-" + sys.argv[1])
"""
    environ = {**os.environ, **folders(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", program, f"w{n}"], env=environ) for n in range(4)]
    assert [each.wait(60) for each in running] == [0, 0, 0, 0]
    assert open_store(folders(tmp_path)).names() == sorted(f"w{n}.{m}" for n in range(4) for m in range(5))


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    store = open_store(folders(tmp_path))
    store.set("a", CANARY)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SecretsError, match="No space left") as caught:
        store.set("a", "canary-of-the-new-value")
    assert "canary" not in str(caught.value)
    monkeypatch.undo()
    assert store.get("a") == CANARY
    assert not [
        file for file in on_disk(tmp_path) if file.name.startswith(".secrets.sealed.") and "lock" not in file.name
    ]


def test_deleted_secret_is_gone(tmp_path):
    store = open_store(folders(tmp_path))
    store.set("a", CANARY)
    assert store.delete("a")
    assert not store.delete("a")
    assert (store.get("a"), store.names()) == (None, [])


def test_reading_creates_no_file(tmp_path):
    store = EncryptedFileStore(tmp_path / "x" / "file", tmp_path / "y" / "key")
    assert (store.get("a"), store.names()) == (None, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "a=secret", "-a", "x" * 129, "a\n", "ä", "${x}"])
def test_invalid_name_is_rejected_unprinted(name):
    with pytest.raises(SecretsError) as caught:
        check_secret_name(name)
    assert not name or name not in str(caught.value)


def test_no_home_folder_means_no_store():
    with pytest.raises(SecretsError, match="no folder"):
        open_store({"TOOLWAY_SECRETS": "file"})


def test_only_regular_file_modes_are_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    changed: list[int] = []
    monkeypatch.setattr(os, "fchmod", lambda handle, mode: changed.append(mode))
    (tmp_path / "key").write_bytes(b"x")
    (tmp_path / "key").chmod(0o644)
    assert read_private(tmp_path / "key") == b"x" and changed == [0o600]
    assert read_private(Path(os.devnull)) == b"" and changed == [0o600]  # root would take it from all programs
