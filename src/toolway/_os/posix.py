"""Files, limits and folders on Linux and macOS: flock, fdatasync or F_FULLFSYNC, rlimits, XDG."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

assert sys.platform != "win32"

if TYPE_CHECKING:  # every command loads this module: it imports little
    import io
    import socket
    from pathlib import Path

SYSTEM_NAME: Final[Literal["linux", "darwin", "win32"]] = "darwin" if sys.platform == "darwin" else "linux"
HAS_DRIVES: Final = False  # paths begin with a drive, such as C:
O_UNSHARED: Final = os.O_CLOEXEC  # flags of a file that no child process inherits, read and written byte by byte
O_PRIVATE: Final = O_UNSHARED | os.O_NOFOLLOW  # and whose name is not a symbolic link
O_NONBLOCK: Final = O_UNSHARED | os.O_NONBLOCK  # to open a file that a user names and that may be a pipe

# -- locks --------------------------------------------------------------------------------------------------------


def lock_handle(handle: int) -> None:
    """Lock an open file, and wait until it is free. Closing the last copy of the handle releases the lock."""
    fcntl.flock(handle, fcntl.LOCK_EX)


def try_lock_handle(handle: int) -> bool:
    """Lock an open file without waiting. Return False if another handle holds the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_handle(handle: int) -> None:
    """Release the lock, including the one held by copies of the handle in other processes."""
    fcntl.flock(handle, fcntl.LOCK_UN)


def lock_folder_handle(folder: Path) -> int:
    """Return a handle whose lock excludes other writers in a folder. The folder itself is locked."""
    return os.open(folder, os.O_RDONLY | O_UNSHARED)


# -- durable and private files ------------------------------------------------------------------------------------


def sync_data(handle: int) -> None:
    """Return once an open file's data is on the disk itself.

    On macOS, `fsync` only reaches the drive's cache. F_FULLFSYNC empties that cache, but network file systems reject
    it.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(handle)
    elif sys.platform == "linux":
        os.fdatasync(handle)
    else:
        os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Return once a folder's new and renamed files are on disk."""
    handle = os.open(folder, os.O_RDONLY | O_UNSHARED)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def restrict_to_owner(handle: int) -> None:
    """Let only the owner read and write an open file."""
    os.fchmod(handle, 0o600)


def copy_owner_and_mode(old: os.stat_result, handle: int) -> None:
    """Give an open file another file's mode, and its owner if that is permitted."""
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, old.st_mode & 0o7777)


def set_pipe_encoding(stream: io.TextIOWrapper) -> None:
    """Do nothing: the locale determines the text encoding, in a terminal and in a pipe."""


# -- limits and machine -------------------------------------------------------------------------------------------


def max_open_files() -> int:
    """Return how many files and sockets this process may open, or a large number without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def raise_open_files() -> None:
    """Raise the limit on open files to the most that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def usable_cores() -> int:
    """Return how many cores this process may use. macOS cannot restrict a process to some of its cores."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_name() -> str:
    """Return the system, processor, and C library, as package locks name them: `linux-x86_64`, `macos-arm64`."""
    import platform

    if sys.platform == "darwin":
        return f"macos-{platform.machine().lower()}"
    libc = "-musl" if sys.platform == "linux" and not platform.libc_ver()[0] else ""
    return f"{sys.platform}-{platform.machine().lower()}{libc}"


def allow_rebinding(listener: socket.socket) -> None:
    """Let a socket bind an address where an ended process's last connections are still closing."""
    import socket

    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


# -- folders ------------------------------------------------------------------------------------------------------


def home_folder(environ: Mapping[str, str]) -> str:
    return environ.get("HOME", "")


def _xdg(environ: Mapping[str, str], variable: str, default: str) -> Path | None:
    from pathlib import Path

    home = environ.get("HOME")
    base = environ.get(variable) or (f"{home}/{default}" if home else "")
    return Path(base) / "toolway" if base else None


def config_folder(environ: Mapping[str, str]) -> Path | None:
    return _xdg(environ, "XDG_CONFIG_HOME", ".config")


def state_folder(environ: Mapping[str, str]) -> Path | None:
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def data_folder(environ: Mapping[str, str]) -> Path | None:
    return _xdg(environ, "XDG_DATA_HOME", ".local/share")


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")
