"""Processes, signals and terminals on Windows: OpenProcess, console events, console modes."""

from __future__ import annotations

import contextlib
import ctypes
import msvcrt
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import wintypes
from typing import TYPE_CHECKING, Any, Final

import toolway._os.win32 as files
import toolway._os.win32_job as win32_job

assert sys.platform == "win32"

kernel32: Final = files.kernel32

if TYPE_CHECKING:
    import asyncio
    import subprocess
    from typing import IO

HAS_SESSIONS: Final = False


def register_at_fork(**_: Callable[[], object]) -> None:
    """Do nothing, because Windows has no fork."""


# -- processes ----------------------------------------------------------------------------------------------------


def base_variables() -> tuple[str, ...]:
    """Return the variables that every server gets. Without SYSTEMROOT no socket opens, without PATHEXT no .cmd."""
    return (
        *("PATH", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "TEMP", "TMP", "USERNAME"),
        *("USERPROFILE", "HOMEDRIVE", "HOMEPATH", "HOME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA"),
        *("PROGRAMFILES", "PROGRAMFILES(X86)", "PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "OS", "TZ"),
    )


_TERMINATE: Final = 0x0001
_QUERY_LIMITED: Final = 0x1000
_SYNCHRONIZE: Final = 0x00100000
_ERROR_ACCESS_DENIED: Final = 5
_WAIT_TIMEOUT: Final = 0x102
_MAX_PID: Final = 0xFFFFFFFF
kernel32.OpenProcess.restype = wintypes.HANDLE
kernel32.OpenProcess.argtypes = [wintypes.DWORD, wintypes.BOOL, wintypes.DWORD]
kernel32.WaitForSingleObject.argtypes = [wintypes.HANDLE, wintypes.DWORD]
kernel32.CloseHandle.argtypes = [wintypes.HANDLE]
kernel32.TerminateProcess.argtypes = [wintypes.HANDLE, wintypes.UINT]
kernel32.GetProcessTimes.argtypes = [wintypes.HANDLE, *(ctypes.POINTER(wintypes.FILETIME) for _ in range(4))]


def boot_time() -> float:
    """Return the seconds of a clock (QueryPerformanceCounter) that also counts while the machine sleeps."""
    return time.monotonic()


def process_exists(pid: int) -> bool:
    """Return True if a process is running. Here, `os.kill(pid, 0)` would send it Ctrl-C."""
    if not 0 < pid <= _MAX_PID:
        return False
    handle = kernel32.OpenProcess(_SYNCHRONIZE, False, pid)
    if not handle:
        return ctypes.get_last_error() == _ERROR_ACCESS_DENIED
    try:
        return bool(kernel32.WaitForSingleObject(handle, 0) == _WAIT_TIMEOUT)
    finally:
        kernel32.CloseHandle(handle)


def process_start(pid: int) -> str:
    """Return when a process started, for comparison with a later answer, or "" if unknown."""
    handle = kernel32.OpenProcess(_QUERY_LIMITED, False, pid) if 0 < pid <= _MAX_PID else None
    if not handle:
        return ""
    times = [wintypes.FILETIME() for _ in range(4)]
    try:
        if not kernel32.GetProcessTimes(handle, *map(ctypes.byref, times)):
            return ""
    finally:
        kernel32.CloseHandle(handle)
    return str(times[0].dwHighDateTime << 32 | times[0].dwLowDateTime)


def describe_user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (ImportError, OSError):  # no variable names it
        return "unknown"


def kill_session(pid: int) -> None:
    """Kill one process, because Windows has no sessions. Raises `ProcessLookupError` if it does not exist."""
    handle = kernel32.OpenProcess(_TERMINATE, False, pid)
    if not handle:
        raise ProcessLookupError
    kernel32.TerminateProcess(handle, 1)
    kernel32.CloseHandle(handle)


def start_detached(argv: Sequence[str], handle: int) -> subprocess.Popen[bytes]:
    """Start a child with pipes that outlives this process, which keeps the lock: a child cannot inherit it."""
    import subprocess

    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
    )


def protect_memory(variables: Iterable[str], secrets: Iterable[str]) -> None:
    """Do nothing, because on Windows, programs of the same user can always read each other's memory."""


def read_line(descriptor: int, timeout: float, max_bytes: int) -> bytes:
    """Read a line from a process's pipe. Return b"" if it has ended, or after `timeout` seconds.

    On Windows, `select` does not support pipes, so a thread reads. The caller ends the process, which ends the
    thread.
    """
    found: list[bytes] = []

    def read() -> None:
        data = b""
        with contextlib.suppress(OSError):
            while not data.endswith(b"\n") and len(data) <= max_bytes and (chunk := os.read(descriptor, 65_536)):
                data += chunk
        found.append(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(timeout)
    return found[0] if found else b""


# -- signals and time limits --------------------------------------------------------------------------------------


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], object], interrupt: bool = True) -> None:
    """Call `stop` in the event loop on Ctrl-Break, SIGTERM of this process and, with `interrupt`, Ctrl-C.

    Closing the console, logging off, and shutting down call it too. In these cases, Windows ends the process after
    five seconds.
    """

    def handle(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(stop)

    for number in (signal.SIGBREAK, signal.SIGTERM, *((signal.SIGINT,) if interrupt else ())):
        signal.signal(number, handle)
    _handle_console_close(handle)


_CTRL_CLOSE_EVENTS: Final = (2, 5, 6)  # close, log-off, shutdown
_HandlerRoutine: Final = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)
_console_handlers: Final[list[Any]] = []  # ctypes does not keep a callback alive


def _handle_console_close(handle: Callable[[], None]) -> None:
    def on_event(kind: int) -> bool:
        if kind not in _CTRL_CLOSE_EVENTS:
            return False
        handle()
        threading.Event().wait(4.5)  # the process ends when this function returns
        return True

    routine = _HandlerRoutine(on_event)
    if kernel32.SetConsoleCtrlHandler(routine, True):
        _console_handlers.append(routine)


def on_reload_signal(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> None:
    """Do nothing, because Windows has no such signal. Use `POST /admin/reload`, or let the gateway watch the file."""


def outlive_stop_signals() -> None:
    """Let this process ignore Ctrl-C and Ctrl-Break. Nothing can ignore TerminateProcess."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGBREAK):
        signal.signal(number, signal.SIG_IGN)


def limit_lifetime(seconds: int) -> None:
    """End this process after `seconds`."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


_watch: Final[list[threading.Timer]] = []


def limit_cpu_of_turn(seconds: float) -> None:
    """End this process after `seconds`; 0 cancels that. Windows has no CPU time timer."""
    while _watch:
        _watch.pop().cancel()
    if seconds:
        timer = threading.Timer(seconds, os._exit, (1,))
        timer.daemon = True
        timer.start()
        _watch.append(timer)


# -- terminals ----------------------------------------------------------------------------------------------------

_ENABLE_ECHO_INPUT: Final = 0x4
kernel32.GetConsoleMode.argtypes = [wintypes.HANDLE, wintypes.LPDWORD]
kernel32.SetConsoleMode.argtypes = [wintypes.HANDLE, wintypes.DWORD]


def has_console() -> bool:
    """Return True if this process has a console, which its children share."""
    return bool(kernel32.GetConsoleCP())


def has_desktop(environ: Mapping[str, str]) -> bool:
    """Return True if this user will probably see the windows that a program opens, but not over SSH."""
    return not environ.get("SSH_CONNECTION")


def can_poll(file: IO[bytes]) -> bool:
    """Return False, because the event loop can only wait for pipes that were opened for overlapped use."""
    return False


@contextlib.contextmanager
def hidden_input(descriptor: int) -> Iterator[None]:
    """Do not show on the console what the user types."""
    handle, before = msvcrt.get_osfhandle(descriptor), wintypes.DWORD()
    if not kernel32.GetConsoleMode(handle, ctypes.byref(before)):
        raise OSError("this is not a console")
    kernel32.SetConsoleMode(handle, before.value & ~_ENABLE_ECHO_INPUT)
    try:
        yield
    finally:
        kernel32.SetConsoleMode(handle, before.value)


async def read_terminal(descriptor: int, max_bytes: int) -> bytes:
    """Return the next line from a console, or nothing at its end."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def finish(data: bytes) -> None:
        if not done.done():
            done.set_result(data)

    def read() -> None:
        try:
            data = sys.stdin.readline(max_bytes).encode()  # the console's own encoding is not UTF-8
        except (OSError, ValueError):
            data = b""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, data)

    threading.Thread(target=read, daemon=True).start()
    return await done


def limit_own_resources(memory: int = 0, cpu_seconds: int = 0) -> None:
    """Limit this process for the rest of its life, with its own job."""
    win32_job.limit_own_process(memory, cpu_seconds)
