"""What the fake offers beside tools: a prompt, two resources, a template, completions."""

from __future__ import annotations

from toolway.testing.fakes.wire import HANDSHAKE_VERSIONS, INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError, object_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from toolway.testing.fakes.call import Call
    from toolway.testing.fakes.wire import Json

#: On every definition: fields nobody knows, so that whoever drops them is seen.
UNKNOWN: Json = {"x-vendor": {"kept": True, "nothing": None, "deep": [None, {"nothing": None}]}}

PROMPTS: list[Json] = [
    {
        "name": "greet",
        "title": "Greet someone",
        "description": "A greeting for a name, in a tone.",
        "arguments": [
            {"name": "name", "description": "Whom to greet", "required": True},
            {"name": "tone", "description": "warm, cold or formal", "required": False},
        ],
        **UNKNOWN,
    }
]
RESOURCES: list[Json] = [
    {"uri": "fake://text", "name": "text", "mimeType": "text/plain", "size": 12, **UNKNOWN},
    {"uri": "fake://bytes", "name": "bytes", "mimeType": "application/octet-stream", **UNKNOWN},
]
TEMPLATES: list[Json] = [
    {"uriTemplate": "fake://item/{id}", "name": "item", "description": "Any item by its id.", **UNKNOWN}
]
_CONTENTS: dict[str, Json] = {
    "fake://text": {"uri": "fake://text", "mimeType": "text/plain", "text": "hello, world"},
    "fake://bytes": {"uri": "fake://bytes", "mimeType": "application/octet-stream", "blob": "AAEC/w=="},
}
_COMPLETIONS = {"name": ("ada", "alan", "grace"), "tone": ("cold", "formal", "warm"), "id": ("1", "10", "2")}


def get_prompt(call: Call) -> Json:
    arguments = object_of(call.params.get("arguments"))
    if call.params.get("name") != "greet":
        raise RpcError(INVALID_PARAMS, f"no prompt {call.params.get('name')!r}")
    if "name" not in arguments:
        raise RpcError(INVALID_PARAMS, "the prompt 'greet' needs 'name'")
    text = f"Greet {arguments['name']} in a {arguments.get('tone', 'warm')} tone."
    message = {"role": "user", "content": {"type": "text", "text": text, **UNKNOWN}}
    return {"description": "A greeting", "messages": [message]}


def read_resource(call: Call) -> Json:
    uri = call.params.get("uri")
    if isinstance(uri, str) and uri.startswith("fake://item/"):
        item = uri.removeprefix("fake://item/")
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"item {item}", **UNKNOWN}]}
    if uri not in _CONTENTS:
        # The code was retired with the handshake era.
        code = INVALID_PARAMS if call.modern else RESOURCE_NOT_FOUND
        raise RpcError(code, "no such resource", {"uri": uri})
    return {"contents": [{**_CONTENTS[uri], **UNKNOWN}]}


def complete(call: Call) -> Json:
    argument = object_of(call.params.get("argument"))
    known = _COMPLETIONS.get(argument.get("name", ""), ())
    values = [value for value in known if value.startswith(argument.get("value", ""))]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def capabilities() -> Json:
    return {
        "tools": {"listChanged": True},
        "prompts": {},
        "resources": {},
        "completions": {},
        "experimental": {"x-vendor": {"nothing": None}},
    }


def negotiate(offered: object) -> str:
    """The handshake revision to speak with a client that offers one."""
    if isinstance(offered, str) and offered in HANDSHAKE_VERSIONS:
        return offered
    return HANDSHAKE_VERSIONS[-1]
