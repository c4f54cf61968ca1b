"""Some places among all, asked for in a way that the database looks them up.

A list of whole keys is a condition for each of them, which it compares with row after row: of five hundred places among
fifty thousand, for seconds. A list of names is one condition, with an index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from sqlalchemy import ColumnElement, and_, false, or_

from toolway.cluster.record.tables import PlaceRow

Key: TypeAlias = tuple[str, str, int]  # tenant, server, instance


def are(keys: Iterable[Key]) -> ColumnElement[bool]:
    servers: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for tenant, server, instance in keys:
        servers[tenant, instance].append(server)
    return or_(
        false(),
        *(
            and_(PlaceRow.tenant == tenant, PlaceRow.instance == instance, PlaceRow.server.in_(names))
            for (tenant, instance), names in servers.items()
        ),
    )
