"""Entries that are one and the same server: in one file that is a mistake, in several files it is worth knowing."""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolway.doctor.targets import Target


class Twins:
    """Who is the same among these entries."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._same: dict[str, list[Target]] = {}
        for target in targets:
            if what := _identity(target):
                self._same.setdefault(what, []).append(target)

    def before(self, target: Target) -> str:
        """The name of an earlier entry of the same file for the same server; empty where there is none."""
        here = [each for each in self._all(target) if each.file == target.file]
        return here[0].name if here and here[0].name != target.name else ""

    def elsewhere(self, target: Target) -> list[str]:
        """The same server in other files: `cursor:gh`."""
        others = [each for each in self._all(target) if each.file != target.file]
        return [f"{each.client or 'toolway'}:{each.name}" for each in others]

    def _all(self, target: Target) -> list[Target]:
        return self._same.get(_identity(target), [])


def _identity(target: Target) -> str:
    """What makes two entries the same server; empty for one that is not started anyway."""
    server = target.server
    if server is None or not server.enabled or target.shadow:
        return ""
    return json.dumps([server.command, server.args, server.url, server.openapi and repr(server.openapi)])
