"""The keychain of the system: a real one where the tools for it are, and none that writes plain text, ever."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.timing import within
from toolway.secrets import SecretsError, open_store
from toolway.secrets.encrypted_file import EncryptedFileStore
from toolway.secrets.keychain import Keychain, run_with_timeout
from toolway.secrets.store import LayeredStore

CANARY = "canary-77aa01f3"
needs_secret_service = pytest.mark.skipif(
    not (shutil.which("dbus-run-session") and shutil.which("gnome-keyring-daemon")),
    reason="needs dbus-run-session and gnome-keyring-daemon, a Secret Service without a desktop",
)


@pytest.fixture
def environ(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DBUS_", "TOOLWAY_"))}
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    return {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}


def python(program, environ, before=()):
    return subprocess.run(
        [*before, sys.executable, "-W", "error", "-c", program], env=environ, capture_output=True, text=True, timeout=90
    )


def files_with(text, folder):
    return [path for path in Path(folder).rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@needs_secret_service
def test_keychain_stores_secrets_outside_our_files(environ):
    program = f"""
import os
from toolway.secrets import open_store
store = open_store(os.environ)
print(store.location)
store.set("github.TOKEN", "{CANARY}")
again = open_store(os.environ)
print(again.get("github.TOKEN") == "{CANARY}", again.names(), again.get("other"))
print(again.delete("github.TOKEN"), again.delete("github.TOKEN"), again.get("github.TOKEN"), again.names())
again.set("left.there", "{CANARY}")
"""
    script = 'echo -n pass | gnome-keyring-daemon --unlock --components=secrets >/dev/null && exec "$0" "$@"'
    result = python(program, environ, ["dbus-run-session", "--", "sh", "-c", script])
    assert result.stdout.splitlines() == [
        "the system keychain",
        "True ['github.TOKEN'] None",
        "True False None []",
    ], result.stderr
    assert files_with(CANARY, environ["HOME"]) == []
    assert not (Path(environ["HOME"]) / ".local/share/toolway/secrets.sealed").exists()

    # Without the keychain, as over SSH, what lies in it is told, not silently missed.
    with pytest.raises(SecretsError, match="is in the system keychain"):
        open_store({"HOME": environ["HOME"], "TOOLWAY_SECRETS": "file"}).get("left.there")


PLAIN = """
from keyring.backend import KeyringBackend
class Plain(KeyringBackend):
    priority = 100
    def __init__(self):
        super().__init__()
        open({told!r}, "w").write("made")
    def set_password(self, service, name, value):
        open({told!r}, "a").write(value)
    def get_password(self, service, name):
        return None
"""


@pytest.mark.parametrize("by", ["variable", "file"])
def test_plain_text_back_end_is_never_used(environ, tmp_path, by):
    told = tmp_path / "told"
    (tmp_path / "plain_back_end.py").write_text(PLAIN.format(told=str(told)))
    environ["PYTHONPATH"] = str(tmp_path)
    if by == "variable":
        environ["PYTHON_KEYRING_BACKEND"] = "plain_back_end.Plain"
    else:
        config = Path(environ["HOME"]) / ".config/python_keyring"
        config.mkdir(parents=True)
        (config / "keyringrc.cfg").write_text("[backend]\ndefault-keyring=plain_back_end.Plain\n")
    # The library itself would take it: else this test could not fail.
    chosen = python("import keyring; print(type(keyring.get_keyring()).__name__)", environ)
    assert chosen.stdout.strip() == "Plain", chosen.stderr
    told.unlink()
    program = f"""
import os
from toolway.secrets import open_store
store = open_store(os.environ)
store.set("a", "{CANARY}")
print(store.location, store.get("a"))
"""
    result = python(program, environ)
    assert "the encrypted file" in result.stdout
    assert CANARY in result.stdout, result.stderr
    assert not told.exists()
    assert files_with(CANARY, environ["HOME"]) == []


def test_unavailable_required_keychain_is_an_error(environ):
    program = "import os; from toolway.secrets import open_store; open_store(os.environ)"
    result = python(program, {**environ, "TOOLWAY_SECRETS": "keychain"})
    assert "no system keychain is available here" in result.stderr


class Silent:
    """A keychain that waits for a user."""

    def __init__(self):
        self.end = threading.Event()

    def get_password(self, service, name):
        self.end.wait(60)


class Broken:
    def get_password(self, service, name):
        raise RuntimeError(f"cannot show {CANARY}")


def test_locked_keychain_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr("toolway.secrets.keychain.UNLOCK_TIMEOUT_S", 0.1)
    silent = Silent()
    began = time.monotonic()
    with pytest.raises(SecretsError, match="did not answer"):
        Keychain(silent, tmp_path / "names").get("a")
    assert time.monotonic() - began < within(5)
    silent.end.set()


def test_keychain_error_text_is_not_repeated(tmp_path):
    with pytest.raises(SecretsError) as caught:
        Keychain(Broken(), tmp_path / "names").get("a")
    assert CANARY not in str(caught.value)
    assert "RuntimeError" in caught.value.detail


def test_run_with_timeout_returns_result_or_raises():
    assert run_with_timeout(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(5, lambda: 1 / 0)


class Memory:
    location = "memory"

    def __init__(self, **kept):
        self.kept = kept

    def get(self, name):
        return self.kept.get(name)

    def set(self, name, value):
        self.kept[name] = value

    def delete(self, name):
        return self.kept.pop(name, None) is not None

    def names(self):
        return sorted(self.kept)


def test_new_secret_moves_from_file_to_keychain(tmp_path):
    keychain, file = Memory(), EncryptedFileStore(tmp_path / "file", tmp_path / "key")
    file.set("a", "old-value")
    store = LayeredStore(keychain, file, frozenset())
    assert store.get("a") == "old-value"
    store.set("a", "new-value")
    assert (keychain.kept, file.names()) == ({"a": "new-value"}, [])
    file.set("a", "old-value")
    assert store.delete("a")
    assert store.names() == []
