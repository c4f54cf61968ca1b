"""Protects the gateway's process from programs of the same user, especially its servers.

Linux shows the environment and the arguments of a process in /proc as they are in its memory. So secrets are removed
from both after reading, and the process forbids inspection by other programs of its user (`toolway._os`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from toolway._os import protect_memory
from toolway.secrets.detection import remember_secret
from toolway.secrets.encrypted_file import PASSPHRASE_VARIABLE
from toolway.secrets.store import keep_passphrase

if TYPE_CHECKING:
    from toolway.cluster.options import ClusterOptions

# Removed from the environment as soon as they were read. The URLs of database and NATS may contain passwords.
SECRET_VARIABLES: Final = (
    "TOOLWAY_TOKEN",
    PASSPHRASE_VARIABLE,
    "TOOLWAY_CLUSTER_KEY",
    "TOOLWAY_DATABASE",
    "TOOLWAY_CLUSTER",
)


def protect_process(cluster: ClusterOptions | None = None) -> None:
    """Remove secrets from this process's environment and arguments, and forbid other programs to inspect it.

    Call this once, in a process that belongs to Toolway, after all options were read. Afterwards, `os.environ` does not
    have the variables, so the configuration cannot refer to them.
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
    protect_memory(names, secrets)
