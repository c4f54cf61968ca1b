"""The environment of a server's process, built from nothing: a fixed base and what its entry names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolway.config.spec import EnvPolicy

BASE: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TERM",
)

# A server behind a company's proxy fails without these, so they are passed on unless the policy is `none`.
PROXY_AND_CA: Final = (
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

# What opens our own doors is for no server, whatever its policy.
OURS: Final = ("TOOLWAY_TOKEN", "TOOLWAY_SECRETS_PASSPHRASE")


def build(own: Mapping[str, str], policy: EnvPolicy, entry: Mapping[str, str]) -> dict[str, str]:
    """The environment for a server whose entry names `entry`, out of our `own`."""
    if policy == "inherit":
        passed = {name: value for name, value in own.items() if name not in OURS}
    else:
        names = BASE if policy == "none" else BASE + PROXY_AND_CA
        passed = {name: own[name] for name in names if name in own}
    return {**passed, **entry}
