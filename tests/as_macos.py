"""Runs a Python program without what only Linux has, under the name of macOS: `as_macos.py [-m MODULE | FILE] ARG…`.

It cannot show what macOS does differently in functions that both have. It shows that nothing needs what macOS lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import platform
import resource
import runpy
import select
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable
from typing import Any, Final

#: Names that Python has on Linux and not on macOS, by module.
LINUX_ONLY: Final = {
    os: (
        *("fdatasync", "sched_getaffinity", "sched_setaffinity", "pipe2", "memfd_create", "pidfd_open", "getrandom"),
        *("posix_fadvise", "posix_fallocate", "setns", "unshare", "eventfd", "splice", "copy_file_range"),
        *("getresuid", "getresgid", "setresuid", "setresgid", "getxattr", "setxattr", "listxattr", "removexattr"),
        *("O_PATH", "O_TMPFILE", "O_DIRECT", "O_NOATIME", "O_LARGEFILE", "O_RSYNC", "waitid"),
    ),
    socket: (
        *("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_QUICKACK", "TCP_CORK", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        *("AF_NETLINK", "AF_VSOCK", "AF_PACKET", "SO_PEERCRED", "SO_DOMAIN", "SO_PROTOCOL", "SO_MARK"),
        *("MSG_NOSIGNAL", "MSG_MORE", "MSG_CMSG_CLOEXEC", "SO_BINDTODEVICE"),
    ),
    select: ("epoll", "EPOLLIN", "EPOLLOUT", "EPOLLRDHUP", "EPOLL_CLOEXEC", "POLLRDHUP"),
    signal: (
        "pidfd_send_signal",
        "sigwaitinfo",
        "sigtimedwait",
        "SIGRTMIN",
        "SIGRTMAX",
        "SIGPWR",
        "SIGSTKFLT",
        "SIGPOLL",
    ),
    resource: ("prlimit", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE"),
    fcntl: ("F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_GET_SEALS", "F_OFD_SETLK"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
}
LINUX_FOLDERS: Final = ("/proc", "/sys")
LINUX_FUNCTIONS: Final = ("prctl", "syscall")  # of the C library
F_FULLFSYNC: Final = 51  # Linux refuses it, as a network file system of macOS does
FLAGS: Final = ("-I", "-S", "-P", "-u", "-E", "-s", "-B", "-O")
WITH_VALUE: Final = ("-X", "-W")


def become_macos() -> None:
    """Remove what only Linux has, after the modules that adapt to the real system have done so."""
    _ = asyncio, multiprocessing, ssl, subprocess, urllib.request
    sysconfig.get_config_vars()  # of this Python, which was built for Linux
    with contextlib.suppress(ImportError):
        import truststore  # noqa: F401 # on macOS it asks a framework that Linux lacks
    platform._uname_cache = None  # type: ignore[attr-defined] # what it asked for
    for module, names in LINUX_ONLY.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[assignment,misc] # Linux lacks kqueue
    fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined]
    _hide_functions()
    _hide_folders()
    machine = os.uname()
    named = os.uname_result(("Darwin", machine.nodename, "24.6.0", "Darwin Kernel Version 24.6.0", machine.machine))
    os.uname = lambda: named
    sys.platform = "darwin"
    sys.executable = os.environ.get("AS_MACOS_PYTHON") or sys.executable  # so our programs are on the same macOS


def _hide_functions() -> None:
    real = ctypes.CDLL.__getattr__

    def find(library: ctypes.CDLL, name: str) -> Any:
        if name in LINUX_FUNCTIONS:
            raise AttributeError(f"macOS has no {name}")
        return real(library, name)

    ctypes.CDLL.__getattr__ = find  # type: ignore[method-assign]


def _hide_folders() -> None:
    """Let /proc and /sys look as if they did not exist."""

    def is_hidden(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        name = os.fsdecode(path)
        return any(name == folder or name.startswith(f"{folder}/") for folder in LINUX_FOLDERS)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and is_hidden(arguments[0]):
            raise FileNotFoundError(2, "No such file or directory", arguments[0])

    def hiding(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if is_hidden(path):
                raise FileNotFoundError(2, "No such file or directory", path)
            return real(path, *arguments, **options)

        return call

    sys.addaudithook(refuse)
    for name in ("stat", "lstat", "readlink"):
        setattr(os, name, hiding(getattr(os, name)))


def main() -> None:
    """Run the program that is named like in the arguments of Python."""
    words, isolated = sys.argv[1:], False
    while words and (words[0] in FLAGS or words[0] in WITH_VALUE):
        isolated |= words[0] in ("-I", "-P")
        words = words[2 if words[0] in WITH_VALUE else 1 :]
    if not words:
        raise SystemExit("as_macos.py [-m MODULE | -c PROGRAM | FILE] ARGUMENT…")
    become_macos()
    if not isolated:
        sys.path.insert(0, os.getcwd() if words[0] in ("-m", "-c") else os.path.dirname(os.path.abspath(words[0])))
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})  # noqa: S102 # a program of a test
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
