"""Meta-tools that a part adds: an endpoint lists them instead of the tools that they find and call.

One part may provide them. Before it is sent, a call through a meta-tool becomes a call to the tool that it names, so
every control applies to that tool: access, policy, limits, approvals, argument check, and audit log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from toolway.types import Json

if TYPE_CHECKING:
    from toolway.catalog.catalog import Tool
    from toolway.gateway.mcp.context import RequestContext
    from toolway.gateway.mcp.errors import RpcFailure
    from toolway.gateway.mcp.responses import RpcResult
    from toolway.gateway.mcp.view import EndpointView
    from toolway.gateway.tool_filter import ToolFilter

#: The call of the named tool: parameters and tool, None if its server has not listed it yet; or the answer instead.
UnwrappedCall: TypeAlias = "tuple[Json, Tool | None] | Json"


class MetaToolSet(Protocol):
    """Meta-tools for all endpoints that list them. Their definitions never change."""

    @property
    def definitions(self) -> Mapping[str, Json]:
        """Their definitions by name, in the order in which they are listed."""
        ...

    @property
    def callers(self) -> frozenset[str]:
        """Names of meta-tools that call the tool in their argument `name`, with their `arguments`."""
        ...

    @property
    def capability(self) -> Json:
        """The experimental capability of an endpoint that lists them."""
        ...

    def instructions(self, servers: Sequence[str]) -> str:
        """Return the instructions for an endpoint with these servers."""
        ...

    async def answer(self, context: RequestContext, name: str, arguments: object) -> Json:
        """Return the result of calling a meta-tool that is not one of `callers`."""
        ...

    def unwrap(self, context: RequestContext, params: Json) -> UnwrappedCall:
        """Return the tool call inside a call of one of `callers`, or a result that explains the problem."""
        ...

    def may_call(self, name: str, tool: Tool) -> bool:
        """Return False if this meta-tool (one of `callers`) cannot call a tool. Rights are checked later."""
        ...

    def count_call(self, name: str) -> None:
        """Count a call sent through one of `callers`."""
        ...

    def on_result(self, principal: str, tool: Tool, result: RpcResult) -> None:
        """Look at the result of a tool called through one of `callers`."""
        ...

    def explain_failure(self, context: RequestContext, params: Json, failure: RpcFailure) -> Json | None:
        """Return a result that explains a failed call to a model, or None to report the failure as it is."""
        ...

    async def explain_unknown(self, context: RequestContext, params: Json) -> Json:
        """Return a result for a call to a tool that does not exist."""
        ...

    def on_views_changed(self) -> None:
        """Drop cached names and descriptions of tools, because they may have changed."""
        ...


class EndpointFacts(NamedTuple):
    """What meta-tools need to know about a gateway's endpoints."""

    toolsets: Callable[[], Mapping[str, ToolFilter]]  # each has an endpoint
    held_servers: Callable[[], Iterable[str]]  # servers whose entries need an administrator's review
    wait_for_starting: Callable[[EndpointView, float], Awaitable[None]]  # in seconds, right after servers changed


async def _wait_for_nothing(view: EndpointView, timeout: float) -> None:
    pass


class MetaTools:
    """A gateway's meta-tools, if a part provides some. The gateway sets `endpoints`."""

    def __init__(self) -> None:
        self.provider: MetaToolSet | None = None
        self.endpoints = EndpointFacts(dict, tuple, _wait_for_nothing)

    def provide(self, provider: MetaToolSet) -> None:
        """Let endpoints list these meta-tools.

        Raises `LookupError` if another part already provides some, because their names could clash.
        """
        if self.provider is not None:
            raise LookupError("another part already provides meta-tools")
        self.provider = provider
