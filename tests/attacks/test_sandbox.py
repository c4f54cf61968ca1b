"""Attacks of a server from inside the sandboxes `guard` and `strict`, with a real bubblewrap."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolway import Hub
from toolway.cli.commands.approvals.sandbox import find_missing, suggest_entry
from toolway.config.exposure import find_rules
from toolway.config.schema import DefaultSandbox, Sandbox, SandboxGrants
from toolway.config.server_entry import parse_entry
from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.network.policy import ALLOW_ALL
from toolway.upstream.process import bubblewrap, landlock
from toolway.upstream.process.host_proxy import HostProxy
from toolway.upstream.process.pipes import read_all
from toolway.upstream.process.sandbox_choice import choose_sandbox
from toolway.upstream.process.shown_paths import program_paths
from toolway.upstream.process.spawner import Process, Spawner, SpawnError

pytestmark = pytest.mark.anyio
PROBE = Path(__file__).with_name("sandbox_probe.py")
SHELL = Path(__file__).with_name("shell_server.py")


def can_sandbox() -> bool:
    """Return True if bubblewrap is installed and may create namespaces here."""
    program = bubblewrap.find_program()
    command = [program or "", "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "true"]
    return program is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


LOGIN = {"issuer": "https://login.example", "audience": "https://tools.example/mcp"}
needs_bubblewrap = pytest.mark.skipif(not can_sandbox(), reason="bubblewrap is not installed, or it has no namespaces")

#: Attacks that `guard` does not prevent: it changes nothing but what it hides.
LEFT_TO_GUARD = {
    "read a folder that is not granted",
    "write a folder that is granted for reading",
    "read the passwords of the system",
    "connect to a service of this machine",
    "connect to an abstract socket",
    "connect to a socket in a temporary folder",
    "create a nested namespace",
    "allocate all memory",
    "write the system",
}


class Lab:
    """A home folder with secrets, another process with a secret, and services of this machine."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.granted, self.readable, self.private = (folder / name for name in ("granted", "readable", "private"))
        self.own = self.home / ".local/state/toolway"
        files = (".ssh/id_rsa", ".aws/credentials", ".netrc", ".claude.json", ".bashrc", ".local/state/toolway/token")
        for name in (*files, ".config/toolway/mcp.json"):
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(f"secret of {name}")
        for each in (self.granted, self.readable, self.private):
            each.mkdir()
            (each / "file").write_text("content")
        tag = f"canary-{os.getpid()}"
        self.other = subprocess.Popen(
            [sys.executable, "-c", f"import time; time.sleep(600)  # {tag}"], env={"SECRET": tag}, close_fds=True
        )
        self.tcp, self.abstract, self.local = (
            socket.create_server(("127.0.0.1", 0)),
            *(socket.socket(socket.AF_UNIX) for _ in range(2)),
        )
        self.abstract.bind("\0" + tag)
        path = f"/tmp/{tag}"
        self.local.bind(path)
        for listener in (self.abstract, self.local):
            listener.listen()
        self.facts: dict[str, Any] = {
            "ssh_key": str(self.home / ".ssh/id_rsa"),
            "token": str(self.own / "token"),
            "pid": self.other.pid,
            "cloud": str(self.home / ".aws/credentials"),
            "netrc": str(self.home / ".netrc"),
            "tag": tag,
            "client": str(self.home / ".claude.json"),
            "startup": str(self.home / ".bashrc"),
            "config": str(self.home / ".config/toolway/mcp.json"),
            "granted": str(self.granted),
            "private": str(self.private / "file"),
            "readable": str(self.readable / "file"),
            "abstract": tag,
            "port": self.tcp.getsockname()[1],
            "socket": path,
            "memory": 5 << 30,
        }

    def close(self) -> None:
        self.other.kill()
        self.other.wait()
        for listener in (self.tcp, self.abstract, self.local):
            listener.close()
        Path(self.facts["socket"]).unlink()

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"]}

    async def attack(self, sandbox: Sandbox, *only: str, default: DefaultSandbox = "auto") -> dict[str, str]:
        """Run all attacks, or only some, in a sandbox. Return what each of them got."""
        spawner = Spawner(None, [self.own, self.home / ".config/toolway"])
        spawner.default_sandbox = default
        grants = SandboxGrants((str(self.readable),), (str(self.granted),))
        system = "/usr/planted" if sandbox == "strict" else str(self.private / "planted")
        facts = json.dumps({**self.facts, "strict": sandbox == "strict", "system": system, "only": only})
        try:
            argv = [sys.executable, "-I", "-S", str(PROBE), facts]
            process = await spawner.start(argv, self.env, None, sandbox, grants)
            found: dict[str, str] = json.loads(await read_output(process))
            return found
        finally:
            await spawner.close()


async def read_output(process: Process) -> str:
    """Wait for the end of a process; return what it printed."""
    async with asyncio.timeout(60):
        await process.exited
    process.stdin.close()
    async with asyncio.timeout(60):  # a forwarder may end a moment later
        output, errors = [(await read_all(pipe, 1 << 20)).decode() for pipe in (process.stdout, process.stderr)]
    assert output, errors
    return output


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


def succeeded(found: dict[str, str], *left_out: str) -> set[str]:
    shown = {name for name, got in found.items() if not got.startswith("refused")}
    return shown - {"write a granted folder", "limits", *left_out}


@needs_bubblewrap
@pytest.mark.attack("R3-held-4")
async def test_guard_blocks_attacks_on_files_and_processes(lab: Lab) -> None:
    found = await lab.attack("guard")
    # A write into a hidden folder goes to an empty one in memory.
    assert succeeded(found, "write our configuration") <= LEFT_TO_GUARD, found
    assert len(found.keys() - LEFT_TO_GUARD) >= 15
    unchanged = (lab.home / ".config/toolway/mcp.json", lab.home / ".bashrc")
    assert not any("planted" in each.read_text() for each in unchanged)


@needs_bubblewrap
@pytest.mark.parametrize("default", ["guard", "guard-if-possible"])
async def test_default_sandbox_protects_keys(lab: Lab, default: DefaultSandbox) -> None:
    attacks = ("read an ssh key", "read the token of the gateway", "see another process", "signal another process")
    assert succeeded(await lab.attack("auto", *attacks, default=default)) == set()
    assert "read an ssh key" in succeeded(await lab.attack("auto", *attacks))


@pytest.mark.parametrize(
    ("own", "default", "with_bubblewrap", "without"),
    [
        ("auto", "auto", "auto", "auto"),
        ("auto", "guard", "guard", "guard"),  # it was asked for, so without it the server does not start
        ("auto", "guard-if-possible", "guard", "auto"),
        ("off", "guard", "off", "off"),
        ("strict", "guard-if-possible", "strict", "strict"),
    ],
)
def test_entry_without_a_sandbox_uses_the_gateway_default(
    own: Sandbox, default: DefaultSandbox, with_bubblewrap: str, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for found, expected in (("/usr/bin/bwrap", with_bubblewrap), (None, without)):
        monkeypatch.setattr(bubblewrap, "find_program", lambda found=found: found)
        assert choose_sandbox(own, default) == expected


@pytest.mark.parametrize(
    ("block", "default"),
    [
        ({}, "auto"),
        ({"login": LOGIN}, "guard-if-possible"),
        ({"login": LOGIN, "sandbox": "auto"}, "auto"),
        ({"sandbox": "guard"}, "guard"),
    ],
)
def test_gateway_with_login_guards_servers_by_default(block: dict[str, Any], default: str) -> None:
    assert find_rules(parse_gateway({"gateway": block}, {})).default_sandbox == default


@needs_bubblewrap
@pytest.mark.attack("R3-held-5")
async def test_strict_grants_nothing_beyond_the_entry(lab: Lab) -> None:
    found = await lab.attack("strict")
    # The home folder is a private one: what is written there is nowhere else.
    assert succeeded(found) <= {"write our configuration", "write a startup file"} and len(found) >= 24, found
    unchanged = (lab.home / ".config/toolway/mcp.json", lab.home / ".bashrc", lab.readable / "file")
    assert not any("planted" in each.read_text() for each in unchanged)
    assert (lab.granted / "new").read_text() == "planted\n"


@needs_bubblewrap
async def test_attacks_succeed_without_a_sandbox(lab: Lab) -> None:
    harmless = ("read an ssh key", "read the token of the gateway", "see another process", "signal another process")
    chosen = (
        *harmless,
        "connect to a service of this machine",
        "connect to an abstract socket",
        "write a startup file",
    )
    assert succeeded(await lab.attack("off", *chosen)) == {*chosen}


async def test_strict_without_bubblewrap_or_landlock_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bubblewrap, "find_program", lambda: None)
    monkeypatch.setattr(landlock, "abi_version", lambda: landlock.STRICT_ABI - 1)
    spawner = Spawner(None, [])
    with pytest.raises(SpawnError, match="bubblewrap") as refused:
        await spawner.start([sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"], {}, None, "strict")
    assert refused.value.code == "E-SANDBOX"
    assert not (tmp_path / "ran").exists()
    await spawner.close()


@pytest.mark.parametrize(
    ("argv", "grants", "reason"),
    [
        (["npx", "-y", "server"], SandboxGrants(), "registry"),
        (["sh"], SandboxGrants(write=("/nonexistent/folder",)), "/nonexistent/folder does not exist"),
    ],
)
async def test_strict_that_cannot_work_starts_nothing(
    argv: list[str], grants: SandboxGrants, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "find_program", lambda: "/usr/bin/bwrap")
    spawner = Spawner(None, [])
    with pytest.raises(SpawnError, match=reason) as refused:
        await spawner.start(argv, dict(os.environ), None, "strict", grants)
    assert refused.value.code == "E-SANDBOX"
    await spawner.close()


# -- hosts -------------------------------------------------------------------------------------------------------------


def test_proxy_allows_only_granted_hosts_and_ports() -> None:
    proxy = HostProxy(["docs.python.org:443", "*.example.org:8443"], ALLOW_ALL)
    assert proxy.allows("docs.python.org", 443) and proxy.allows("DOCS.python.org.", 443)
    assert proxy.allows("a.b.example.org", 8443)
    for host, port in (
        *(("docs.python.org", 80), ("python.org", 443), ("evil-docs.python.org", 443), ("example.org", 8443)),
        *(("docs.python.org.evil.test", 443), ("127.0.0.1", 443)),
    ):
        assert not proxy.allows(host, port), host


FETCH = """
import http.client, json, os, socket, sys
proxy = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
found = {}
for name in sys.argv[1:]:
    try:
        connection = http.client.HTTPConnection(*proxy, timeout=10)
        connection.set_tunnel(name.split(":")[0], int(name.split(":")[1]))
        connection.request("GET", "/")
        found[name] = connection.getresponse().read().decode()
    except OSError as exc:
        found[name] = str(exc)
try:
    socket.create_connection(sys.argv[1].split(":"), timeout=5)
    found["direct"] = "connected"
except OSError as exc:
    found["direct"] = "refused"
print(json.dumps(found), flush=True)
"""


@needs_bubblewrap
async def test_server_reaches_only_granted_hosts_through_the_proxy(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    service = await asyncio.start_server(answer, "127.0.0.1", 0)
    granted, other = f"localhost:{service.sockets[0].getsockname()[1]}", "localhost:1"
    proxy = HostProxy([granted], ALLOW_ALL)
    await proxy.start()
    spawner = Spawner(None, [])
    try:
        env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        argv = [sys.executable, "-I", "-S", "-c", FETCH, granted, other]
        process = await spawner.start(argv, env, None, "strict", SandboxGrants(hosts=(granted,)), proxy.folder)
        found = json.loads(await read_output(process))
        assert found[granted] == "hello"
        assert "403" in found[other] and proxy.refused == [other]
        assert found["direct"] == "refused"
    finally:
        await spawner.close()
        proxy.close()
        service.close()


# -- entries -----------------------------------------------------------------------------------------------------------


def test_sandbox_object_grants_folders_and_hosts() -> None:
    server = parse_entry({"command": "x", "sandbox": {"write": ["~/docs"], "network": ["docs.python.org"]}})
    assert server.sandbox == "strict"
    assert server.grants == SandboxGrants(write=(os.path.expanduser("~/docs"),), hosts=("docs.python.org:443",))
    assert parse_entry({"command": "x", "sandbox": {"network": True}}).grants.all_hosts
    assert parse_entry({"command": "x", "sandbox": "strict"}).grants == SandboxGrants()


@pytest.mark.parametrize("block", [{"write": ["docs"]}, {"network": ["a b"]}, {"wirte": ["/a"]}, {"network": ["a:b"]}])
def test_invalid_sandbox_is_rejected(block: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_entry({"command": "x", "sandbox": block})


@needs_bubblewrap
@pytest.mark.parametrize("sandbox", ["guard", "strict"])
async def test_real_server_works_in_its_sandbox_and_leaves_nothing(sandbox: str, tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(SHELL)], "sandbox": sandbox}
    async with Hub({"shell": entry}, token_store=None, catalog_storage=None) as hub:
        found = (
            await hub.call_tool("shell.run", {"command": "sleep 1000 >/dev/null 2>&1 & ls /proc | grep -c '^[0-9]'"})
        ).text
        assert int(found.split()[-1]) < 10, "other processes are invisible"
        pid = hub.status()["shell"].pid
        assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_files_of_a_program_are_found(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    module = tmp_path / "app/node_modules"
    (module / ".bin").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/true", tmp_path / "bin/node")
    (module / "server.js").write_text("#!/usr/bin/env node\n")
    (module / ".bin/server").symlink_to("../server.js")
    found = program_paths([str(module / ".bin/server")], env, None)
    assert found == [str(module), str(tmp_path / "bin")]
    script = tmp_path / "app/main.js"
    script.write_text("")
    assert program_paths(["node", str(script)], env, None) == [str(tmp_path / "bin"), str(tmp_path / "app")]
    (tmp_path / "main.js").write_text("")
    assert str(tmp_path) not in program_paths(["node", str(tmp_path / "main.js")], env, None)
    with pytest.raises(FileNotFoundError):
        program_paths(["no-such-program"], env, None)


def test_missing_folders_are_suggested_as_an_entry(tmp_path: Path) -> None:
    server = parse_entry({"command": "x", "sandbox": {"write": [str(tmp_path / "granted")]}})
    (tmp_path / "data").mkdir()
    text = f"Error: ENOENT: no such file or directory, open '{tmp_path}/data'\n{tmp_path}/never /usr/bin/env"
    assert find_missing(text, server) == [f"{tmp_path}/data"]
    assert suggest_entry(server, [f"{tmp_path}/data"]) == {
        "read": [f"{tmp_path}/data"],
        "write": [str(tmp_path / "granted")],
    }
