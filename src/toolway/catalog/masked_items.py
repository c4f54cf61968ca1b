"""Masks secrets in the definitions of tools, prompts, resources, and templates when they arrive.

Everything made from them is therefore masked too: lists, pins and their digests, the search index, the lists on disk,
and the lists that other cluster nodes get. The masked form stays the same if the secret gets another value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from toolway.events import ListKind
from toolway.secrets.replacer import cut_text
from toolway.secrets.server_secrets import secrets_of

ITEM_KEY: Final[Mapping[ListKind, str]] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
}
_MAX_LABEL_CHARS: Final = 80


class _SecretName(Exception):
    """Raised when an item cannot be masked, because it could not be used under its masked name."""


def mask_items(server: str, kind: ListKind, items: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """Mask a server's secrets in all strings of the items that it listed. Return the items and the problems.

    An item without secrets is the same object. An item whose name, URI or property name contains a secret is left out.
    """
    items, secrets = list(items), secrets_of(server)
    if not secrets.are_in(items):
        return items, []
    kept: list[Any] = []
    problems: list[str] = []
    for number, item in enumerate(items):
        try:
            kept.append(_mask_item(item, ITEM_KEY[kind], secrets.mask) if secrets.are_in(item) else item)
        except _SecretName as exc:
            problems.append(
                f"{kind.removesuffix('s')} {describe_item(item, kind, number, secrets.mask)} skipped: {exc}"
            )
    return kept, problems


def describe_item(item: Any, kind: ListKind, number: int, mask: Callable[[str], str] = lambda text: text) -> str:
    """Return how to refer to a list item in a problem: by its name, shortened, or by its position."""
    name = item.get(ITEM_KEY[kind]) if isinstance(item, dict) else None
    return repr(cut_text(mask(name), _MAX_LABEL_CHARS)) if isinstance(name, str) else f"number {number + 1}"


def _mask_item(item: Any, key: str, mask: Callable[[str], str]) -> Any:
    if isinstance(item, dict) and isinstance(item.get(key), str) and mask(item[key]) != item[key]:
        raise _SecretName(f"its {key} contains a secret of its server")
    try:
        return _mask_value(item, mask)
    except RecursionError:
        raise _SecretName("it is nested too deeply to mask a secret in it") from None


def _mask_value(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        if any(isinstance(key, str) and mask(key) != key for key in value):
            raise _SecretName("the name of a property in it contains a secret of its server")
        return {key: _mask_value(each, mask) for key, each in value.items()}
    return [_mask_value(each, mask) for each in value] if isinstance(value, list) else value
