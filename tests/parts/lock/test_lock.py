"""`toolway trust lock` with real npm and pip, and a registry on loopback: what starts, and what does not."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts.lock.lab import ENTRIES, UV, Lab, has_npm
from tests.parts.lock.registry import serving
from toolway.errors import ServerUnavailable
from toolway.parts.lock import pypi
from toolway.parts.lock.runner_command import parse_command
from toolway.parts.lock.tool_process import LockError
from toolway.upstream.process import bubblewrap, landlock

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not has_npm, reason="npm is not installed"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A machine with a locked npm package and a locked PyPI package."""
    with serving() as registry:
        lab = Lab(tmp_path_factory.mktemp("lock"), registry)
        lab.write(**ENTRIES)
        lab.locked("trust", "lock", "--min-age", "0")
        yield lab


@pytest.fixture
def lab(made: Lab) -> Iterator[Lab]:
    """The machine, with its files as they were after the lock."""
    made.write(**ENTRIES)
    lock = made.lock.read_bytes()
    yield made
    made.lock.write_bytes(lock)
    made.write(**ENTRIES)


def writable(file: Path) -> Path:
    file.parent.chmod(0o755)
    if not file.is_symlink():
        file.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
    return file


# -- lock and start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ENTRIES))
async def test_locked_server_starts_from_its_tree_without_registry(lab: Lab, name: str) -> None:
    lab.registry.paths.clear()
    assert await lab.call(name) == ["help 1.0.0", "hello"]
    assert lab.registry.paths == []
    command = lab.start(name)
    assert command is not None and command[0].startswith(str(lab.trees))


def test_lock_has_hashes_only_and_second_lock_changes_nothing(lab: Lab) -> None:
    text = lab.lock.read_text()
    assert "http" not in text and str(lab.registry.port) not in text and str(lab.folder) not in text
    assert text.count("sha512-") == 2 and text.count("sha256:") == 2
    lab.registry.paths.clear()
    done = lab.locked("trust", "lock")
    assert [each["state"] for each in done["servers"]] == ["unchanged", "unchanged"]
    assert (lab.lock.read_text(), lab.registry.paths) == (text, [])
    assert not Path("/tmp/never-run").exists()  # the install script of each package
    assert done["servers"][0]["scripts"] == ["acme-helper", "acme-tiny"]


def test_config_entry_is_not_changed(lab: Lab) -> None:
    assert json.loads(lab.config.read_text()) == {"mcpServers": ENTRIES}


# -- fails closed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "flips"), [("npm", 150), ("python", 150), pytest.param("python", 1000, marks=pytest.mark.slow)]
)
def test_bit_flip_in_tree_prevents_start(lab: Lab, name: str, flips: int) -> None:
    command = lab.start(name)
    assert command is not None
    tree = lab.trees / Path(command[0]).relative_to(lab.trees).parts[0]
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size)
    dice = random.Random(7)
    started = []
    for _ in range(flips):
        file = writable(dice.choice(files))
        before = file.read_bytes()
        flipped = bytearray(before)
        flipped[dice.randrange(len(before))] ^= 1 << dice.randrange(8)
        file.write_bytes(flipped)
        if not lab.refusal(name).startswith("E-LOCK "):
            started.append(file)
        file.write_bytes(before)
    assert started == []
    assert lab.start(name) == command


@pytest.mark.parametrize("name", list(ENTRIES))
def test_changed_file_link_or_mode_in_tree_prevents_start(lab: Lab, name: str) -> None:
    command = lab.start(name)
    assert command is not None
    tree = lab.trees / Path(command[0]).relative_to(lab.trees).parts[0]
    modules = sorted(path for path in tree.rglob("*") if path.name in ("index.js", "acme_helper.py"))
    for module in modules:  # a program and a file for npm, whose order on the disk is by chance
        is_program = os.access(module, os.X_OK)
        writable(module)
        (module.parent / "new.js").write_text("x")
        assert "new.js" in lab.refusal(name)
        (module.parent / "new.js").unlink()
        text = module.read_bytes()
        module.unlink()
        assert lab.refusal(name)
        module.write_bytes(text)
        module.chmod(0o600 if is_program else 0o700)
        assert lab.refusal(name)
        module.chmod(0o555 if is_program else 0o444)
        assert lab.start(name) == command
    link = next(path for path in tree.rglob("*") if path.is_symlink())
    target = os.readlink(link)
    link.parent.chmod(0o755)
    link.unlink()
    link.symlink_to("/bin/sh")
    assert lab.refusal(name)
    link.unlink()
    link.symlink_to(target)
    assert lab.start(name) == command


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ENTRIES))
def test_lock_reinstalls_damaged_tree_with_the_same_digest(lab: Lab, name: str) -> None:
    command, lock = lab.start(name), lab.lock.read_text()
    assert command is not None
    tree = lab.trees / Path(command[0]).relative_to(lab.trees).parts[0]
    writable(next(path for path in tree.rglob("*") if path.name in ("index.js", "acme_tiny.py"))).write_text("evil")
    assert "toolway trust lock" in lab.refusal(name)
    assert [each["state"] for each in lab.locked("trust", "lock", name)["servers"]] == ["installed"]
    assert (lab.start(name), lab.lock.read_text()) == (command, lock)


def test_entry_missing_from_lock_or_changed_does_not_start(lab: Lab) -> None:
    new = {"command": "npx", "args": ["-y", "other"]}
    changed = {"command": "npx", "args": ["-y", "acme-tiny@1.0.0", "hello"]}
    odd = {"command": "npx", "args": ["--node-options=x", "acme-tiny"]}
    lab.write(npm=changed, new=new, odd=odd, bun={"command": "bunx", "args": ["x"]}, own={"command": "ls", "args": []})
    assert "is not in" in lab.refusal("new") and "toolway trust lock" in lab.refusal("new")
    assert "was changed since" in lab.refusal("npm")
    assert "cannot be locked" in lab.refusal("odd")
    assert "cannot be locked" in lab.refusal("bun")
    assert lab.start("own") is None
    assert lab.start("new", exempt=True) is None  # "lock": false
    result = lab.toolway("trust", "lock", "--check", "--json")
    states = {each["server"]: each["state"] for each in json.loads(result.stdout)["servers"]}
    assert states == {
        "npm": "changed",
        "new": "not locked",
        "odd": "not lockable",
        "bun": "not lockable",
        "python": "unused",
    }
    assert result.exit_code == 9


def test_program_arguments_may_change_without_a_new_lock(lab: Lab) -> None:
    lab.write(npm={"command": "npx", "args": ["-y", "acme-tiny", "other"]})
    command = lab.start("npm")
    assert command is not None and command[1:] == ["other"]


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"version": 2, "servers": {}}', '{"version": 1, "version": 1, "servers": {}}', "\xff"],
)
def test_unreadable_lock_file_prevents_start(lab: Lab, damage: str) -> None:
    lab.lock.write_text(damage, encoding="latin-1")
    assert lab.refusal("npm").startswith("E-LOCK ")
    assert lab.toolway("trust", "lock", "--check").exit_code == 3


def test_lock_cannot_name_program_outside_its_tree_or_a_url(lab: Lab) -> None:
    text = lab.lock.read_text()
    for old, new in (
        ("node_modules/.bin/acme-tiny", "node_modules/.bin/../../../../bin/sh"),
        ("node_modules/.bin/acme-tiny", "/bin/sh"),
        ('"node_modules/acme-helper": {', '"node_modules/../acme-helper": {'),
        ('"node_modules/acme-helper": {', '"node_modules/acme-helper": {"resolved": "http://evil.example/x.tgz", '),
    ):
        assert old in text
        lab.lock.write_text(text.replace(old, new))
        assert lab.refusal("npm").startswith("E-LOCK "), new


def test_entries_start_without_lock_file_unless_required(lab: Lab) -> None:
    lab.lock.unlink()
    assert lab.start("npm") is None
    assert "requires a lock" in lab.refusal("npm", required=True)
    assert lab.start("npm", required=True, exempt=True) is None


async def test_rejected_start_has_code_and_fix(lab: Lab) -> None:
    lab.write(new={"command": "npx", "args": ["-y", "other"]})
    with pytest.raises(ServerUnavailable) as caught:
        await lab.call("new")
    assert "E-LOCK" in str(caught.value) and "toolway trust lock" in str(caught.value)


def test_missing_or_damaged_tree_record_prevents_start(lab: Lab) -> None:
    command = lab.start("python")
    record = next(path for path in lab.records.glob("*.json") if "-cp" in path.name)
    content = record.read_bytes()
    for damage in (b"", b"{}", content.replace(b'"local"', b'"lokal"')):
        record.write_bytes(damage)
        assert lab.refusal("python").startswith("E-LOCK ")
    record.unlink()
    assert "not installed" in lab.refusal("python")
    record.write_bytes(content)
    assert lab.start("python") == command


# -- registry ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ENTRIES))
def test_package_changed_in_registry_is_not_installed(lab: Lab, name: str) -> None:
    stored = {path: path.rename(path.with_name(path.name + ".away")) for path in lab.trees.iterdir()}
    cache = lab.folder / "home/.cache/toolway/npm"
    shutil.rmtree(cache)
    lab.registry.tampered = {"acme-helper-1.0.0.tgz", "acme_helper-1.0.0-py3-none-any.whl"}
    try:
        result = lab.toolway("trust", "lock", name, "--json")
        (row,) = json.loads(result.stdout)["servers"]
        assert (result.exit_code, row["state"]) == (1, "failed")
        assert "EINTEGRITY" in row["problem"] or "hash" in row["problem"].lower()
        assert lab.refusal(name)
    finally:
        lab.registry.tampered = set()
        for path in lab.trees.iterdir():
            if not path.name.endswith(".away"):
                shutil.rmtree(path)
        for path, away in stored.items():
            away.rename(path)


def test_package_without_wheel_is_not_locked(lab: Lab, tmp_path: Path) -> None:
    if UV is None:
        pytest.skip("uv is not installed")
    environ = {**lab.environ, "PATH": f"{Path(UV).parent}:{lab.environ['PATH']}"}
    lab.registry.without_wheel = {"acme-helper"}
    command = parse_command(["uvx", "acme-tiny"])
    assert command is not None
    try:
        python = pypi.find_python("", environ)
        with pytest.raises(LockError) as refused:
            pypi.resolve(command, python, environ, tmp_path, None)
    finally:
        lab.registry.without_wheel = set()
    assert refused.value.message == "acme-helper, which acme-tiny needs, has no wheel"
    assert '"lock": false' in refused.value.hint


# -- sandbox and network -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sandbox", ["guard", "strict"])
@pytest.mark.parametrize("name", list(ENTRIES))
async def test_locked_server_works_in_a_sandbox(lab: Lab, name: str, sandbox: str) -> None:
    if bubblewrap.find_program() is None and (sandbox == "strict" or landlock.abi_version() < landlock.MIN_ABI):
        pytest.skip("bubblewrap is not installed")
    lab.write(**{name: {**ENTRIES[name], "sandbox": sandbox}})
    assert await lab.call(name) == ["help 1.0.0", "hello"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ENTRIES))
def test_locked_server_starts_without_network(lab: Lab, name: str) -> None:
    program = f"""
import asyncio, socket
from toolway import Hub
try:
    socket.create_connection(("192.0.2.1", 9), timeout=1)
except OSError as exc:
    print(exc.errno)
async def main():
    async with Hub({str(lab.config)!r}, token_store=None, catalog_storage=None) as hub:
        print((await hub.call_tool("{name}.words", {{}}, timeout=30)).text)
asyncio.run(main())
"""
    namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("no namespaces here")
    done = subprocess.run(
        [*namespace, sys.executable, "-c", program], env=lab.environ, capture_output=True, text=True, check=True
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [errno.ENETUNREACH, ["help 1.0.0", "hello"]]


def test_security_check_reports_locked_packages(lab: Lab) -> None:
    def evidence(server: str) -> list[tuple[str, str]]:
        found = json.loads(lab.toolway("doctor", "--security", "--json").stdout)["statements"][1]
        rows = [each for each in found["evidence"] if each["name"] == server and "lock" in each["message"]]
        return [(each["state"], f"{each['message']} {each['detail']} {each['copy']}") for each in rows]

    [(state, text)] = evidence("npm")
    assert state == "ok" and "acme-tiny is locked" in text and str(lab.lock) in text
    lab.write(**{**ENTRIES, "npm": {**ENTRIES["npm"], "args": ["-y", "another", "hello"]}})
    [(state, text)] = evidence("npm")
    assert state == "fail" and "which was changed since" in text and text.endswith("toolway trust lock npm")
