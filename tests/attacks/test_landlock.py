"""Attacks of a server from inside the sandbox `strict` without bubblewrap: Landlock and a filter of system calls."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.test_sandbox import SHELL, Lab, read_output, succeeded
from toolway import Hub
from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process import bubblewrap, landlock, seatbelt, syscall_filter
from toolway.upstream.process.confinement import SandboxError
from toolway.upstream.process.sandbox_choice import confine
from toolway.upstream.process.spawner import Spawner

pytestmark = pytest.mark.anyio
needs_landlock = pytest.mark.skipif(
    landlock.abi_version() < landlock.STRICT_ABI or not syscall_filter.is_supported(),
    reason=f"this kernel has Landlock {landlock.abi_version()}, and the sandbox needs {landlock.STRICT_ABI}",
)


@pytest.fixture(autouse=True)
def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_program", lambda: None)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


@needs_landlock
@pytest.mark.attack("R3-landlock-1")
async def test_landlock_grants_nothing_beyond_the_entry(lab: Lab) -> None:
    found = await lab.attack("strict")
    # A namespace uncovers nothing: Landlock applies in it, and refuses mounts.
    assert succeeded(found) <= {"create a nested namespace"} and len(found) >= 24, found
    unchanged = (lab.home / ".config/toolway/mcp.json", lab.home / ".bashrc", lab.readable / "file")
    assert not any("planted" in each.read_text() for each in unchanged)
    assert (lab.granted / "new").read_text() == "planted\n"


@needs_landlock
async def test_landlock_server_works_and_its_private_folder_is_removed(tmp_path: Path) -> None:
    granted = tmp_path / "granted"
    granted.mkdir()
    entry = {"command": sys.executable, "args": ["-I", "-S", str(SHELL)], "sandbox": {"write": [str(granted)]}}
    async with Hub({"shell": entry}, token_store=None, catalog_storage=None) as hub:
        command = f"touch $HOME/private {granted}/file && echo $HOME"
        answer = (await hub.call_tool("shell.run", {"command": command})).text
        private = Path(answer.split()[-1])
        assert (private / "private").exists() and private.name.startswith("toolway-sandbox-")
    assert not private.exists() and (granted / "file").exists()


#: What a server tries on a given process; it prints what it got.
INSPECT = """
import ctypes, json, os, sys
pid, device, tag = int(sys.argv[1]), sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
def environ():
    return tag in open(f"/proc/{pid}/environ", "rb").read().decode()
def attach():
    return libc.ptrace(16, pid, 0, 0) == 0
def memory():
    return bool(open(f"/proc/{pid}/mem", "rb"))
def disk():
    os.mknod(device, 0o060600, os.stat("/").st_dev)
    return True
def powers():
    lines = open("/proc/self/status").read().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith(("CapEff", "CapPrm", "CapAmb")))
got = []
for attack in (environ, attach, memory, disk, powers):
    try:
        got += [attack.__name__] if attack() else []
    except OSError:
        pass
print(json.dumps(got), flush=True)
"""


@pytest.mark.skipif(landlock.abi_version() < landlock.MIN_ABI, reason="this kernel has no Landlock")
@pytest.mark.attack("A2-W12")
@pytest.mark.parametrize("sibling", ["guard", "off"])
async def test_variables_of_another_server_are_unreadable_as_root(tmp_path: Path, sibling: Sandbox) -> None:
    own = tmp_path / "home/.local/state/toolway"
    own.mkdir(parents=True)
    (tmp_path / "sibling").mkdir()
    env, secret = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}, "canary-of-a-sibling"
    spawner = Spawner(None, [own])
    try:
        other = await spawner.start(["sleep", "100"], {**env, "SECRET": secret}, None, sibling)
        arguments = [str(other.pid), str(tmp_path / "sibling/disk"), secret]
        process = await spawner.start([sys.executable, "-I", "-S", "-c", INSPECT, *arguments], env, None, "guard")
        assert json.loads(await read_output(process)) == []
    finally:
        await spawner.close()


@pytest.mark.parametrize(
    ("grants", "reason"),
    [
        (SandboxGrants(hosts=("docs.python.org:443",)), "by name"),
        (SandboxGrants(read=("/nonexistent/folder",)), "/nonexistent/folder does not exist"),
        (SandboxGrants(read=("/home",)), "cannot be hidden"),
    ],
)
def test_grant_that_landlock_cannot_enforce_is_rejected(
    grants: SandboxGrants, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: landlock.STRICT_ABI)
    monkeypatch.setattr(syscall_filter, "is_supported", lambda: True)
    with pytest.raises(SandboxError, match=reason) as refused:
        confine(["sh"], {"PATH": "/usr/bin:/bin"}, None, "strict", grants, ["/home/me/.local/state/toolway"], "")
    assert refused.value.code == "E-SANDBOX"


# -- the filter of system calls ---------------------------------------------------------------------------------------


def run_filter(program: bytes, architecture: int, number: int, argument: int) -> int:
    """Run a filter as the kernel does, and return its decision."""
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    instructions = [struct.unpack_from("=HBBI", program, place) for place in range(0, len(program), 8)]
    place, value = 0, 0
    while True:
        code, if_true, if_false, operand = map(int, instructions[place])
        place += 1
        if code == syscall_filter.RETURN:
            return operand
        if code == syscall_filter.LOAD:
            value = struct.unpack_from("=I", data, operand)[0]
        else:
            matches = {
                syscall_filter.JUMP_EQUAL: value == operand,
                syscall_filter.JUMP_AT_LEAST: value >= operand,
                syscall_filter.JUMP_ANY_BIT: bool(value & operand),
            }[code]
            place += if_true if matches else if_false


@pytest.mark.parametrize("machine", [*syscall_filter.MACHINES])
def test_syscall_filter_rejects_sockets_and_foreign_numbers(machine: str) -> None:
    architecture, socket_call, refused = syscall_filter.MACHINES[machine]
    closed, opened = (syscall_filter.build_filter(machine, with_network) for with_network in (False, True))
    unix, internet, netlink, vsock = 1, 2, 16, 40

    def allows(program: bytes, number: int, argument: int = 0, arch: int = architecture) -> bool:
        return run_filter(program, arch, number, argument) == syscall_filter.ALLOW

    assert not any(allows(closed, socket_call, family) for family in range(48))
    assert allows(opened, socket_call, internet) and allows(opened, socket_call, netlink)
    assert not allows(opened, socket_call, unix) and not allows(opened, socket_call, vsock)
    assert allows(closed, 1) and not allows(closed, 425) and not any(allows(closed, number) for number in refused)
    assert run_filter(closed, 0x40000003, 1, 0) == syscall_filter.KILL_PROCESS  # numbers of another architecture
    assert not allows(closed, syscall_filter.X32_BIT | 1)


# -- macOS ------------------------------------------------------------------------------------------------------------


def test_macos_profile_hides_grants_and_escapes_paths() -> None:
    guard = seatbelt.guard_profile("/Users/me", ["/Users/me/.local/state/toolway"])
    assert guard.startswith("(version 1)\n(allow default)") and '(subpath "/Users/me/.ssh")' in guard
    strict = seatbelt.strict_profile(["/Users/me/a"], ['/Users/me/b") (allow default'], ["/Users/me/own"], False)
    lines = strict.splitlines()
    assert lines[1] == "(deny default)" and "network" not in strict
    assert '"/Users/me/b\\") (allow default")' in strict
    assert lines[-1] == '(deny file-read* file-write* (subpath "/Users/me/own"))'  # the last rule decides
    assert "(allow network*)" in seatbelt.strict_profile([], [], [], True)
    with pytest.raises(ValueError, match="control characters"):
        seatbelt.strict_profile(["/Users/me/a\n(allow default)"], [], [], False)
