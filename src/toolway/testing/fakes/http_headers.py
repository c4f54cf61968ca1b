"""What the headers of a POST must say. A modern request mirrors parts of its body there."""

from __future__ import annotations

import base64
import binascii

from toolway.testing.fakes.wire import VERSION_KEY, object_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolway.testing.fakes.wire import Json

_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def problem(headers: Mapping[str, str]) -> int | None:
    """The status to refuse a POST with whose headers are wrong in either era."""
    if headers.get("content-type", "").split(";")[0].strip() != "application/json":
        return 415
    accepted = headers.get("accept", "")
    if "application/json" not in accepted or "text/event-stream" not in accepted:
        return 406
    return None


def mismatch(headers: Mapping[str, str], message: Json) -> str | None:
    """Which header of a modern request does not say what its body says."""
    params = object_of(message.get("params"))
    version = object_of(params.get("_meta")).get(VERSION_KEY)
    method = message["method"]
    expected = {"mcp-protocol-version": version, "mcp-method": method}
    if method in _NAMED:
        expected["mcp-name"] = params.get(_NAMED[method])
    if method == "tools/call" and params.get("name") == "echo":
        expected["mcp-param-tag"] = object_of(params.get("arguments")).get("tag")
    for name, value in expected.items():
        if value is not None and _decoded(headers.get(name)) != value:
            return name
    return None


def _decoded(value: str | None) -> str | None:
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
