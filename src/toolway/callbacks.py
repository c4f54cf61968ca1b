"""Client callbacks built from user functions that answer elicitation, sampling, and roots requests.

A capability is declared only if there is a callback for it. A callback gets `(server, params)` and returns the result
as a dictionary, or a coroutine that returns one. Sampling with tools is declared only if the sampling callback has
the parameter `tools`, in which it gets the tools that the server offers to the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from toolway.errors import ConfigError
from toolway.types import CallbackError, Json

Callback: TypeAlias = Callable[[str, Json], Json | Awaitable[Json]]
#: Each root is a path, a URI, or `{"uri": …, "name": …}` as the protocol has it.
Roots: TypeAlias = Sequence[str | Path | Mapping[str, Any]] | Callback


class ToolSamplingCallback(Protocol):
    """Sampling callback that also accepts the tools a server offers to its model."""

    def __call__(self, server: str, params: Json, /, *, tools: list[Json]) -> Json | Awaitable[Json]:
        """Return the model's answer. It may contain `tool_use` blocks if there are `tools`."""
        ...


SamplingCallback: TypeAlias = Callback | ToolSamplingCallback


_SAMPLING: Final = "sampling/createMessage"
_INVALID_PARAMS: Final = -32602


class FunctionCallbacks:
    """`ClientCallbacks` that answer server requests with user functions."""

    def __init__(
        self,
        elicitation: Callback | None,
        sampling: SamplingCallback | None,
        roots: Roots | None,
        *,
        follows_tasks: bool = False,
    ) -> None:
        """Create the callbacks.

        With `follows_tasks`, servers may answer a tool call with a task, which the hub follows.
        """
        self.follows_tasks = follows_tasks
        self._callbacks: dict[str, Callback] = {}
        self._capabilities: Json = {}
        if elicitation is not None:
            self._callbacks["elicitation/create"] = elicitation
            self._capabilities["elicitation"] = {"form": {}, "url": {}}
        if sampling is not None:
            takes_tools = _has_parameter(sampling, "tools")
            self._callbacks[_SAMPLING] = _with_tools(sampling) if takes_tools else _without_tools(sampling)
            self._capabilities["sampling"] = {"tools": {}} if takes_tools else {}
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


def _has_parameter(callback: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(callback).parameters
    except (TypeError, ValueError):  # a callable that does not show its parameters
        return False


def _with_tools(sampling: Callable[..., Json | Awaitable[Json]]) -> Callback:
    def answer(server: str, params: Json) -> Json | Awaitable[Json]:
        tools = params.get("tools")
        return sampling(server, params, tools=tools if isinstance(tools, list) else [])

    return answer


def _without_tools(sampling: Callable[..., Json | Awaitable[Json]]) -> Callback:
    """Wrap a callback so it rejects sampling with tools, which servers may only request if it was declared."""

    def answer(server: str, params: Json) -> Json | Awaitable[Json]:
        if "tools" in params:
            raise CallbackError(_INVALID_PARAMS, "this client does not support tools in a sampling request")
        return sampling(server, params)

    return answer


def _static_roots(roots: Sequence[str | Path | Mapping[str, Any]]) -> Callback:
    """Return a callback that answers with fixed roots. Raises `ConfigError` if a root is invalid."""
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
