"""What `toolway serve` is told of a cluster. Where nobody speaks of one, nothing of it is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from toolway.cli.exits import UsageError

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
