"""Resolve middleware: finds the server and tool for the name that a caller used.

The lookup is exact. Only a name without a server part waits until the tools of all servers are known. A denied tool
is rejected here, whichever of its names the caller uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from toolway._closest import closest
from toolway.catalog.catalog import Catalog, Tool
from toolway.catalog.tool_access import PIN_NOT_STORED, PINS_SETTING, denied_error
from toolway.catalog.uri_claims import find_claiming_servers
from toolway.errors import NotFound
from toolway.types import Call, CallHandler, CallResult, Middleware, ToolRef

BARE_NAME_WAIT_S: Final = 10.0  # seconds that a call without a server waits for tool lists; at most half its timeout


AMBIGUOUS_CODE: Final = "E-TOOL-AMBIGUOUS"

#: (seconds) → enabled servers, after their tools are known or time runs out; None waits as long as a list does
WaitForLists = Callable[[float | None], Awaitable[Collection[str]]]


def resolve(
    catalog: Catalog,
    servers: Collection[str],
    attach_policy: Callable[[Call, Tool | None], Call],
    wait_for_lists: WaitForLists,
) -> Middleware:
    """Return middleware that resolves a call's name to server and tool, and adds the tool's policy.

    `attach_policy` adds the policy from settings and tool definition to a resolved call. Only a call whose name has
    no server part waits (with `wait_for_lists`) until the tools of all servers are known.
    """

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        if call.method != "tools/call":
            require_server(servers, call.server)
            if call.method == "prompts/get" and catalog.is_held(call.server, "prompts", call.name):
                raise denied_error(ToolRef(call.server, call.name), PINS_SETTING)
            return next(attach_policy(call, None))
        tool = catalog.find_tool(call.server, call.name) if call.server else None  # a gateway names the server
        if tool is None or call.server not in servers:
            ref = catalog.parse_name(call.target)
            if ref is None or ref.server not in servers:
                return resolve_without_server(call, ref, next)
            tool = _find_listed(catalog, ref)
            call = _with_target(call, ref)
        return next(attach_policy(call, tool))

    async def resolve_without_server(call: Call, ref: ToolRef | None, next: CallHandler) -> CallResult:
        if call.server or not is_bare_name(catalog, servers, call.target):
            require_server(servers, ref.server if ref is not None else call.server)
        clock = asyncio.get_running_loop().time
        began = clock()
        wait = BARE_NAME_WAIT_S if call.timeout is None else min(call.timeout / 2, BARE_NAME_WAIT_S)
        tool = await wait_for_bare_name(catalog, wait_for_lists, call.target, wait)
        waited = clock() - began
        resolved = attach_policy(_with_target(call, tool.ref), tool)
        total = resolved.policy.timeout if call.timeout is None else call.timeout
        return await next(replace(resolved, timeout=max(0.0, total - waited)))  # the wait counts against the timeout

    return middleware


async def wait_for_bare_name(catalog: Catalog, wait_for_lists: WaitForLists, name: str, wait: float) -> Tool:
    """Return the only tool called `name`. Waits for tool lists first: at most `wait` seconds, less if it is found.

    A server that does not answer therefore only delays names that no other server has. Raises the same errors as
    `find_by_bare_name`.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    with suppress(TimeoutError):
        try:
            async with asyncio.timeout(wait):
                return find_by_bare_name(catalog, await wait_for_lists(None), name)
        except NotFound as exc:
            if exc.code == AMBIGUOUS_CODE:
                raise
    return find_by_bare_name(catalog, await wait_for_lists(max(0.0, wait - (clock() - began))), name)


def _with_target(call: Call, ref: ToolRef) -> Call:
    return replace(call, server=ref.server, name=ref.tool, params={**call.params, "name": ref.tool})


def is_bare_name(catalog: Catalog, servers: Collection[str], name: str) -> bool:
    """Return True if a tool name has no server part: `search_issues`, not `github.search_issues`."""
    ref = catalog.parse_name(name)
    return ref is None or (ref.server not in servers and bool(catalog.find_by_bare_name(name, servers)[0]))


def find_by_bare_name(catalog: Catalog, servers: Collection[str], name: str) -> Tool:
    """Return the only tool called `name` on any of these servers, for a name without a server.

    Denied tools do not count. Raises `NotFound` if no tool or several tools have this name, and `AccessDenied` if all
    of them are denied.
    """
    found, denied = catalog.find_by_bare_name(name, servers)
    if len(found) > 1:
        names = sorted(tool.qualified_name for tool in found)
        raise NotFound(
            f"{len(found)} servers have a tool {name!r}",
            tool=name,
            detail=", ".join(names)[:300],
            hint=f"add the server: {names[0]}",
            code=AMBIGUOUS_CODE,
        )
    if found:
        return found[0]
    if denied:
        raise denied_error(denied[0], catalog.denied_by(denied[0]) or "tools.deny")
    raise NotFound(
        f"unknown tool {name!r}",
        detail="no server has a tool with this name",
        hint=_did_you_mean(catalog.suggest(name)) or "list all tools: toolway tools",
    )


def find_tool(catalog: Catalog, servers: Collection[str], name: str) -> tuple[ToolRef, Tool | None]:
    """Return the reference of the tool called `name`, and its definition if it is listed.

    Raises `NotFound` if the name has no server part, the server is unknown, or its complete tool list lacks the tool.
    Raises `AccessDenied` if the server's lists deny the tool, even before its tools are known.
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
    return ref, _find_listed(catalog, ref)


def _find_listed(catalog: Catalog, ref: ToolRef) -> Tool | None:
    tool = catalog.tool(ref)
    if tool is None and catalog.denied_by(ref) != PIN_NOT_STORED:
        require_allowed(catalog, ref)
        if catalog.is_complete(ref.server, "tools"):
            require_tool(catalog, ref)
    return tool


def require_allowed(catalog: Catalog, ref: ToolRef) -> None:
    """Raise `AccessDenied` if the allow and deny lists of the server deny the tool."""
    setting = catalog.denied_by(ref)
    if setting is not None:
        raise denied_error(ref, setting)


def require_tool(catalog: Catalog, ref: ToolRef) -> Tool:
    """Return the definition of a tool from the catalog.

    Raises `NotFound` if the catalog has no such tool, and `AccessDenied` if its server's lists deny it.
    """
    tool = catalog.tool(ref)
    if tool is None:
        require_allowed(catalog, ref)
        close = catalog.suggest(str(ref))
        raise NotFound(
            f"{ref.server} has no tool {ref.tool!r}",
            server=ref.server,
            tool=ref.tool,
            hint=_did_you_mean(close) or f"list its tools: toolway tools --server {ref.server}",
        )
    return tool


def require_server(servers: Collection[str], name: str) -> None:
    """Raise `NotFound` if no server with this name is configured."""
    if name not in servers:
        raise NotFound(
            f"unknown server {name!r}",
            server=name,
            detail=f"configured: {', '.join(servers) or 'none'}"[:300],
            hint=_did_you_mean(closest(name, servers, 3)),
        )


def find_resource_server(catalog: Catalog, uri: str) -> str:
    """Return the name of the only server that lists this resource or a matching template.

    Raises `NotFound` if no server lists it, or more than one.
    """
    servers = find_claiming_servers(catalog.items("resources"), catalog.items("templates"), uri)
    if len(servers) == 1:
        return servers.pop()
    hint = "add the server: read_resource(uri, server=…)"
    if servers:
        detail = ", ".join(sorted(servers))[:300]
        raise NotFound(f"several servers have the resource {uri!r}", detail=detail, hint=hint)
    raise NotFound(f"no server lists the resource {uri!r}", hint=hint)


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
