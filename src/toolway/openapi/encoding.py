"""An operation and arguments → a request, in which every value stays in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolway.openapi.operation import Operation


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request without its host: all that depends on the arguments."""

    target: str  # path and query, ASCII, ready for the request line
    headers: tuple[tuple[str, str], ...]  # header parameters, and `Cookie` where there are any; no Content-Type
    body: bytes | None
    content_type: str  # empty where there is no body


def encode(operation: Operation, arguments: Mapping[str, Any], base_path: str = "") -> Encoded:
    """The request for these arguments. `base_path` is the path of the server's URL. Raises `BadArguments`."""
    return Encoded(base_path.rstrip("/") + operation.path, (), None, "")
