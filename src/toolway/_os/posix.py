"""Linux and macOS: flock, fdatasync or F_FULLFSYNC, rlimits, XDG folders, fork, signals."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

assert sys.platform != "win32"

if TYPE_CHECKING:
    import asyncio
    import subprocess

HAS_FORK: Final = True
O_PRIVATE: Final = os.O_CLOEXEC | os.O_NOFOLLOW  # flags of a file of our own: not inherited, no symbolic link
O_NONBLOCK: Final = os.O_NONBLOCK | os.O_CLOEXEC  # to open a file that a user names and that may be a pipe

register_at_fork = os.register_at_fork

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
    """Release the lock, also that of copies of the handle in other processes."""
    fcntl.flock(handle, fcntl.LOCK_UN)


def lock_folder_handle(folder: Path) -> int:
    """Return a handle whose lock excludes other writers in a folder. The folder itself is locked."""
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)


# -- durable files ------------------------------------------------------------------------------------------------


def sync_data(handle: int) -> None:
    """Return when the data of an open file is on the disk itself.

    On macOS `fsync` ends in the cache of the drive. F_FULLFSYNC empties it; network file systems refuse that.
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
    """Return when new and renamed files of a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def restrict_to_owner(handle: int) -> None:
    """Let only the owner read and write an open file."""
    os.fchmod(handle, 0o600)


def copy_owner_and_mode(old: os.stat_result, handle: int) -> None:
    """Give an open file the mode of another one, and its owner if that is permitted."""
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, old.st_mode & 0o7777)


# -- limits -------------------------------------------------------------------------------------------------------


def max_open_files() -> int:
    """Return how many files and sockets this process may open; a large number without a limit."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def raise_open_files() -> None:
    """Raise the limit of open files to the most that the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit_own_resources(memory: int = 0, cpu_seconds: int = 0) -> None:
    """Limit this process for the rest of its life: its address space in bytes, and its CPU time."""
    import resource

    if cpu_seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    if memory and sys.platform != "darwin":  # macOS refuses this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def limit_cpu_of_turn(seconds: float) -> None:
    """End this process when it has used so much CPU time from now on; 0 takes the limit back."""
    import signal

    signal.setitimer(signal.ITIMER_PROF, seconds)  # the default action of its signal ends the process


# -- folders ------------------------------------------------------------------------------------------------------


def home_folder(environ: Mapping[str, str]) -> str:
    return environ.get("HOME", "")


def _xdg(environ: Mapping[str, str], variable: str, default: str) -> Path | None:
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


# -- processes and signals ----------------------------------------------------------------------------------------


def base_variables() -> tuple[str, ...]:
    """Return the variables that every server gets."""
    return ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM")


def boot_time() -> float:
    """Return seconds of a clock that also counts while the machine sleeps. On macOS CLOCK_MONOTONIC does."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def process_exists(pid: int) -> bool:
    """Return True if a process runs, of whichever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], object], interrupt: bool = True) -> None:
    """Call `stop` in the event loop on SIGTERM, and with `interrupt` on SIGINT."""
    import signal

    for number in (signal.SIGTERM, *((signal.SIGINT,) if interrupt else ())):
        loop.add_signal_handler(number, stop)


def on_reload_signal(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> None:
    """Call `reload` in the event loop on SIGHUP."""
    import signal

    loop.add_signal_handler(signal.SIGHUP, reload)


def start_detached(argv: Sequence[str], handle: int) -> subprocess.Popen[bytes]:
    """Start a child that outlives us, with pipes, and that holds the lock of an open file as long as it runs."""
    import subprocess

    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(handle,),
        start_new_session=True,  # signals to our process group must not reach it
    )
