"""Protection of the gateway's own process against programs of the same user, above all against its servers.

Linux shows the environment and the arguments of a process in /proc as they are in its memory. So a secret is removed
from both after it was read, and the process forbids other programs of its user to inspect it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolway.secrets.detection import remember_secret
from toolway.secrets.encrypted_file import PASSPHRASE_VARIABLE
from toolway.secrets.store import keep_passphrase

if TYPE_CHECKING:
    from toolway.cluster.options import ClusterOptions

PR_SET_DUMPABLE: Final = 4
# Removed from the environment as soon as they were read. The URLs of database and NATS may contain passwords.
SECRET_VARIABLES: Final = (
    "TOOLWAY_TOKEN",
    PASSPHRASE_VARIABLE,
    "TOOLWAY_CLUSTER_KEY",
    "TOOLWAY_DATABASE",
    "TOOLWAY_CLUSTER",
)
_STAT_ARGUMENTS: Final = 45  # index of arg_start in /proc/self/stat after the name; then arg_end, env_start, env_end


def protect_process(cluster: ClusterOptions | None = None) -> None:
    """Remove secrets from the environment and arguments of this process, and forbid its inspection.

    Call it once, in a process that belongs to Toolway, after all options were read. `os.environ` no longer has the
    variables afterwards, so the configuration cannot refer to them.
    """
    keep_passphrase(os.environ)
    names, secrets = list(SECRET_VARIABLES), set[str]()
    if cluster is not None:
        from toolway.cluster.options import PASSWORD_VARIABLE, url_secrets

        secrets = {secret for url in (*cluster.nats_urls, cluster.database_url) for secret in url_secrets(url)}
        if os.environ.get(PASSWORD_VARIABLE) in secrets:
            names.append(PASSWORD_VARIABLE)
    for name in names:
        value = os.environ.pop(name, "")
        if value and "://" not in value:  # the secrets of a URL are remembered already
            remember_secret(value)
    if sys.platform == "linux":
        erase_from_memory(names, secrets)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def erase_from_memory(variables: Iterable[str], secrets: Iterable[str]) -> None:
    """Overwrite environment variables, and secrets in the arguments, in the memory that /proc shows.

    `os.environ` is a copy: the variables that this process was started with stay in its memory otherwise.
    """
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        arg_start, arg_end, env_start, env_end = map(int, fields[_STAT_ARGUMENTS : _STAT_ARGUMENTS + 4])
    except (OSError, ValueError):
        return  # /proc is not mounted: then no other program reads it either
    names = tuple(f"{name}=".encode() for name in variables)
    position = env_start
    for entry in ctypes.string_at(env_start, env_end - env_start).split(b"\0"):
        if entry.startswith(names):
            ctypes.memset(position, 0, len(entry))
        position += len(entry) + 1
    arguments = ctypes.string_at(arg_start, arg_end - arg_start)
    for secret in map(os.fsencode, secrets):
        found = arguments.find(secret)
        while found >= 0:
            ctypes.memset(arg_start + found, ord("*"), len(secret))
            found = arguments.find(secret, found + len(secret))
