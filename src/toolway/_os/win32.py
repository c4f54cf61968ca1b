"""Windows: LockFileEx, FlushFileBuffers, %APPDATA%, console events, Job Objects."""

from __future__ import annotations

import contextlib
import ctypes
import msvcrt
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import wintypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

assert sys.platform == "win32"

if TYPE_CHECKING:
    import asyncio
    import subprocess

HAS_FORK: Final = False
O_PRIVATE: Final = os.O_BINARY | os.O_NOINHERIT
O_NONBLOCK: Final = os.O_BINARY | os.O_NOINHERIT  # a named pipe of Windows is no path that a config file names

_kernel32: Final = ctypes.WinDLL("kernel32", use_last_error=True)
_ntdll: Final = ctypes.WinDLL("ntdll")


def register_at_fork(**_: Callable[[], object]) -> None:
    """Do nothing: Windows has no fork."""


# -- locks --------------------------------------------------------------------------------------------------------


class _Overlapped(ctypes.Structure):
    _fields_ = [
        ("Internal", ctypes.c_void_p),
        ("InternalHigh", ctypes.c_void_p),
        ("Offset", wintypes.DWORD),
        ("OffsetHigh", wintypes.DWORD),
        ("hEvent", wintypes.HANDLE),
    ]


_LOCKFILE_FAIL_IMMEDIATELY: Final = 1
_LOCKFILE_EXCLUSIVE_LOCK: Final = 2
_ERROR_LOCK_VIOLATION: Final = 33
_ERROR_IO_PENDING: Final = 997
_RETRY_S: Final = 0.02
for _name in ("LockFileEx", "UnlockFileEx"):
    getattr(_kernel32, _name).restype = wintypes.BOOL
_kernel32.LockFileEx.argtypes = [
    wintypes.HANDLE,
    *(wintypes.DWORD for _ in range(4)),
    ctypes.POINTER(_Overlapped),
]
_kernel32.UnlockFileEx.argtypes = [
    wintypes.HANDLE,
    *(wintypes.DWORD for _ in range(3)),
    ctypes.POINTER(_Overlapped),
]


def _range() -> _Overlapped:
    # One byte that no content reaches: a lock of Windows is mandatory, and others may read the file.
    return _Overlapped(OffsetHigh=1)


def try_lock_handle(handle: int) -> bool:
    """Lock an open file without waiting. Return False if another handle holds the lock."""
    flags = _LOCKFILE_EXCLUSIVE_LOCK | _LOCKFILE_FAIL_IMMEDIATELY
    if _kernel32.LockFileEx(msvcrt.get_osfhandle(handle), flags, 0, 1, 0, ctypes.byref(_range())):
        return True
    code = ctypes.get_last_error()
    if code in (_ERROR_LOCK_VIOLATION, _ERROR_IO_PENDING):
        return False
    raise ctypes.WinError(code)


def lock_handle(handle: int) -> None:
    """Lock an open file, and wait until it is free. Closing the handle releases the lock."""
    while not try_lock_handle(handle):
        time.sleep(_RETRY_S)  # a wait in LockFileEx could not be interrupted by Ctrl-C


def unlock_handle(handle: int) -> None:
    _kernel32.UnlockFileEx(msvcrt.get_osfhandle(handle), 0, 1, 0, ctypes.byref(_range()))


def lock_folder_handle(folder: Path) -> int:
    """Return a handle whose lock excludes other writers in a folder: that of a file in it."""
    return os.open(folder / ".toolway.lock", os.O_RDWR | os.O_CREAT | O_PRIVATE, 0o600)


# -- durable files ------------------------------------------------------------------------------------------------


def sync_data(handle: int) -> None:
    os.fsync(handle)  # FlushFileBuffers, which also empties the cache of the drive


def sync_folder(folder: Path) -> None:
    """Do nothing: a folder cannot be flushed without administrator rights. NTFS journals names, not contents."""


def restrict_to_owner(handle: int) -> None:
    """Do nothing. A file inherits the access list of its folder.

    In a profile (%APPDATA%, %LOCALAPPDATA%) that is: its user, SYSTEM and administrators. Elsewhere it may be more.
    """


def copy_owner_and_mode(old: os.stat_result, handle: int) -> None:
    """Do nothing: `os.replace` keeps the access list of the new file, which is that of its folder."""


# -- limits -------------------------------------------------------------------------------------------------------


def max_open_files() -> int:
    """Return a large number: Windows limits handles by memory only."""
    return 1 << 30


def raise_open_files() -> None:
    """Do nothing: there is no limit to raise."""


def limit_own_resources(memory: int = 0, cpu_seconds: int = 0) -> None:
    """Limit this process for the rest of its life, by a job of its own."""
    limit_process(_kernel32.GetCurrentProcess(), memory, cpu_seconds)


_watch: Final[list[threading.Timer]] = []


def limit_cpu_of_turn(seconds: float) -> None:
    """End this process after so many seconds from now on; 0 takes the limit back. Windows has no timer of CPU time."""
    while _watch:
        _watch.pop().cancel()
    if seconds:
        timer = threading.Timer(seconds, os._exit, (1,))
        timer.daemon = True
        timer.start()
        _watch.append(timer)


# -- folders ------------------------------------------------------------------------------------------------------


def home_folder(environ: Mapping[str, str]) -> str:
    return environ.get("USERPROFILE") or environ.get("HOME", "")


def _under(environ: Mapping[str, str], xdg: str, variable: str, *rest: str) -> Path | None:
    base = environ.get(xdg) or environ.get(variable)
    return Path(base, "toolway", *rest) if base else None


def config_folder(environ: Mapping[str, str]) -> Path | None:
    return _under(environ, "XDG_CONFIG_HOME", "APPDATA")


def state_folder(environ: Mapping[str, str]) -> Path | None:
    return _under(environ, "XDG_STATE_HOME", "LOCALAPPDATA", "state")


def data_folder(environ: Mapping[str, str]) -> Path | None:
    return _under(environ, "XDG_DATA_HOME", "LOCALAPPDATA", "data")


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    return _under(environ, "XDG_CACHE_HOME", "LOCALAPPDATA", "cache")


# -- processes and signals ----------------------------------------------------------------------------------------


def base_variables() -> tuple[str, ...]:
    """Return the variables that every server gets. Without SYSTEMROOT no socket opens, without PATHEXT no .cmd."""
    return (
        *("PATH", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "TEMP", "TMP", "USERNAME"),
        *("USERPROFILE", "HOMEDRIVE", "HOMEPATH", "HOME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA"),
        *("PROGRAMFILES", "PROGRAMFILES(X86)", "PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "OS", "TZ"),
    )


_SYNCHRONIZE: Final = 0x00100000
_ERROR_ACCESS_DENIED: Final = 5
_WAIT_TIMEOUT: Final = 0x102
_kernel32.OpenProcess.restype = wintypes.HANDLE
_kernel32.OpenProcess.argtypes = [wintypes.DWORD, wintypes.BOOL, wintypes.DWORD]
_kernel32.WaitForSingleObject.argtypes = [wintypes.HANDLE, wintypes.DWORD]
_kernel32.CloseHandle.argtypes = [wintypes.HANDLE]
_kernel32.GetCurrentProcess.restype = wintypes.HANDLE


def boot_time() -> float:
    """Return seconds of a clock that also counts while the machine sleeps (QueryPerformanceCounter)."""
    return time.monotonic()


def process_exists(pid: int) -> bool:
    """Return True if a process runs. `os.kill(pid, 0)` would send it Ctrl-C here."""
    handle = _kernel32.OpenProcess(_SYNCHRONIZE, False, pid)
    if not handle:
        return ctypes.get_last_error() == _ERROR_ACCESS_DENIED
    try:
        return bool(_kernel32.WaitForSingleObject(handle, 0) == _WAIT_TIMEOUT)
    finally:
        _kernel32.CloseHandle(handle)


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], object], interrupt: bool = True) -> None:
    """Call `stop` in the event loop on Ctrl-Break, SIGTERM of this process and, with `interrupt`, Ctrl-C.

    Closing the console, a log-off and a shutdown call it too. Windows then ends the process after five seconds.
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
    if _kernel32.SetConsoleCtrlHandler(routine, True):
        _console_handlers.append(routine)


def on_reload_signal(loop: asyncio.AbstractEventLoop, reload: Callable[[], object]) -> None:
    """Do nothing: Windows has no such signal. `toolway serve reload` and the watch of the file remain."""


def start_detached(argv: Sequence[str], handle: int) -> subprocess.Popen[bytes]:
    """Start a child that outlives us, with pipes. A lock of Windows is not inherited: only we hold it."""
    import subprocess

    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
    )


# -- jobs ---------------------------------------------------------------------------------------------------------


class _BasicLimits(ctypes.Structure):
    _fields_ = [
        ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
        ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
        ("LimitFlags", wintypes.DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", wintypes.DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", wintypes.DWORD),
        ("SchedulingClass", wintypes.DWORD),
    ]


class _ExtendedLimits(ctypes.Structure):
    _fields_ = [
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_ulonglong * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


_EXTENDED_LIMIT_INFORMATION: Final = 9
_LIMIT_PROCESS_TIME: Final = 0x2
_LIMIT_ACTIVE_PROCESS: Final = 0x8
_LIMIT_PROCESS_MEMORY: Final = 0x100
_LIMIT_JOB_MEMORY: Final = 0x200
_LIMIT_KILL_ON_JOB_CLOSE: Final = 0x2000
_PROCESS_RIGHTS: Final = 0x0001 | 0x0100 | 0x0800  # terminate, set quota, suspend and resume
_kernel32.CreateJobObjectW.restype = wintypes.HANDLE
_kernel32.CreateJobObjectW.argtypes = [ctypes.c_void_p, wintypes.LPCWSTR]
_kernel32.SetInformationJobObject.argtypes = [wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD]
_kernel32.AssignProcessToJobObject.argtypes = [wintypes.HANDLE, wintypes.HANDLE]
_kernel32.TerminateJobObject.argtypes = [wintypes.HANDLE, wintypes.UINT]
_ntdll.NtResumeProcess.argtypes = [wintypes.HANDLE]


def _check(result: object) -> None:
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())


class Job:
    """Job Object: a set of processes with all their descendants, which the kernel kills with the last handle.

    This process has the only handle. So its death, however it dies, ends all of them.
    """

    def __init__(self, *, kill_on_close: bool = True, memory: int = 0, processes: int = 0, cpu: int = 0) -> None:
        self._handle: int | None = _kernel32.CreateJobObjectW(None, None)
        _check(self._handle)
        limits = _ExtendedLimits()
        basic = limits.BasicLimitInformation
        basic.LimitFlags = _LIMIT_KILL_ON_JOB_CLOSE if kill_on_close else 0
        if memory:
            basic.LimitFlags |= _LIMIT_JOB_MEMORY
            limits.JobMemoryLimit = memory
        if processes:
            basic.LimitFlags |= _LIMIT_ACTIVE_PROCESS
            basic.ActiveProcessLimit = processes
        if cpu:
            basic.LimitFlags |= _LIMIT_PROCESS_TIME
            basic.PerProcessUserTimeLimit = cpu * 10_000_000
        _check(
            _kernel32.SetInformationJobObject(
                self._handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            )
        )

    def adopt(self, pid: int) -> None:
        """Take a process that was created suspended into the job, and let it run. Its children are born in it."""
        process = _kernel32.OpenProcess(_PROCESS_RIGHTS, False, pid)
        _check(process)
        try:
            _check(_kernel32.AssignProcessToJobObject(self._handle, process))
            if _ntdll.NtResumeProcess(process) < 0:
                raise OSError("the process cannot be resumed")
        finally:
            _kernel32.CloseHandle(process)

    def add_handle(self, process: int) -> None:
        _check(_kernel32.AssignProcessToJobObject(self._handle, process))

    def kill(self) -> None:
        """Kill all processes of the job."""
        if self._handle is not None:
            _kernel32.TerminateJobObject(self._handle, 1)

    def close(self) -> None:
        """Kill all processes of the job and give it back."""
        if self._handle is not None:
            self.kill()
            _kernel32.CloseHandle(self._handle)
            self._handle = None


def limit_process(process: int, memory: int, cpu_seconds: int) -> None:
    """Limit a running process. The job lives as long as the process, because it has no other handle."""
    job = Job(kill_on_close=False, memory=memory, cpu=cpu_seconds)
    job.add_handle(process)


def has_console() -> bool:
    """Return True if this process has a console, which its children then share."""
    return bool(_kernel32.GetConsoleCP())
