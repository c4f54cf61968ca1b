"""What `toolway serve` is told of a cluster. Where nobody speaks of one, nothing of it is loaded."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final

from toolway.cli.exits import UsageError
from toolway.config.formats import Loaded
from toolway.config.gateway import GatewaySettings
from toolway.errors import ConfigError

if TYPE_CHECKING:
    from toolway.gateway.replica.options import ClusterOptions

VARIABLE: Final = "TOOLWAY_CLUSTER"


def options_of(**flags: str | None) -> ClusterOptions | None:
    """None for a gateway that is alone. Raises `ConfigError`."""
    if not os.environ.get(VARIABLE) and all(value is None for value in flags.values()):
        return None
    from toolway.gateway.replica.options import Flags, read
    from toolway.gateway.replica.troubles import must_be_installed

    options = read(Flags(**flags), os.environ)
    if options is not None:
        must_be_installed()
    return options


def no_pipes(cluster: ClusterOptions | None, stdio: bool) -> None:
    """Raises `UsageError` for what does not go together."""
    if cluster is not None and stdio:
        raise UsageError(
            "a gateway of a cluster serves over HTTP, not over our own pipes",
            evidence="--stdio stands beside --cluster",
            fix="leave one of them out, or connect to a gateway of the cluster: toolway connect generic",
        )


async def of_record(
    no_file: ConfigError,
    cluster: ClusterOptions,
    end: asyncio.Event,
    host: str | None,
    port: int | None,
    tls: ssl.SSLContext | None,
) -> Loaded:
    """For a gateway that has no file: what its cluster knows. The record is waited for, until a signal sets `end`.
    Raises `ConfigError` where it has nothing either, or where a file was found, and cannot be used."""
    if no_file.code != "E-CONFIG-NONE":
        raise no_file
    from toolway.gateway.replica.first_look import first_look
    from toolway.gateway.replica.waiting import patiently

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    usual = GatewaySettings()
    where = (host or usual.host, usual.port if port is None else port)
    found = await patiently(partial(first_look, cluster), end, *where, tls)
    if found is None:
        raise ConfigError(
            "no configuration was found, neither here nor in the database of the cluster",
            evidence=f"{no_file.evidence}; the database has none of the tenant {cluster.tenant!r}",
            fix="start this or another gateway of the cluster with a file, once: toolway serve --config FILE; or name"
            " the tenant that has one: --tenant NAME",
            code=no_file.code,
        )
    return found
