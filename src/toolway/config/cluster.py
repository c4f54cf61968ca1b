"""Keys of an entry that say how a cluster runs the server. A gateway alone has no use for them."""

from __future__ import annotations

import re
from typing import Any, Final

from toolway.config.fields import KEY, Fields
from toolway.errors import ConfigError

KEYS: Final = ("instances", "nodeLabels")
MOST_INSTANCES: Final = 64
MOST_LABELS: Final = 32

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=/:-]{0,62}")


def read(fields: Fields) -> dict[str, Any]:
    instances = fields.whole("instances", 1, least=1)
    if instances > MOST_INSTANCES:
        raise ConfigError(f"instances must be {MOST_INSTANCES} at most", evidence=f"found {instances}", code=KEY)
    return {"instances": instances, "node_labels": _labels(fields)}


def _labels(fields: Fields) -> tuple[str, ...]:
    """Each once and in order, so that the same labels are the same value."""
    found = tuple(sorted(set(fields.texts("nodeLabels"))))
    bad = sum(not _LABEL.fullmatch(label) for label in found)
    if bad or len(found) > MOST_LABELS:
        raise ConfigError(
            f"nodeLabels must be at most {MOST_LABELS} labels of nodes",
            evidence=f"{bad} of {len(found)} cannot be a label",
            fix='write labels that nodes were started with, as in: "nodeLabels": ["gpu", "region=eu"]',
            code=KEY,
        )
    return found
