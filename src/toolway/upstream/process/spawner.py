"""The spawner for this system, and the environment of a server.

`build_environment` returns the variables of a process: fixed base variables plus its config entry's variables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from toolway._os import base_variables
from toolway.config.schema import EnvPolicy
from toolway.upstream.process.server_process import BATCH_CODE, SANDBOX_CODE, Process, SpawnError

if sys.platform == "win32":
    from toolway.upstream.process.windows.job_spawner import JobSpawner as Spawner
else:
    from toolway.upstream.process.reaper_spawner import ReaperSpawner as Spawner

__all__ = ["BATCH_CODE", "SANDBOX_CODE", "Process", "SpawnError", "Spawner", "build_environment"]

# -- environment of a server ------------------------------------------------------------------------------------------

BASE_VARIABLES: Final = base_variables()

# A server behind a corporate proxy fails without these, so they are passed on unless the policy is `none`.
PROXY_AND_CA_VARIABLES: Final = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)

# Variables of Toolway itself (token, keys, database, state folder) are never passed on, under any policy. A server
# needs none of them; `TOOLWAY_TAG`, the random tag of its processes, is added at its start.
OWN_PREFIXES: Final = ("TOOLWAY_", "_TOOLWAY_")


def build_environment(own: Mapping[str, str], policy: EnvPolicy, entry: Mapping[str, str]) -> dict[str, str]:
    """Build a server's environment from this process's variables `own` and its entry's.

    `policy` decides which of this process's variables are passed on; Toolway's own never are. The entry's variables
    take precedence.
    """
    if policy == "inherit":
        passed = {name: value for name, value in own.items() if not name.startswith(OWN_PREFIXES)}
    else:
        names = BASE_VARIABLES if policy == "none" else BASE_VARIABLES + PROXY_AND_CA_VARIABLES
        passed = {name: own[name] for name in names if name in own}
    return {**passed, **entry}
