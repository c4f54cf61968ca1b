"""Everything that differs between Linux, macOS, and Windows, under one set of names.

| | Linux | macOS | Windows |
|---|---|---|---|
| `lock_handle` | flock | flock | LockFileEx on one byte past 4 GiB |
| `sync_data` | fdatasync | F_FULLFSYNC | FlushFileBuffers |
| `sync_folder` | fsync | fsync | nothing: NTFS journals names |
| `O_UNSHARED` | O_CLOEXEC | the same | O_BINARY, O_NOINHERIT |
| `process_exists` | kill 0 | kill 0 | OpenProcess |
| `process_start` | /proc | unknown | GetProcessTimes |

No other module checks which system it runs on. `posix` and `win32` define the same names for files, limits, and
folders; `posix_processes` and `win32_processes` do so for processes, signals, and terminals. `tests/test_os.py`
compares them, and finds modules that check the system themselves.

Other modules belong to one system and are imported by name. `proc` reads what Linux reports about processes, and
finds none elsewhere. `win32_job` has the Job Objects of Windows, and `win32_start` starts a process in one.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from toolway._os.win32 import (
        HAS_DRIVES,
        O_NONBLOCK,
        O_PRIVATE,
        O_UNSHARED,
        SYSTEM_NAME,
        allow_rebinding,
        cache_folder,
        config_folder,
        copy_owner_and_mode,
        data_folder,
        home_folder,
        lock_folder_handle,
        lock_handle,
        machine_name,
        max_open_files,
        raise_open_files,
        restrict_to_owner,
        set_pipe_encoding,
        state_folder,
        sync_data,
        sync_folder,
        try_lock_handle,
        unlock_handle,
        usable_cores,
    )
    from toolway._os.win32_processes import (
        HAS_SESSIONS,
        base_variables,
        boot_time,
        can_poll,
        describe_user,
        has_desktop,
        hidden_input,
        kill_session,
        limit_cpu_of_turn,
        limit_lifetime,
        limit_own_resources,
        on_reload_signal,
        on_stop_signals,
        outlive_stop_signals,
        process_exists,
        process_start,
        protect_memory,
        read_line,
        read_terminal,
        register_at_fork,
        start_detached,
    )
else:
    from toolway._os.posix import (
        HAS_DRIVES,
        O_NONBLOCK,
        O_PRIVATE,
        O_UNSHARED,
        SYSTEM_NAME,
        allow_rebinding,
        cache_folder,
        config_folder,
        copy_owner_and_mode,
        data_folder,
        home_folder,
        lock_folder_handle,
        lock_handle,
        machine_name,
        max_open_files,
        raise_open_files,
        restrict_to_owner,
        set_pipe_encoding,
        state_folder,
        sync_data,
        sync_folder,
        try_lock_handle,
        unlock_handle,
        usable_cores,
    )
    from toolway._os.posix_processes import (
        HAS_SESSIONS,
        base_variables,
        boot_time,
        can_poll,
        describe_user,
        has_desktop,
        hidden_input,
        kill_session,
        limit_cpu_of_turn,
        limit_lifetime,
        limit_own_resources,
        on_reload_signal,
        on_stop_signals,
        outlive_stop_signals,
        process_exists,
        process_start,
        protect_memory,
        read_line,
        read_terminal,
        register_at_fork,
        start_detached,
    )

__all__ = [
    "HAS_DRIVES",
    "HAS_SESSIONS",
    "O_NONBLOCK",
    "O_PRIVATE",
    "O_UNSHARED",
    "SYSTEM_NAME",
    "allow_rebinding",
    "base_variables",
    "boot_time",
    "cache_folder",
    "can_poll",
    "config_folder",
    "copy_owner_and_mode",
    "data_folder",
    "describe_user",
    "has_desktop",
    "hidden_input",
    "home_folder",
    "kill_session",
    "limit_cpu_of_turn",
    "limit_lifetime",
    "limit_own_resources",
    "lock_folder_handle",
    "lock_handle",
    "machine_name",
    "max_open_files",
    "on_reload_signal",
    "on_stop_signals",
    "outlive_stop_signals",
    "process_exists",
    "process_start",
    "protect_memory",
    "raise_open_files",
    "read_line",
    "read_terminal",
    "register_at_fork",
    "restrict_to_owner",
    "set_pipe_encoding",
    "start_detached",
    "state_folder",
    "sync_data",
    "sync_folder",
    "try_lock_handle",
    "unlock_handle",
    "usable_cores",
]
