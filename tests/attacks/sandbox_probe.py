"""Attacks of a server from inside its sandbox; prints what each of them got as one JSON object.

python -I -S sandbox_probe.py FACTS.json-as-text
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLONE_NEWUSER = 0x10000000
CLONE_NEWNS = 0x00020000
libc = ctypes.CDLL(None, use_errno=True)


def read(path: str) -> str:
    return Path(path).read_text()[:200]


def find(path: str, words: str) -> str:
    if words not in Path(path).read_bytes().decode(errors="replace"):
        raise OSError("another process")
    return "found"


def capabilities() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    if not int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16):
        raise OSError("none")
    return "capabilities"


def without_capabilities(attack: Callable[[], str]) -> str:
    """Run an attack that would change this machine, unless it could: that the process has capabilities is reported."""
    try:
        capabilities()
    except OSError:
        return attack()
    raise OSError("not tried")


def write(path: str) -> str:
    with open(path, "a") as file:
        file.write("planted\n")
    return "written"


def signal_process(pid: int) -> str:
    os.kill(pid, 0)
    return "signalled"


def connect(family: socket.AddressFamily, address: Any) -> str:
    with socket.socket(family) as sock:
        sock.settimeout(5)
        sock.connect(address)
    return "connected"


def syscall(result: int) -> str:
    if result:
        raise OSError(ctypes.get_errno(), "refused")
    return "done"


def in_child(attack: Callable[[], str]) -> str:
    """Run an attack in a child process, so it does not change this one."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writer, attack().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    found = os.read(reader, 1000).decode()
    if not found:
        raise OSError("refused")
    return found


def nested_namespace() -> str:
    syscall(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    return "namespace"


def uncover(folder: str, secret: str) -> str:
    for target in (folder, os.path.dirname(folder)):
        libc.umount2(target.encode(), 2)
    return read(secret)


def uncover_in_namespace(folder: str, secret: str) -> str:
    uid = os.getuid()
    syscall(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    return uncover(folder, secret)


def memory(limit: int) -> str:
    with mmap.mmap(-1, limit, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as data:  # not touched
        return f"{len(data)} bytes"


def through_symlink(folder: str, secret: str) -> str:
    link = f"{folder}/link"
    if not os.path.islink(link):
        os.symlink(secret, link)
    return read(link)


def main() -> None:
    facts = json.loads(sys.argv[1])
    attacks: dict[str, Callable[[], Any]] = {
        "read an ssh key": lambda: read(facts["ssh_key"]),
        "read the token of the gateway": lambda: read(facts["token"]),
        "read the credentials of a cloud": lambda: read(facts["cloud"]),
        "read a file of logins": lambda: read(facts["netrc"]),
        "read the settings of another MCP client": lambda: read(facts["client"]),
        "write a startup file": lambda: write(facts["startup"]),
        "write our configuration": lambda: write(facts["config"]),
        "see another process": lambda: find(f"/proc/{facts['pid']}/cmdline", facts["tag"]),
        "read the environment of another process": lambda: find(f"/proc/{facts['pid']}/environ", facts["tag"]),
        "signal another process": lambda: signal_process(facts["pid"]),
        "mount": lambda: without_capabilities(lambda: syscall(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))),
        "unmount what hides a folder": lambda: without_capabilities(
            lambda: in_child(lambda: uncover(os.path.dirname(facts["token"]), facts["token"]))
        ),
        "unmount it in a namespace": lambda: in_child(
            lambda: uncover_in_namespace(os.path.dirname(facts["token"]), facts["token"])
        ),
        "follow a symlink in a granted folder": lambda: through_symlink(facts["granted"], facts["ssh_key"]),
        "read a folder that is not granted": lambda: read(facts["private"]),
        "write a folder that is granted for reading": lambda: write(facts["readable"]),
        "write the system": lambda: write(facts["system"]),
        "read the passwords of the system": lambda: read("/etc/shadow") and "read",
        "connect to a service of this machine": lambda: connect(socket.AF_INET, ("127.0.0.1", facts["port"])),
        "connect to an abstract socket": lambda: connect(socket.AF_UNIX, "\0" + facts["abstract"]),
        "connect to a socket in a temporary folder": lambda: connect(socket.AF_UNIX, facts["socket"]),
        "create a nested namespace": lambda: in_child(nested_namespace),
        "have capabilities": capabilities,
        "allocate all memory": lambda: memory(facts["memory"]),
    }
    got = {}
    if facts.get("only"):
        attacks = {name: attacks[name] for name in facts["only"]}
    for name, attack in attacks.items():
        try:
            got[name] = str(attack())
        except BaseException as exc:
            got[name] = f"refused: {type(exc).__name__}"
    got["write a granted folder"] = write(f"{facts['granted']}/new") if facts.get("strict") else ""
    got["limits"] = str(resource.getrlimit(resource.RLIMIT_DATA))
    print(json.dumps(got), flush=True)


if __name__ == "__main__":
    main()
