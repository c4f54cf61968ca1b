"""Files, limits and folders on Windows: LockFileEx, FlushFileBuffers, %APPDATA%."""

from __future__ import annotations

import ctypes
import msvcrt
import os
import sys
import time
from collections.abc import Mapping
from ctypes import wintypes
from typing import TYPE_CHECKING, Final, Literal

assert sys.platform == "win32"

if TYPE_CHECKING:
    import io
    import socket
    from pathlib import Path

SYSTEM_NAME: Final[Literal["linux", "darwin", "win32"]] = "win32"
HAS_DRIVES: Final = True
O_UNSHARED: Final = os.O_BINARY | os.O_NOINHERIT
O_PRIVATE: Final = O_UNSHARED
O_NONBLOCK: Final = O_UNSHARED  # a Windows named pipe is not a path that a config file names

kernel32: Final = ctypes.WinDLL("kernel32", use_last_error=True)

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
    getattr(kernel32, _name).restype = wintypes.BOOL
kernel32.LockFileEx.argtypes = [
    wintypes.HANDLE,
    *(wintypes.DWORD for _ in range(4)),
    ctypes.POINTER(_Overlapped),
]
kernel32.UnlockFileEx.argtypes = [
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
    if kernel32.LockFileEx(msvcrt.get_osfhandle(handle), flags, 0, 1, 0, ctypes.byref(_range())):
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
    kernel32.UnlockFileEx(msvcrt.get_osfhandle(handle), 0, 1, 0, ctypes.byref(_range()))


def lock_folder_handle(folder: Path) -> int:
    """Return a handle whose lock excludes other writers in a folder. It is the handle of a file in the folder."""
    return os.open(folder / ".toolway.lock", os.O_RDWR | os.O_CREAT | O_PRIVATE, 0o600)


# -- durable and private files ------------------------------------------------------------------------------------


def sync_data(handle: int) -> None:
    os.fsync(handle)  # FlushFileBuffers, which also empties the cache of the drive


def sync_folder(folder: Path) -> None:
    """Do nothing, because only an administrator can flush a folder. NTFS journals names, but not contents."""


def restrict_to_owner(handle: int) -> None:
    """Do nothing. A file inherits its folder's access list.

    In a profile (%APPDATA%, %LOCALAPPDATA%), that is the user, SYSTEM, and administrators. Elsewhere, it may be more.
    """


def copy_owner_and_mode(old: os.stat_result, handle: int) -> None:
    """Do nothing, because `os.replace` keeps the new file's access list, which comes from its folder."""


def set_pipe_encoding(stream: io.TextIOWrapper) -> None:
    """Use UTF-8 for what is read or written, unless at a console: programs expect it, not the system's code page."""
    if not stream.isatty():
        stream.reconfigure(encoding="utf-8")


# -- limits and machine -------------------------------------------------------------------------------------------


def max_open_files() -> int:
    """Return a large number, because on Windows only memory limits the number of handles."""
    return 1 << 30


def raise_open_files() -> None:
    """Do nothing, because Windows has no limit to raise."""


def usable_cores() -> int:
    return os.cpu_count() or 1


def machine_name() -> str:
    """Return the system and processor, as package locks name them: `windows-amd64`."""
    import platform

    return f"windows-{platform.machine().lower()}"


def allow_rebinding(listener: socket.socket) -> None:
    """Do nothing: an ended process's address is free at once. SO_REUSEADDR would take it from a live one."""


# -- folders ------------------------------------------------------------------------------------------------------


def home_folder(environ: Mapping[str, str]) -> str:
    return environ.get("USERPROFILE") or environ.get("HOME", "")


def _under(environ: Mapping[str, str], xdg: str, variable: str, *rest: str) -> Path | None:
    from pathlib import Path

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
