"""Starts a process directly in a Job Object, with its pipes: CreateProcessW with a list of attributes.

`subprocess` can only put a process into a job after creating it. If this process died in between, the other one would
stay forever.
"""

from __future__ import annotations

import _winapi
import contextlib
import ctypes
import subprocess
import sys
from asyncio import windows_utils
from collections.abc import Mapping, Sequence
from ctypes import wintypes
from typing import Final, NamedTuple

import toolway._os.win32 as files

assert sys.platform == "win32"

kernel32: Final = files.kernel32
_EXTENDED_STARTUP_INFO: Final = 0x00080000
_UNICODE_ENVIRONMENT: Final = 0x00000400
_USE_STD_HANDLES: Final = 0x00000100
_ATTRIBUTE_HANDLES: Final = 0x00020002  # the only handles that the process inherits
_ATTRIBUTE_JOBS: Final = 0x0002000D  # the jobs that it is born in
_INHERIT: Final = 1


class _StartupInfo(ctypes.Structure):
    _fields_ = [
        ("cb", wintypes.DWORD),
        ("lpReserved", wintypes.LPWSTR),
        ("lpDesktop", wintypes.LPWSTR),
        ("lpTitle", wintypes.LPWSTR),
        *((name, wintypes.DWORD) for name in ("dwX", "dwY", "dwXSize", "dwYSize", "dwXCountChars", "dwYCountChars")),
        ("dwFillAttribute", wintypes.DWORD),
        ("dwFlags", wintypes.DWORD),
        ("wShowWindow", wintypes.WORD),
        ("cbReserved2", wintypes.WORD),
        ("lpReserved2", ctypes.c_void_p),
        ("hStdInput", wintypes.HANDLE),
        ("hStdOutput", wintypes.HANDLE),
        ("hStdError", wintypes.HANDLE),
        ("lpAttributeList", ctypes.c_void_p),
    ]


class _ProcessInformation(ctypes.Structure):
    _fields_ = [
        ("hProcess", wintypes.HANDLE),
        ("hThread", wintypes.HANDLE),
        ("dwProcessId", wintypes.DWORD),
        ("dwThreadId", wintypes.DWORD),
    ]


kernel32.InitializeProcThreadAttributeList.argtypes = [
    ctypes.c_void_p,
    wintypes.DWORD,
    wintypes.DWORD,
    ctypes.POINTER(ctypes.c_size_t),
]
kernel32.UpdateProcThreadAttribute.argtypes = [
    ctypes.c_void_p,
    wintypes.DWORD,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
]
kernel32.DeleteProcThreadAttributeList.argtypes = [ctypes.c_void_p]
kernel32.DeleteProcThreadAttributeList.restype = None
kernel32.CreateProcessW.argtypes = [
    wintypes.LPCWSTR,
    wintypes.LPWSTR,
    ctypes.c_void_p,
    ctypes.c_void_p,
    wintypes.BOOL,
    wintypes.DWORD,
    wintypes.LPCWSTR,
    wintypes.LPCWSTR,
    ctypes.POINTER(_StartupInfo),
    ctypes.POINTER(_ProcessInformation),
]


class Started(NamedTuple):
    """A process with this side's ends of its pipes."""

    handle: int
    pid: int
    stdin: windows_utils.PipeHandle
    stdout: windows_utils.PipeHandle
    stderr: windows_utils.PipeHandle

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit code. Blocks the thread."""
        try:
            _winapi.WaitForSingleObject(self.handle, _winapi.INFINITE)
            return _winapi.GetExitCodeProcess(self.handle)
        finally:
            _winapi.CloseHandle(self.handle)


def start_in_job(words: Sequence[str], env: Mapping[str, str], cwd: str | None, flags: int, job: int) -> Started:
    """Start a process in the job with this handle. Its three pipes are for a Proactor event loop.

    Raises `OSError` if it cannot be started.
    """
    # As in asyncio: its end of stdin can be read, too, which tells that the other side has closed it.
    ends = [windows_utils.pipe(overlapped=(False, True), duplex=True)]
    ends += [windows_utils.pipe(overlapped=(True, False)) for _ in range(2)]
    theirs, ours = [ends[0][0], ends[1][1], ends[2][1]], [ends[0][1], ends[1][0], ends[2][0]]
    try:
        handle, pid = _create(subprocess.list2cmdline(words), _block(env), cwd, flags, job, theirs)
    except BaseException:
        for each in ours:
            _winapi.CloseHandle(each)
        raise
    finally:
        for each in theirs:
            _winapi.CloseHandle(each)
    return Started(handle, pid, *(windows_utils.PipeHandle(each) for each in ours))


def _create(line: str, env: str, cwd: str | None, flags: int, job: int, pipes: Sequence[int]) -> tuple[int, int]:
    for each in pipes:
        _check(kernel32.SetHandleInformation(wintypes.HANDLE(each), _INHERIT, _INHERIT))
    size = ctypes.c_size_t()
    kernel32.InitializeProcThreadAttributeList(None, 2, 0, ctypes.byref(size))  # tells the size
    attributes = ctypes.create_string_buffer(size.value)
    _check(kernel32.InitializeProcThreadAttributeList(attributes, 2, 0, ctypes.byref(size)))
    with contextlib.ExitStack() as stack:
        stack.callback(kernel32.DeleteProcThreadAttributeList, attributes)
        lists = {_ATTRIBUTE_HANDLES: pipes, _ATTRIBUTE_JOBS: [job]}
        arrays = {kind: (wintypes.HANDLE * len(each))(*each) for kind, each in lists.items()}
        for kind, array in arrays.items():
            _check(kernel32.UpdateProcThreadAttribute(attributes, 0, kind, array, ctypes.sizeof(array), None, None))
        info, made = _StartupInfo(), _ProcessInformation()
        info.cb, info.dwFlags = ctypes.sizeof(info), _USE_STD_HANDLES
        info.hStdInput, info.hStdOutput, info.hStdError = pipes
        info.lpAttributeList = ctypes.addressof(attributes)
        flags |= _EXTENDED_STARTUP_INFO | _UNICODE_ENVIRONMENT
        command = ctypes.create_unicode_buffer(line)  # the system may write into it
        block = ctypes.create_unicode_buffer(env, len(env) + 1)
        pointers = ctypes.byref(info), ctypes.byref(made)
        _check(kernel32.CreateProcessW(None, command, None, None, True, flags, block, cwd, *pointers))
        _winapi.CloseHandle(made.hThread)
        return made.hProcess, made.dwProcessId


def _block(env: Mapping[str, str]) -> str:
    """Return variables in the form that Windows needs. Raises `ValueError` for invalid ones."""
    for name, value in env.items():
        if "\0" in name + value or "=" in name[1:] or not name:
            raise ValueError(f"invalid environment variable {name!r}")
    return "".join(f"{name}={value}\0" for name, value in sorted(env.items(), key=lambda each: each[0].upper())) + "\0"


def _check(result: object) -> None:
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())
