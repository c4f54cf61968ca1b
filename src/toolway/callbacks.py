"""Client callbacks built from user functions: answers to elicitation, sampling and roots.

A capability is declared only if there is a callback for it. A callback gets `(server, params)` and returns the
result as a dictionary, or a coroutine of one.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from toolway.errors import ConfigError
from toolway.types import Json

Callback: TypeAlias = Callable[[str, Json], Json | Awaitable[Json]]
#: Each root is a path, a URI, or `{"uri": …, "name": …}` as the protocol has it.
Roots: TypeAlias = Sequence[str | Path | Mapping[str, Any]] | Callback


class FunctionCallbacks:
    """`ClientCallbacks` that answer each server request with a function of the user: elicitation, sampling or roots."""

    def __init__(self, elicitation: Callback | None, sampling: Callback | None, roots: Roots | None) -> None:
        self._callbacks: dict[str, Callback] = {}
        self._capabilities: Json = {}
        if elicitation is not None:
            self._callbacks["elicitation/create"] = elicitation
            self._capabilities["elicitation"] = {"form": {}, "url": {}}
        if sampling is not None:
            self._callbacks["sampling/createMessage"] = sampling
            self._capabilities["sampling"] = {}
        if roots is not None:
            self._callbacks["roots/list"] = roots if callable(roots) else _static_roots(roots)
            self._capabilities["roots"] = {}

    @property
    def capabilities(self) -> Json:
        return self._capabilities

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        callback = self._callbacks[method]  # raises KeyError, a LookupError as the protocol requires
        try:
            result = callback(server, params)
            return await result if inspect.isawaitable(result) else result
        except LookupError as exc:
            raise RuntimeError(f"the callback for {method} failed: {exc!r}") from exc


def _static_roots(roots: Sequence[str | Path | Mapping[str, Any]]) -> Callback:
    """Return a callback that answers with these roots. Raises `ConfigError` if one of them is not a root."""
    if isinstance(roots, str | bytes | Mapping) or not isinstance(roots, Sequence):
        raise _roots_error(roots)
    result: Json = {"roots": [_root(root) for root in roots]}
    return lambda server, params: result


def _root(root: str | Path | Mapping[str, Any]) -> Json:
    if isinstance(root, Mapping) and isinstance(root.get("uri"), str):
        return dict(root)
    if not isinstance(root, str | Path):
        raise _roots_error(root)
    is_uri = isinstance(root, str) and "://" in root
    return {"uri": root if is_uri else Path(root).absolute().as_uri()}


def _roots_error(found: object) -> ConfigError:
    return ConfigError(
        "list_roots_callback must be a function or a list of paths and URIs",
        detail=f"found a {type(found).__name__}",
        hint='use ["/home/me/project"] or [{"uri": "file:///home/me/project"}]',
        code="E-CONFIG-KEY",
    )
