"""Handles that clients keep for us, and files that only their owner may read."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from toolway.errors import ConfigError
from toolway.gateway.principals import read_local_token
from toolway.gateway.sealing import KEY_BYTES, Sealer, read_sealing_key
from toolway.secrets.encrypted_file import write_private

KEY = b"k" * KEY_BYTES


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_sealed_value_opens_in_any_process_with_the_key():
    text = Sealer(KEY, Clock()).seal("session", {"a": [1, None, "ü"]}, 10)
    assert Sealer(KEY, Clock()).open("session", text) == {"a": [1, None, "ü"]}
    assert Sealer(b"l" * KEY_BYTES, Clock()).open("session", text) is None


@pytest.mark.attack("held-27")
def test_sealed_value_has_one_kind_and_expires():
    clock = Clock()
    sealer = Sealer(KEY, clock)
    text = sealer.seal("session", "x", 10)
    assert sealer.open("task", text) is None
    clock.now += 9.9
    assert sealer.open("session", text) == "x"
    clock.now += 0.2
    assert sealer.open("session", text) is None


def test_sealed_value_is_opaque_and_unique():
    sealer = Sealer(KEY, Clock())
    one, two = (sealer.seal("session", "the secret", 10) for _ in range(2))
    assert one != two and b"secret" not in base64.urlsafe_b64decode(one + "==")


def test_sealed_value_with_a_changed_bit_is_rejected():
    sealer = Sealer(KEY, Clock())
    text = sealer.seal("session", "x", 10)
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert sealer.open("session", base64.urlsafe_b64encode(changed).decode().rstrip("=")) is None


@pytest.mark.parametrize("value", ["x", "xy", "xyz"])
def test_sealed_value_has_one_spelling(value: str):
    """A session that was ended is remembered by its id: a second spelling would open it again."""
    sealer = Sealer(KEY, Clock())
    text = sealer.seal("session", value, 10)
    found = {
        other
        for letter in map(chr, range(33, 127))
        for other in (text[:-1] + letter, text + letter, text.replace("-", letter), text.replace("_", letter))
        if sealer.open("session", other) is not None
    }
    assert found == {text} or found == set()
    assert sealer.open("session", text) == value
    assert sealer.open("session", text + "=") is None


@pytest.mark.parametrize("text", ["", "A", "AAAA", "A" * 40, "A" * 100_000, "ü" * 20, "....", "\0" * 8, " ", "A" * 17])
def test_arbitrary_text_is_rejected(text: str):
    assert Sealer(KEY, Clock()).open("session", text) is None


@pytest.mark.attack("held-69")
def test_key_and_token_files_are_created_once_and_private(tmp_path: Path):
    old = os.umask(0)
    try:
        key, token = read_sealing_key(tmp_path / "new" / "key"), read_local_token(tmp_path / "new" / "token")
    finally:
        os.umask(old)
    assert len(key) == KEY_BYTES and len(token) > 40
    assert read_sealing_key(tmp_path / "new" / "key") == key and read_local_token(tmp_path / "new" / "token") == token
    assert [mode(tmp_path / "new" / name) for name in ("key", "token")] == [0o600, 0o600]
    assert mode(tmp_path / "new") == 0o700
    assert sorted(os.listdir(tmp_path / "new")) == ["key", "token"]


def test_readable_token_file_is_made_private(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("tw_0123456789abcdef0123")
    file.chmod(0o644)
    assert read_local_token(file) == "tw_0123456789abcdef0123"
    assert mode(file) == 0o600


def test_invalid_key_or_token_file_raises_and_is_kept(tmp_path: Path):
    (tmp_path / "key").write_bytes(b"short")
    (tmp_path / "token").write_text("guess me\n")
    with pytest.raises(ConfigError):
        read_sealing_key(tmp_path / "key")
    with pytest.raises(ConfigError):
        read_local_token(tmp_path / "token")
    assert (tmp_path / "key").read_bytes() == b"short"


def test_gateways_starting_together_share_one_token(tmp_path: Path):
    program = (
        "import sys, pathlib, toolway.gateway.principals as p; sys.stdin.read(); "
        "print(p.read_local_token(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "token")]
    starting = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in starting:
        assert process.stdin is not None
        process.stdin.close()
    tokens = set()
    for process in starting:
        assert process.stdout is not None
        tokens.add(process.stdout.read())
        process.stdout.close()
        assert process.wait(60) == 0
    assert len(tokens) == 1


def test_private_file_is_replaced_atomically(tmp_path: Path):
    file = tmp_path / "keys.json"
    write_private(file, b"one")
    write_private(file, b"two")
    assert (file.read_bytes(), mode(file), os.listdir(tmp_path)) == (b"two", 0o600, ["keys.json"])
    with pytest.raises(OSError):
        write_private(tmp_path, b"three")  # a folder
    assert os.listdir(tmp_path) == ["keys.json"]
    assert not [name for name in os.listdir(tmp_path.parent) if name.startswith(f".{tmp_path.name}")]
