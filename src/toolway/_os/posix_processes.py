"""Processes, signals and terminals on Linux and macOS."""

from __future__ import annotations

import os
import resource
import select
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import toolway._os.proc as proc

assert sys.platform != "win32"

if TYPE_CHECKING:  # every command loads this module: it imports little
    import asyncio
    import subprocess
    from typing import IO

HAS_SESSIONS: Final = True  # a child can lead a session, whose processes `kill_session` ends together
register_at_fork = os.register_at_fork

# -- processes ----------------------------------------------------------------------------------------------------


def base_variables() -> tuple[str, ...]:
    """Return the variables that every server gets."""
    return ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM")


def boot_time() -> float:
    """Return the seconds of a clock that also counts while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def process_exists(pid: int) -> bool:
    """Return True if a process is running, whoever its user is."""
    if pid <= 0:
        return False  # a group of processes, for `kill`
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def process_start(pid: int) -> str:
    """Return when a process started, for comparison with a later answer, or "" if unknown."""
    return proc.stat_field(pid, proc.STARTED)


def describe_user() -> str:
    """Return the name and number of this process's user, or only the number if the user has no name."""
    import getpass

    try:
        return f"{getpass.getuser()} ({os.getuid()})"
    except (OSError, KeyError):
        return str(os.getuid())


def kill_session(pid: int) -> None:
    """Kill all processes in a child's group. Raises `ProcessLookupError` if there are none."""
    os.killpg(pid, signal.SIGKILL)


def start_detached(argv: Sequence[str], handle: int) -> subprocess.Popen[bytes]:
    """Start a child with pipes that outlives this process, and holds an open file's lock while it is running."""
    import subprocess

    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(handle,),
        start_new_session=True,  # signals to our process group must not reach it
    )


def protect_memory(variables: Iterable[str], secrets: Iterable[str]) -> None:
    """Erase environment variables and secret arguments from the part of this process's memory others can see.

    On Linux, other programs of the same user can then no longer inspect it either. macOS only shows these to a
    debugger.
    """
    if sys.platform == "linux":
        proc.erase_own_memory(variables, secrets)
        proc.forbid_inspection()


def read_line(descriptor: int, timeout: float, max_bytes: int) -> bytes:
    """Read a line from a process's pipe. Return b"" at the end, or after `timeout` seconds of silence."""
    data = b""
    while not data.endswith(b"\n") and len(data) <= max_bytes:
        if not select.select([descriptor], [], [], timeout)[0]:
            return b""
        chunk = os.read(descriptor, 65_536)
        if not chunk:
            return b""
        data += chunk
    return data


# -- signals and time limits --------------------------------------------------------------------------------------


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], object], interrupt: bool = True) -> None:
    """Call `stop` in the event loop on SIGTERM, and with `interrupt` on SIGINT."""
    for number in (signal.SIGTERM, *((signal.SIGINT,) if interrupt else ())):
        loop.add_signal_handler(number, stop)


def on_reload_signal(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> None:
    """Call `reload` in the event loop on SIGHUP."""
    loop.add_signal_handler(signal.SIGHUP, reload)


def outlive_stop_signals() -> None:
    """Let this process ignore the signals that would end it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def limit_lifetime(seconds: int) -> None:
    """End this process after `seconds`."""
    signal.alarm(seconds)


def limit_cpu_of_turn(seconds: float) -> None:
    """End this process when it has used this much more CPU time; 0 cancels the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)  # the default action of its signal ends the process


# -- terminals ----------------------------------------------------------------------------------------------------


def has_desktop(environ: Mapping[str, str]) -> bool:
    """Return True if this user will probably see the windows that a program opens."""
    return sys.platform == "darwin" or any(environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def can_poll(file: IO[bytes]) -> bool:
    """Return True if the event loop can wait for an open file: a pipe, a socket or a terminal."""
    mode = os.fstat(file.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()


@contextmanager
def hidden_input(descriptor: int) -> Iterator[None]:
    """Do not show on the terminal what the user types."""
    before = termios.tcgetattr(descriptor)
    after = [*before]
    after[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, after)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def read_terminal(descriptor: int, max_bytes: int) -> bytes:
    """Return the next line from a terminal, or nothing at its end.

    A terminal is only ready to read when a line is complete, so this works without a thread or buffer, and Ctrl-C
    ends the wait.
    """
    import asyncio

    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, max_bytes)


def limit_own_resources(memory: int = 0, cpu_seconds: int = 0) -> None:
    """Limit this process's address space in bytes, and its CPU time, for the rest of its life."""
    if cpu_seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    if memory and sys.platform != "darwin":  # macOS refuses this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
