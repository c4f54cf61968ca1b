"""What differs between operating systems, under one set of names. No other module asks for the system to do these.

| | Linux | macOS | Windows |
|---|---|---|---|
| `lock_handle` | flock | flock | LockFileEx on one byte past 4 GiB |
| `sync_data` | fdatasync | F_FULLFSYNC | FlushFileBuffers |
| `sync_folder` | fsync | fsync | nothing: NTFS journals names |
| `O_PRIVATE` | O_CLOEXEC, O_NOFOLLOW | the same | O_BINARY, O_NOINHERIT |
| `process_exists` | kill 0 | kill 0 | OpenProcess |

The module of the system has exactly these names. `tests/test_os.py` compares them.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from toolway._os.win32 import (
        HAS_FORK,
        O_NONBLOCK,
        O_PRIVATE,
        base_variables,
        boot_time,
        cache_folder,
        config_folder,
        copy_owner_and_mode,
        data_folder,
        home_folder,
        limit_cpu_of_turn,
        limit_own_resources,
        lock_folder_handle,
        lock_handle,
        max_open_files,
        on_reload_signal,
        on_stop_signals,
        process_exists,
        raise_open_files,
        register_at_fork,
        restrict_to_owner,
        start_detached,
        state_folder,
        sync_data,
        sync_folder,
        try_lock_handle,
        unlock_handle,
    )
else:
    from toolway._os.posix import (
        HAS_FORK,
        O_NONBLOCK,
        O_PRIVATE,
        base_variables,
        boot_time,
        cache_folder,
        config_folder,
        copy_owner_and_mode,
        data_folder,
        home_folder,
        limit_cpu_of_turn,
        limit_own_resources,
        lock_folder_handle,
        lock_handle,
        max_open_files,
        on_reload_signal,
        on_stop_signals,
        process_exists,
        raise_open_files,
        register_at_fork,
        restrict_to_owner,
        start_detached,
        state_folder,
        sync_data,
        sync_folder,
        try_lock_handle,
        unlock_handle,
    )

__all__ = [
    "HAS_FORK",
    "O_NONBLOCK",
    "O_PRIVATE",
    "base_variables",
    "boot_time",
    "cache_folder",
    "config_folder",
    "copy_owner_and_mode",
    "data_folder",
    "home_folder",
    "limit_cpu_of_turn",
    "limit_own_resources",
    "lock_folder_handle",
    "lock_handle",
    "max_open_files",
    "on_reload_signal",
    "on_stop_signals",
    "process_exists",
    "raise_open_files",
    "register_at_fork",
    "restrict_to_owner",
    "start_detached",
    "state_folder",
    "sync_data",
    "sync_folder",
    "try_lock_handle",
    "unlock_handle",
]
