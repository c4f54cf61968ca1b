"""Effect classes: may a call be run again?

Sources in order of precedence: the operator's setting, the HTTP method of an API, the tool's own annotations; and
without any of these, UNSAFE. Never the tool's name or description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolway.model import Effect

_BY_HTTP_METHOD: Final[Mapping[str, Effect]] = {
    "GET": Effect.READ,
    "HEAD": Effect.READ,
    "OPTIONS": Effect.READ,
    "PUT": Effect.IDEMPOTENT,
    "DELETE": Effect.IDEMPOTENT,
}

_BY_MCP_METHOD: Final[Mapping[str, Effect]] = {
    "server/discover": Effect.READ,
    "ping": Effect.READ,
    "tools/list": Effect.READ,
    "prompts/list": Effect.READ,
    "prompts/get": Effect.READ,
    "resources/list": Effect.READ,
    "resources/templates/list": Effect.READ,
    "resources/read": Effect.READ,
    "completion/complete": Effect.READ,
    "tasks/get": Effect.READ,
    "tasks/cancel": Effect.IDEMPOTENT,
}


def of_method(method: str) -> Effect:
    """The effect of a protocol method; a tool call is UNSAFE until more is known."""
    return _BY_MCP_METHOD.get(method, Effect.UNSAFE)


def of_tool(
    *,
    setting: Effect | None = None,
    http_method: str | None = None,
    annotations: Mapping[str, Any] | None = None,
    repeatable: bool = False,
    key_honoured: bool = False,
) -> Effect:
    """The effect of a tool. `repeatable` is somebody's word that it may run again; `key_honoured` says that the server
    itself tells repeated calls apart by their key."""
    effect = setting
    if effect is None and http_method is not None:
        effect = _BY_HTTP_METHOD.get(http_method.upper(), Effect.UNSAFE)
    if effect is None:
        effect = _from_hints(annotations or {})
    if effect is Effect.UNSAFE and (repeatable or key_honoured):
        return Effect.IDEMPOTENT
    return effect


def _from_hints(annotations: Mapping[str, Any]) -> Effect:
    """What the server says of its own tool. Enough to widen retries, for a liar only repeats effects of its own; never
    enough for caching or sharing answers."""
    if annotations.get("readOnlyHint") is True:
        return Effect.READ
    if annotations.get("idempotentHint") is True:
        return Effect.IDEMPOTENT
    return Effect.UNSAFE
