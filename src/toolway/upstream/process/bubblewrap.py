"""bubblewrap command lines: what a server can see and reach in the sandboxes `guard` and `strict`.

`guard` only makes these changes: folders of Toolway, of other MCP clients, and with keys or cloud credentials appear
empty, startup files are read-only, processes outside are invisible, and the server has no capabilities.

`strict` starts from nothing: the system is read-only, the home folder and temporary folders are empty and private,
the network is off, and only what the server's entry grants is added.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolway.config.schema import SandboxGrants
from toolway.upstream.process import control_group
from toolway.upstream.process.limits import ResourceLimits
from toolway.upstream.process.path_facts import all_places, contains, renamable_ancestors
from toolway.upstream.process.shown_paths import (
    SYSTEM_PATHS,
    find_command,
    program_paths,
    readable_paths,
    writable_paths,
)

PROGRAM: Final = "bwrap"
#: In the home folder: keys, logins of clouds and browsers, and settings of MCP clients, which have secrets of servers.
SECRET_PATHS: Final = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".oci", ".config/gcloud", ".config/gh", ".config/op"),
    *(".password-store", ".local/share/keyrings", ".mozilla", ".config/google-chrome", ".config/chromium"),
    *(".netrc", ".pgpass", ".pypirc", ".git-credentials", ".config/rclone", ".terraform.d", ".vault-token"),
    *(".claude", ".claude.json", ".config/Claude", ".cursor", ".codeium", ".codex", ".gemini", ".continue"),
)
#: In the home folder: what runs with the next login or the next shell.
STARTUP_PATHS: Final = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile"),
    *(".zlogin", ".config/fish", ".config/autostart", ".config/systemd", ".xprofile", ".xsession"),
)
ETC_PATHS: Final = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "ca-certificates", "pki", "crypto-policies"),
    *("passwd", "group", "nsswitch.conf", "hosts", "host.conf", "resolv.conf", "localtime", "timezone", "mime.types"),
    *("fonts", "magic", "terminfo", "os-release", "debian_version", "services", "protocols", "gai.conf"),
)
PACKAGE_RUNNERS: Final = frozenset({"npx", "bunx", "pnpx", "uvx", "pipx"})  # they ask a registry on each start
PRIVATE_FOLDER_BYTES: Final = 1 << 30  # of each private folder in `strict`, which is in memory
PROXY_FOLDER: Final = "/run/toolway"  # in `strict`, if the entry grants hosts
FORWARDER: Final = "/run/toolway-forwarder.py"


@functools.cache
def find_program() -> str | None:
    """Return the path of bubblewrap, or None if it is not installed, or may not create namespaces here.

    The first call tries it, which takes milliseconds, so call this in a thread.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        return None
    trial = [
        path,
        "--ro-bind",
        "/",
        "/",
        "--unshare-pid",
        "--unshare-ipc",
        "--proc",
        "/proc",
        "--",
        "/bin/sh",
        "-c",
        ":",
    ]
    try:
        return path if subprocess.run(trial, capture_output=True, timeout=10, check=False).returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        return None


def guard_command(
    program: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    hidden: Iterable[str],
    kept: Iterable[str],
    limits: ResourceLimits,
) -> list[str]:
    """Return the command line that runs `argv` in the sandbox `guard`.

    `hidden` are Toolway's own folders and files, `kept` folders inside them that servers need. A control group is
    read-only to keep a server from lifting its limits. Raises `FileNotFoundError` if the program does not exist.
    """
    find_command(argv[0], env, cwd)
    home = env.get("HOME", "")
    command = [program, "--dev-bind", "/", "/", "--unshare-pid", "--unshare-ipc", "--proc", "/proc"]
    command += ["--die-with-parent", "--cap-drop", "ALL"]
    at_home = [f"{home}/{name}" for name in STARTUP_PATHS] if home else []
    startup = [path for path in all_places(at_home) if path != "/dev/null"]
    secret = all_places([*hidden, *(f"{home}/{name}" for name in SECRET_PATHS if home)])
    for folder in renamable_ancestors([*startup, *secret]):
        command += ["--dev-bind", folder, folder]  # a mount point cannot be renamed
    for path in startup:
        command += ["--ro-bind", path, path]
    command += _hide(secret)
    for path in filter(os.path.isdir, map(os.path.realpath, kept)):
        command += ["--ro-bind", path, path]
    command += ["--ro-bind", control_group.ROOT, control_group.ROOT] if limits.group else []
    return [*command, "--chdir", cwd or os.getcwd(), "--", *limits.wrap([*argv])]


def strict_command(
    program: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    hidden: Iterable[str],
    grants: SandboxGrants,
    proxy_folder: str,
    limits: ResourceLimits,
) -> list[str]:
    """Return the command line that runs `argv` in the sandbox `strict`.

    `hidden` stays hidden even if a granted folder contains it. `proxy_folder` has the socket of the proxy for granted
    hosts. Raises `FileNotFoundError` if the program or a granted path does not exist, and `ValueError` if the command
    needs a package registry but no host is granted.
    """
    refuse_package_runner(argv, grants)
    home = env.get("HOME") or "/nonexistent"
    command = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--cap-drop", "ALL"]
    command += ["--share-net"] if grants.all_hosts else []
    for path in SYSTEM_PATHS:
        command += _system_path(path)
    for name in ETC_PATHS:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    command += ["--dev", "/dev", "--proc", "/proc"]
    for path in ("/dev/shm", "/tmp", "/var/tmp", "/run", home):
        command += ["--size", str(PRIVATE_FOLDER_BYTES), "--tmpfs", path]
    command += ["--setenv", "TMPDIR", "/tmp"]
    readable = readable_paths(argv, env, cwd, grants)
    writable = writable_paths(grants)
    if proxy_folder:
        readable += program_paths([sys.executable], env, None)
        argv = [sys.executable, "-I", "-S", FORWARDER, f"{PROXY_FOLDER}/proxy.sock", *argv]
    for option, paths in (("--ro-bind", readable), ("--bind", writable)):
        for path in dict.fromkeys(paths):
            command += [option, path, path]
    shown = [*readable, *writable]
    command += _hide(path for path in all_places(hidden) if any(contains(each, path) for each in shown))
    if proxy_folder:
        command += ["--ro-bind", proxy_folder, PROXY_FOLDER]
        command += ["--ro-bind", str(Path(__file__).with_name("forwarder.py")), FORWARDER]
    return [*command, "--remount-ro", "/", "--chdir", cwd or home, "--", *limits.wrap([*argv])]


def refuse_package_runner(argv: Sequence[str], grants: SandboxGrants) -> None:
    """Raise `ValueError` if a command such as npx needs a package registry that is not granted."""
    if os.path.basename(argv[0]) in PACKAGE_RUNNERS and not (grants.all_hosts or grants.hosts):
        raise ValueError(f"{argv[0]} asks a registry at each start: lock the package with toolway trust lock")


def _system_path(path: str) -> list[str]:
    """Return the bubblewrap options for a system folder: read-only, or the same symbolic link.

    `/bin` is a link to `usr/bin` on most systems.
    """
    return ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]


def _hide(paths: Iterable[str]) -> list[str]:
    """Return the bubblewrap options that make these folders and files appear empty."""
    options: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths if os.path.exists(path)}):
        options += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
    return options


def create_missing(folders: Iterable[str]) -> None:
    """Create Toolway's missing folders, so no server can create them with its own config."""
    for folder in folders:
        with suppress(OSError):  # then the server cannot create it, either
            os.makedirs(folder, 0o700, exist_ok=True)
