"""Profiles for macOS `sandbox-exec`: the sandboxes `guard` and `strict`. Not tested on a Mac.

A profile is a list of rules; the last match decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from toolway.upstream.process.bubblewrap import SECRET_PATHS, STARTUP_PATHS

PROGRAM: Final = "/usr/bin/sandbox-exec"
MAC_SECRET_PATHS: Final = (
    *("Library/Keychains", "Library/Cookies", "Library/Application Support/Claude", "Library/Messages"),
    *("Library/Application Support/Google/Chrome", "Library/Application Support/Firefox"),
)
MAC_STARTUP_PATHS: Final = ("Library/LaunchAgents",)
#: Folders of the system that a program reads, and what every program asks at its start.
MAC_SYSTEM_PATHS: Final = (
    *("/usr", "/bin", "/sbin", "/System", "/Library/Apple", "/Library/Frameworks", "/Library/Developer", "/opt"),
    *("/private/etc/ssl", "/private/etc/localtime", "/private/etc/hosts", "/private/var/db/timezone"),
    *("/private/var/db/dyld", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"),
)


def guard_profile(home: str, own: Iterable[str]) -> str:
    """Return the `sandbox-exec` profile for `guard`, which allows everything with a few exceptions.

    It denies access to secret files and to `own` (Toolway's files), writing startup files, and signaling or
    inspecting processes outside.
    """
    secrets = [*own, *(f"{home}/{name}" for name in (*SECRET_PATHS, *MAC_SECRET_PATHS) if home)]
    startup = [f"{home}/{name}" for name in (*STARTUP_PATHS, *MAC_STARTUP_PATHS) if home]
    lines = ["(version 1)", "(allow default)"]
    lines += [_rule("deny file-read* file-write*", secrets)]
    lines += [_rule("deny file-write*", startup)] if startup else []
    for action in ("signal", "process-info*"):
        lines += [f"(deny {action})", f"(allow {action} (target same-sandbox))"]
    return "\n".join(lines)


def strict_profile(readable: Iterable[str], writable: Iterable[str], own: Iterable[str], with_network: bool) -> str:
    """Return the `sandbox-exec` profile for `strict`, which only allows system folders and these paths.

    `own` (Toolway's files) stay hidden, even if a named folder contains them.
    """
    writable = [*writable]
    lines = [
        "(version 1)",
        "(deny default)",
        "(allow process-fork process-exec)",
        "(allow sysctl-read)",
        "(allow signal (target same-sandbox))",
        "(allow process-info* (target same-sandbox))",
        "(allow file-read-metadata)",
        '(allow file-read* (literal "/"))',
        _rule("allow file-read*", [*MAC_SYSTEM_PATHS, *readable, *writable]),
        '(allow file-write-data (literal "/dev/null"))',
    ]
    lines += [_rule("allow file-write*", writable)] if writable else []
    lines += ["(allow network*)", "(allow system-socket)"] if with_network else []
    lines += [_rule("deny file-read* file-write*", own)]
    return "\n".join(lines)


def _rule(action: str, paths: Iterable[str]) -> str:
    filters = " ".join(f"(subpath {_quote(os.path.realpath(path))})" for path in paths)
    return f"({action} {filters})"


def _quote(text: str) -> str:
    """Return `text` as a quoted string in a profile. Raises `ValueError` if it has control characters."""
    if any(ord(character) < 32 for character in text):
        raise ValueError("a path has control characters")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
