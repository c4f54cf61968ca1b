"""Client callbacks built from user functions: answers to elicitation, sampling and roots.

A capability is declared only if there is a callback for it. A callback gets `(server, params)` and returns the
result as a dictionary, or a coroutine of one.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from toolway.types import Json

Callback: TypeAlias = Callable[[str, Json], Json | Awaitable[Json]]
Roots: TypeAlias = Sequence[str | Path] | Callback


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


def _static_roots(roots: Sequence[str | Path]) -> Callback:
    uris = [root if isinstance(root, str) and "://" in root else Path(root).absolute().as_uri() for root in roots]
    result: Json = {"roots": [{"uri": uri} for uri in uris]}
    return lambda server, params: result
