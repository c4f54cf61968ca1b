"""Runs a Python program without what only Linux has, under the name of macOS: `as_macos.py [-m MODULE | FILE] ARG…`.

It cannot show what macOS does differently in functions that both have. It shows that nothing calls what macOS lacks.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import runpy
import socket
import ssl
import subprocess
import sys
import time
from typing import Any

LINUX_ONLY = {
    os: (
        *("fdatasync", "sched_getaffinity", "pipe2", "memfd_create", "pidfd_open", "posix_fadvise", "getrandom"),
        *("O_PATH", "O_TMPFILE", "setns", "unshare", "eventfd", "splice", "copy_file_range"),
    ),
    socket: ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_NETLINK", "AF_VSOCK"),
    time: ("CLOCK_BOOTTIME",),
}


def become_macos() -> None:
    """Remove what only Linux has, after `asyncio`, `ssl` and `subprocess` have adapted to the real system."""
    _ = asyncio, ssl, subprocess
    for module, names in LINUX_ONLY.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    fcntl.F_FULLFSYNC = 51  # type: ignore[attr-defined] # Linux refuses it, as a network file system of macOS does
    real = ctypes.CDLL.__getattr__

    def find(library: ctypes.CDLL, name: str) -> Any:
        if name in ("prctl", "syscall"):
            raise AttributeError(f"macOS has no {name}")
        return real(library, name)

    ctypes.CDLL.__getattr__ = find  # type: ignore[method-assign]
    sys.platform = "darwin"
    wrapper = os.environ.get("AS_MACOS_PYTHON")
    if wrapper:
        sys.executable = wrapper  # so that programs of ours are on the same macOS


def main() -> None:
    words = [word for word in sys.argv[1:] if word not in ("-I", "-S")]
    become_macos()
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
