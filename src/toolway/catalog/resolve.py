"""The resolve stage: from the name a caller wrote to the server and tool that is meant. Exact, and without waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from difflib import get_close_matches

from msgspec.structs import replace

from toolway.catalog.index import Catalog, Tool
from toolway.errors import NotFound
from toolway.model import Call, Next, Reply, Stage, ToolRef


def resolve(catalog: Catalog, servers: Collection[str], settle: Callable[[Call, Tool | None], Call]) -> Stage:
    """`settle` fills in what settings and definition say about a call whose server and name are known."""

    def stage(call: Call, next: Next) -> Awaitable[Reply]:
        if call.method != "tools/call":
            check_server(servers, call.server)
            return next(settle(call, None))
        tool = catalog.find_tool(call.server, call.name) if call.server else None  # as a gateway names it
        if tool is None or call.server not in servers:
            ref, tool = find_tool(catalog, servers, call.target)
            call = replace(call, server=ref.server, name=ref.tool, params={**call.params, "name": ref.tool})
        return next(settle(call, tool))

    return stage


def find_tool(catalog: Catalog, servers: Collection[str], name: str) -> tuple[ToolRef, Tool | None]:
    """Which tool is called `name`, and its definition where it is listed. Raises `NotFound` where it surely does not
    exist."""
    ref = catalog.parse(name)
    if ref is None:
        close = catalog.close_names(name)
        raise NotFound(
            f"{name!r} names no tool",
            evidence="a tool is called server.tool",
            fix=_did_you_mean(close) or "see them all: toolway tools",
        )
    check_server(servers, ref.server)
    tool = catalog.tool(ref)
    if tool is None and catalog.known(ref.server, "tools"):
        must_exist(catalog, ref)
    return ref, tool


def must_exist(catalog: Catalog, ref: ToolRef) -> Tool:
    """The tool. Raises `NotFound` where a server that has listed its tools has none of this name."""
    tool = catalog.tool(ref)
    if tool is None:
        close = catalog.close_names(str(ref))
        raise NotFound(
            f"{ref.server} has no tool {ref.tool!r}",
            server=ref.server,
            tool=ref.tool,
            fix=_did_you_mean(close) or f"see what it has: toolway tools --server {ref.server}",
        )
    return tool


def check_server(servers: Collection[str], name: str) -> None:
    """Raises `NotFound` where no server of this name is configured."""
    if name not in servers:
        raise NotFound(
            f"there is no server {name!r}",
            server=name,
            evidence=f"configured: {', '.join(servers) or 'none'}"[:300],
            fix=_did_you_mean(get_close_matches(name, list(servers), n=3)),
        )


def server_of_resource(catalog: Catalog, uri: str) -> str:
    """The server that lists this resource, or a template of it. Raises `NotFound`."""
    for item in catalog.items("resources"):
        if item.key == uri:
            return item.server
    for item in catalog.items("templates"):
        if uri.startswith(item.key.partition("{")[0]):
            return item.server
    raise NotFound(f"no server lists the resource {uri!r}", fix="name the server: read_resource(uri, server=…)")


def prompt_of(servers: Collection[str], name: str) -> ToolRef:
    """Which prompt is called `server.prompt`. Raises `NotFound`."""
    server, dot, prompt = name.partition(".")
    if not dot:
        raise NotFound(f"{name!r} names no prompt", evidence="a prompt is called server.prompt")
    check_server(servers, server)
    return ToolRef(server, prompt)


def _did_you_mean(names: list[str]) -> str:
    return f"did you mean {' or '.join(names)}?" if names else ""
