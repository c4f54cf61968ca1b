"""Attacks of a server on the paths of its sandbox: folders above hidden ones, links, mounts, and its next start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.attacks.test_sandbox import needs_bubblewrap, read_output
from toolway.config.schema import Sandbox, SandboxGrants
from toolway.upstream.process import bubblewrap, landlock, shown_paths, syscall_filter
from toolway.upstream.process.path_facts import replaceable_link
from toolway.upstream.process.spawner import Spawner, SpawnError

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]
OWN = (".config/toolway", ".local/state/toolway", ".local/share/toolway")
SECRET = "canary-of-a-hidden-file"


class Machine:
    """A home folder with folders of Toolway, and the servers that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        for name in (*OWN, ".ssh"):
            (self.home / name).mkdir(parents=True)
            (self.home / name / "file").write_text(SECRET)
        self.spawner = Spawner(None, [self.home / name for name in OWN])

    async def run(
        self,
        code: str,
        *arguments: object,
        sandbox: Sandbox = "guard",
        grants: SandboxGrants | None = None,
        cwd: Path | None = None,
        command: str = "",
    ) -> str:
        """Run Python code in a sandbox, or the arguments with `command`; return what it prints."""
        env = {"HOME": str(self.home), "PATH": f"/usr/bin:/bin:{os.environ['PATH']}"}
        words = [command] if command else [sys.executable, "-I", "-S", "-c", code]
        argv = [*words, *map(str, arguments)]
        process = await self.spawner.start(argv, env, str(cwd) if cwd else None, sandbox, grants)
        return (await read_output(process)).strip()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path)
    yield made
    await made.spawner.close()


# -- folders above hidden ones ----------------------------------------------------------------------------------------

#: Moves the folders above ours away and makes new ones: at once, and after leaving all mounts in a namespace.
REPLACE = """
import ctypes, os, sys
home, names = sys.argv[1], sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(home, os.O_RDONLY)
def replace(end):
    for name in names:
        try:
            os.rename(name, name + end, src_dir_fd=fd, dst_dir_fd=fd)
            os.mkdir(name, dir_fd=fd)
            print("replaced", name + end)
        except OSError:
            pass
replace("-old")
if libc.unshare(0x10000000 | 0x20000) == 0:
    libc.mount(b"none", b"/", None, 0x4000 | 1 << 18, None)
    libc.mount(b"none", home.encode(), b"tmpfs", 0, None)
    os.chdir(home)
    pivot = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    if libc.syscall(pivot, b".", b".") == 0 and libc.umount2(b".", 2) == 0:
        replace("-older")
print("tried")
"""


@needs_bubblewrap
@pytest.mark.attack("A2-NB1")
async def test_folder_above_a_hidden_one_cannot_be_replaced(machine: Machine) -> None:
    (machine.home / ".config/fish").mkdir()
    assert await machine.run(REPLACE, machine.home, ".config", ".local/state", ".local") == "tried"
    assert all((machine.home / name / "file").read_text() == SECRET for name in OWN)


@needs_bubblewrap
@pytest.mark.attack("A2-NB1")
async def test_guard_allows_threads_processes_and_other_namespaces(machine: Machine) -> None:
    code = """
import ctypes, subprocess, threading
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["echo", "process"], capture_output=True, text=True).stdout.strip())
print("namespace" if ctypes.CDLL(None).unshare(0x10000000 | 0x40000000) == 0 else "none")
"""
    assert (await machine.run(code)).split() == ["thread", "process", "namespace"]
    await machine.run("open(__import__('sys').argv[1], 'w').write('x'); print(1)", machine.home / ".config/new")
    assert (machine.home / ".config/new").read_text() == "x"  # what is next to hidden folders is usable


@pytest.mark.parametrize("machine_name", [*syscall_filter.NAMESPACE_CALLS])
def test_guard_filter_rejects_mount_namespaces_only(machine_name: str) -> None:
    from tests.attacks.test_landlock import run_filter

    program = syscall_filter.build_mount_filter(machine_name)
    refused = {name: syscall_filter.ERRNO | number for name, number in (("EPERM", 1), ("ENOSYS", 38))}
    for architecture, unshare, clone in syscall_filter.NAMESPACE_CALLS[machine_name]:
        for number in (unshare, clone):
            assert run_filter(program, architecture, number, 0x10020000) == refused["EPERM"]
            assert run_filter(program, architecture, number, 0x10000000) == syscall_filter.ALLOW
        assert run_filter(program, architecture, 435, 0) == refused["ENOSYS"]
        assert run_filter(program, architecture, 1, 0x20000) == syscall_filter.ALLOW
    assert run_filter(program, 1, 1, 0) == syscall_filter.KILL_PROCESS


@needs_bubblewrap
@pytest.mark.attack("A2-NB2")
async def test_toolway_config_cannot_be_created_in_guard(machine: Machine) -> None:
    shutil.rmtree(machine.home / ".config")
    code = """
import os, sys
os.makedirs(sys.argv[1], exist_ok=True)
open(sys.argv[1] + "/mcp.json", "w").write("planted")
print("tried")
"""
    assert await machine.run(code, machine.home / ".config/toolway") == "tried"
    assert not (machine.home / ".config/toolway/mcp.json").exists()


# -- links ------------------------------------------------------------------------------------------------------------


@needs_bubblewrap
@pytest.mark.attack("A2-NB3")
@pytest.mark.parametrize("linked", [".config", ".local/share", ".local/state/toolway"])
@pytest.mark.parametrize("with_bubblewrap", [True, False])
async def test_replaceable_link_to_a_toolway_folder_is_rejected(
    machine: Machine, linked: str, with_bubblewrap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_bubblewrap:
        monkeypatch.setattr(bubblewrap, "find_program", lambda: None)
    (machine.home / linked).rename(machine.folder / "elsewhere")
    (machine.home / linked).symlink_to(machine.folder / "elsewhere")
    with pytest.raises(SpawnError, match="symbolic link that the server could replace") as refused:
        await machine.run("print('started')")
    assert refused.value.code == "E-SANDBOX"


def test_link_only_the_administrator_can_replace_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real/me").mkdir(parents=True)
    (tmp_path / "home").symlink_to("real")
    assert replaceable_link(str(tmp_path / "home/me")) == str(tmp_path / "home")
    fixed = {str(tmp_path), str(tmp_path / "real")}
    monkeypatch.setattr("toolway.upstream.process.path_facts.can_change", lambda folder: folder not in fixed)
    assert replaceable_link(str(tmp_path / "home/me")) == ""
    (tmp_path / "real/me/own").symlink_to("../me")
    assert replaceable_link(str(tmp_path / "home/me/own/x")) == str(tmp_path / "real/me/own")


@needs_bubblewrap
@pytest.mark.attack("A2-NB3")
@pytest.mark.parametrize("is_absolute", [True, False])
async def test_startup_file_cannot_be_written_through_its_link(machine: Machine, is_absolute: bool) -> None:
    target = machine.home / "dotfiles/bashrc"
    target.parent.mkdir()
    target.write_text("mine")
    (machine.home / ".bashrc").symlink_to(target if is_absolute else "dotfiles/bashrc")
    code = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "a").write("planted")
    except OSError:
        print("refused")
"""
    assert (await machine.run(code, machine.home / ".bashrc", target)).split() == ["refused", "refused"]
    assert target.read_text() == "mine"


# -- mounts -----------------------------------------------------------------------------------------------------------

#: In its own mount namespace: the home folder is mounted at a second place, and a server reads there.
SECOND_PLACE = """
import asyncio, subprocess, sys
from pathlib import Path
from tests.attacks.test_sandbox_paths import OWN, Machine
from toolway.upstream.process import bubblewrap
folder, kind = Path(sys.argv[1]), sys.argv[2]
if kind == "landlock":
    bubblewrap.find_program = lambda: None
async def main():
    machine = Machine(folder)
    second = folder / "second place"
    second.mkdir()
    subprocess.run(["mount", "--bind", machine.home, second], check=True)
    code = "import sys\\nfor path in sys.argv[1:]:\\n"
    code += "    try: print(open(path).read())\\n    except OSError: print('refused')"
    names = OWN if kind == "landlock" else (*OWN, ".ssh")
    files = [base / name / "file" for base in (machine.home, second) for name in names]
    print(await machine.run(code, *files))
    await machine.spawner.close()
asyncio.run(main())
"""


@needs_bubblewrap
@pytest.mark.attack("A2-NB4")
@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_hidden_folder_is_hidden_at_every_mount(tmp_path: Path, kind: str) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    command = [*namespace, sys.executable, "-c", SECOND_PLACE, str(tmp_path), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    found = done.stdout.split()
    assert set(found) == {"refused"} and len(found) >= 6, done.stdout + done.stderr


# -- the next start of a server in strict -----------------------------------------------------------------------------


def link_to_keys(machine: Machine, granted: Path) -> Path:
    (granted / "work").symlink_to(machine.home / ".ssh")
    return granted / "work"


def script_of_keys(machine: Machine, granted: Path) -> Path:
    script = granted / "server"
    script.write_text(f"#!/usr/bin/env -S -u {machine.home}/.ssh/file cat\n")
    script.chmod(0o755)
    return script


@needs_bubblewrap
@pytest.mark.attack("A2-NB5")
@pytest.mark.parametrize("with_bubblewrap", [True, False])
@pytest.mark.parametrize("way", ["cwd", "read", "write", "interpreter", "program"])
async def test_planted_link_in_a_writable_folder_is_rejected_at_start(
    machine: Machine, way: str, with_bubblewrap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_bubblewrap:
        monkeypatch.setattr(bubblewrap, "find_program", lambda: None)
    granted = machine.folder / "granted"
    granted.mkdir()
    (machine.home / ".ssh/run").write_text("#!/bin/sh\n")
    (machine.home / ".ssh/run").chmod(0o755)
    make: Callable[[Machine, Path], Path] = script_of_keys if way == "interpreter" else link_to_keys
    planted = make(machine, granted)
    read, write = ((str(planted),) if way == each else () for each in ("read", "write"))
    grants = SandboxGrants(read, (str(granted), *write))
    command = {"interpreter": str(planted), "program": str(planted / "run")}.get(way, "cat")
    with pytest.raises(SpawnError, match="the server can change where it leads") as refused:
        cwd = planted if way == "cwd" else None
        await machine.run("", machine.home / ".ssh/file", command=command, sandbox="strict", grants=grants, cwd=cwd)
    assert refused.value.code == "E-SANDBOX"


def test_linked_program_in_a_writable_folder_needs_a_grant(tmp_path: Path) -> None:
    (tmp_path / "project/bin").mkdir(parents=True)
    (tmp_path / "python/bin").mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / "python/bin/python")
    (tmp_path / "project/bin/python").symlink_to(tmp_path / "python/bin/python")
    (tmp_path / "project/bin/sh").symlink_to("/bin/sh")
    program, project, env = str(tmp_path / "project/bin/python"), str(tmp_path / "project"), {"PATH": "/bin"}
    with pytest.raises(ValueError, match=r"grant .*python/bin/python as well"):
        shown_paths.readable_paths([program], env, project, SandboxGrants((), (project,)))
    grants = SandboxGrants((str(tmp_path / "python"),), (project,))
    assert str(tmp_path / "python") in shown_paths.readable_paths([program], env, project, grants)
    system = shown_paths.readable_paths([f"{project}/bin/sh"], env, None, SandboxGrants((), (project,)))
    assert system == []
    nested = SandboxGrants((f"{project}/bin",), (project, f"{project}/bin"))
    assert (shown_paths.readable_paths(["sh"], env, None, nested), shown_paths.writable_paths(nested)) == (
        [],
        [project],
    )


# -- sockets, descriptors and terminals -------------------------------------------------------------------------------

CONNECT = """
import json, socket, sys
got = []
for family, address in json.loads(sys.argv[1]):
    try:
        with socket.socket(family) as sock:
            sock.settimeout(5)
            sock.connect(tuple(address) if isinstance(address, list) else address)
        got.append(address)
    except OSError:
        pass
print(json.dumps(got))
"""


@needs_bubblewrap
@pytest.mark.skipif(landlock.abi_version() < landlock.STRICT_ABI, reason="abstract sockets need Landlock of Linux 6.12")
@pytest.mark.attack("A2-NB6")
async def test_network_grant_does_not_open_abstract_sockets(machine: Machine) -> None:
    name = f"\0canary-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as tcp:
        abstract.bind(name)
        abstract.listen()
        port = tcp.getsockname()[1]
        addresses = json.dumps([[socket.AF_UNIX, name], [socket.AF_INET, ["127.0.0.1", port]]])
        grants = SandboxGrants(all_hosts=True)
        found = json.loads(await machine.run(CONNECT, addresses, sandbox="strict", grants=grants))
    assert found == [["127.0.0.1", port]]


@needs_bubblewrap
@pytest.mark.attack("A2-held-B1")
async def test_strict_reaches_no_service_by_any_kind_of_socket(machine: Machine) -> None:
    path = str(machine.home / "agent.sock")
    with socket.socket(socket.AF_UNIX) as agent, socket.create_server(("::1", 0), family=socket.AF_INET6) as tcp:
        agent.bind(path)
        agent.listen()
        services = ("/run/docker.sock", "/run/dbus/system_bus_socket", f"/run/user/{os.getuid()}/bus", path)
        addresses = [[socket.AF_UNIX, each] for each in (*services, "/tmp/.X11-unix/X0", "\0/tmp/.X11-unix/X0")]
        tried = json.dumps([*addresses, [socket.AF_INET6, ["::1", tcp.getsockname()[1]]]])
        assert json.loads(await machine.run(CONNECT, tried, sandbox="strict")) == []


@needs_bubblewrap
@pytest.mark.attack("A2-held-B2")
@pytest.mark.parametrize("sandbox", ["guard", "strict"])
async def test_sandboxed_server_has_no_open_descriptors_or_terminal(machine: Machine, sandbox: Sandbox) -> None:
    code = """
import fcntl, os
kinds = {os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd") if int(fd) < 3}
others = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
try:
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")
    kinds.add("terminal")
except OSError:
    pass
print(sorted(kinds), others)
"""
    assert await machine.run(code, sandbox=sandbox) == "['pipe'] []"
