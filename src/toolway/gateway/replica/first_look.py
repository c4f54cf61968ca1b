"""A gateway of a cluster without a file: what the record says of gateways, before one is made.

Audit, telemetry and the address are settled when a gateway is made, and must be known then. The servers come later, as
to all others (`replica.py`).
"""

from __future__ import annotations

import time

from toolway.cluster.record.engine import open_engine, upgrade
from toolway.cluster.record.registry import Registry
from toolway.config.formats import OUR_BLOCK, ROOT_KEYS, Loaded
from toolway.errors import ToolwayError
from toolway.gateway.replica.options import ClusterOptions
from toolway.gateway.replica.shared.registry_source import loaded_of
from toolway.gateway.replica.troubles import record_silent
from toolway.gateway.sealed import Sealer


async def first_look(options: ClusterOptions) -> Loaded | None:
    """The settings that the record has, without servers and of no file; None where nothing was ever configured.
    Raises `Unavailable` and `ConfigError`."""
    engine = open_engine(options.database)
    try:
        await upgrade(engine)
        found = await Registry(engine, Sealer(options.key, time.time)).settings(options.tenant)
    except ToolwayError:
        raise
    except Exception as exc:
        raise record_silent(exc) from None
    finally:
        await engine.dispose()
    return loaded_of({ROOT_KEYS[0]: {}, OUR_BLOCK: found}, "") if found is not None else None
