"""Job Objects on Windows: processes that end together, and limits on processes."""

from __future__ import annotations

import ctypes
import sys
from ctypes import wintypes
from typing import Final

import toolway._os.win32 as files

assert sys.platform == "win32"

kernel32: Final = files.kernel32


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
kernel32.CreateJobObjectW.restype = wintypes.HANDLE
kernel32.CreateJobObjectW.argtypes = [ctypes.c_void_p, wintypes.LPCWSTR]
kernel32.SetInformationJobObject.argtypes = [wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD]
kernel32.AssignProcessToJobObject.argtypes = [wintypes.HANDLE, wintypes.HANDLE]
kernel32.TerminateJobObject.argtypes = [wintypes.HANDLE, wintypes.UINT]
kernel32.CloseHandle.argtypes = [wintypes.HANDLE]
kernel32.GetCurrentProcess.restype = wintypes.HANDLE


def _check(result: object) -> None:
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())


class JobObject:
    """A set of processes and their descendants, which the kernel kills when the last handle is closed.

    This process has the only handle, so when it dies, for whatever reason, all of them end.
    """

    def __init__(self, *, kill_on_close: bool = True, memory: int = 0, processes: int = 0, cpu: int = 0) -> None:
        self._handle: int | None = kernel32.CreateJobObjectW(None, None)
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
            kernel32.SetInformationJobObject(
                self._handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            )
        )

    @property
    def handle(self) -> int:
        """Return the handle for creating processes in the job."""
        assert self._handle is not None
        return self._handle

    def add_handle(self, process: int) -> None:
        _check(kernel32.AssignProcessToJobObject(self._handle, process))

    def kill(self) -> None:
        """Kill all processes in the job."""
        if self._handle is not None:
            kernel32.TerminateJobObject(self._handle, 1)

    def close(self) -> None:
        """Kill all processes in the job, and close the job."""
        if self._handle is not None:
            self.kill()
            kernel32.CloseHandle(self._handle)
            self._handle = None


def limit_own_process(memory: int, cpu_seconds: int) -> None:
    """Limit this process for the rest of its life. The job lives as long, because it has no other handle."""
    job = JobObject(kill_on_close=False, memory=memory, cpu=cpu_seconds)
    job.add_handle(kernel32.GetCurrentProcess())
