"""A server that a part found by its name, for `toolway add`.

It is an untrusted `server.json`. The core reads it, applies the admission rules, and shows the whole entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from toolway.types import Json


class FoundServer(NamedTuple):
    """A server that a part found by its name (`Part.find_server`)."""

    document: Json  # its server.json
    origin: str  # what messages call the document
    keys: Mapping[str, Any]  # that its entry gets
    command_keys: Mapping[str, Any]  # that its entry gets, too, if it has a command
    facts: Sequence[tuple[str, str]]  # lines to show before the entry, each with its style
    details: Json  # the same facts, for --json
