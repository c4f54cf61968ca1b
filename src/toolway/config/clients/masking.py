"""The secrets that stand in a document in plain text, so that a diff of it does not show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolway.config.mask import masked, secrets_in_args
from toolway.secrets.known import SHORTEST
from toolway.secrets.likely import secret_in_address


def secrets_in(document: Any) -> frozenset[str]:
    return frozenset(secret for secret in _found(document, ()) if len(secret) >= SHORTEST)


def _found(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _found(item, (*path, str(key)))
    elif isinstance(value, list):
        yield from secrets_in_args([each for each in value if isinstance(each, str)])
        for item in value:
            if not isinstance(item, str):
                yield from _found(item, path)
    elif isinstance(value, str):
        shown = masked(value, *path)
        if shown != value:
            within = list(secret_in_address(value))
            yield from within or [value.rpartition(" ")[2], value]
