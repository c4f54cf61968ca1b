"""Resolve middleware: finds the server and tool of the name that a caller gave.

The lookup is exact and never waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from difflib import get_close_matches

from msgspec.structs import replace

from toolway.catalog.catalog import Catalog, Tool
from toolway.errors import NotFound
from toolway.types import Call, CallHandler, CallResult, Middleware, ToolRef


def resolve(
    catalog: Catalog, servers: Collection[str], attach_policy: Callable[[Call, Tool | None], Call]
) -> Middleware:
    """Return the middleware that resolves a call's server and tool.

    `attach_policy` adds the policy from settings and tool definition to a resolved call.
    """

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        if call.method != "tools/call":
            require_server(servers, call.server)
            return next(attach_policy(call, None))
        tool = catalog.find_tool(call.server, call.name) if call.server else None  # a gateway names the server
        if tool is None or call.server not in servers:
            ref, tool = find_tool(catalog, servers, call.target)
            call = replace(call, server=ref.server, name=ref.tool, params={**call.params, "name": ref.tool})
        return next(attach_policy(call, tool))

    return middleware


def find_tool(catalog: Catalog, servers: Collection[str], name: str) -> tuple[ToolRef, Tool | None]:
    """Return the reference of the tool called `name`, and its definition if it is listed.

    Raises `NotFound` if the name has no server part, the server is unknown, or its complete tool list lacks the tool.
    """
    ref = catalog.parse_name(name)
    if ref is None:
        close = catalog.suggest(name)
        raise NotFound(
            f"unknown tool {name!r}",
            detail="tool names have the form server.tool",
            hint=_did_you_mean(close) or "list all tools: toolway tools",
        )
    require_server(servers, ref.server)
    tool = catalog.tool(ref)
    if tool is None and catalog.is_complete(ref.server, "tools"):
        require_tool(catalog, ref)
    return ref, tool


def require_tool(catalog: Catalog, ref: ToolRef) -> Tool:
    """Return the definition of a tool. Raises `NotFound` if the catalog has no such tool."""
    tool = catalog.tool(ref)
    if tool is None:
        close = catalog.suggest(str(ref))
        raise NotFound(
            f"{ref.server} has no tool {ref.tool!r}",
            server=ref.server,
            tool=ref.tool,
            hint=_did_you_mean(close) or f"list its tools: toolway tools --server {ref.server}",
        )
    return tool


def require_server(servers: Collection[str], name: str) -> None:
    """Raise `NotFound` if no server of this name is configured."""
    if name not in servers:
        raise NotFound(
            f"unknown server {name!r}",
            server=name,
            detail=f"configured: {', '.join(servers) or 'none'}"[:300],
            hint=_did_you_mean(get_close_matches(name, list(servers), n=3)),
        )


def find_resource_server(catalog: Catalog, uri: str) -> str:
    """Return the name of the server that lists this resource or a matching template.

    Raises `NotFound` if no server does.
    """
    for item in catalog.items("resources"):
        if item.name == uri:
            return item.server
    for item in catalog.items("templates"):
        if uri.startswith(item.name.partition("{")[0]):
            return item.server
    raise NotFound(f"no server lists the resource {uri!r}", hint="name the server: read_resource(uri, server=…)")


def parse_prompt_name(servers: Collection[str], name: str) -> ToolRef:
    """Parse the prompt name `server.prompt` into server and prompt.

    Raises `NotFound` if the name has no dot or the server is unknown.
    """
    server, dot, prompt = name.partition(".")
    if not dot:
        raise NotFound(f"unknown prompt {name!r}", detail="prompt names have the form server.prompt")
    require_server(servers, server)
    return ToolRef(server, prompt)


def _did_you_mean(names: list[str]) -> str:
    return f"did you mean {' or '.join(names)}?" if names else ""
