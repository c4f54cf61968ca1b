"""Toolset: tools of a hub for a model. Selection, names, approval by effect, and calls.

All adapters use it. It never calls a tool that it did not offer, and a model gets an answer to every call.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict, Unpack

from toolway.adapters import texts
from toolway.adapters.schemas import AdaptedSchema, UnusableSchema, adapt_schema
from toolway.catalog.catalog import Tool
from toolway.doctor.lint import MAX_OPENAI_TOOLS, PROVIDERS, Provider
from toolway.errors import CallError, Executed, ToolwayError
from toolway.gateway.tool_filter import ToolFilter
from toolway.hub.hub import Hub
from toolway.protocol.sanitize import remove_invisible
from toolway.protocol.tool_names import with_hash_suffix
from toolway.types import Effect, Json, ToolResult

MAX_FOUND: Final = 50  # tools that one search returns

#: Calls that need an approval: of unsafe tools, of all tools, of tools that match patterns, or none.
Approve: TypeAlias = Literal["unsafe", "all"] | Sequence[str] | None

#: Decides about one call: True, False, or a string that refuses and says why.
Ask: TypeAlias = Callable[["CallToApprove"], "bool | str | Awaitable[bool | str]"]


@dataclass(frozen=True, slots=True)
class CallToApprove:
    """A call that a model wants to make and that needs an approval first."""

    tool: str  # `server.tool`
    arguments: Json
    effect: Effect


@dataclass(frozen=True, slots=True)
class ModelTool:
    """One tool as a model sees it: name, description, and schema, plus the hub's tool behind it."""

    name: str  # accepted by every provider
    description: str
    schema: Json  # accepted by the providers of the toolset
    tool: Tool  # of the hub
    effect: Effect
    needs_approval: bool
    changes: tuple[str, ...] = ()  # what had to be changed in the schema
    adapted: AdaptedSchema | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a model's tool call: the text for the model, and the result or error behind it."""

    text: str
    is_error: bool = False
    executed: Executed = "yes"
    result: ToolResult | None = None
    error: ToolwayError | None = None

    @property
    def images(self) -> list[Json]:
        """Return the image blocks of the result: dictionaries with `data` (base64) and `mimeType`."""
        content = self.result.content if self.result is not None else []
        return [each for each in content if each.get("type") == "image" and isinstance(each.get("data"), str)]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call that a model has made. `arguments` is an object or JSON text."""

    name: str
    arguments: Any
    id: str = ""


class ToolOptions(TypedDict, total=False):
    """Options that the functions `tools` of all adapters take.

    Attributes:
        search: Only the tools that fit this task best.
        limit: Number of tools that a search selects; 20 if it is not given.
        approve: Calls that need an approval: "unsafe", "all" or patterns. Without it, no call.
        ask: Decides about a call that needs an approval: a function, or a coroutine function, of a `CallToApprove`.
        timeout: Seconds for each call; None uses the settings of the servers.
    """

    search: str | None
    limit: int
    approve: Approve
    ask: Ask | None
    timeout: float | None


class Toolset:
    """Selected tools of a hub, and their calls. Created by `Toolset.load` or by an adapter.

    Args:
        hub: The hub, which is open.
        patterns: `server.tool` with `*`, `server` for all its tools, `!pattern` to exclude; the last match decides.
            Without any, all tools.
        search: Only the tools that fit this task best.
        limit: Number of tools that a search selects.
        approve: Calls that need an approval: "unsafe", "all" or patterns. None: no call.
        ask: Decides about a call that needs an approval. May be a coroutine function.
        timeout: Seconds for each call; None uses the settings of the servers.
        providers: Model providers that must accept the schemas.

    Example:
        tools = await Toolset.load(hub, ["github.*"], approve="unsafe", ask=lambda call: call.tool != "github.fork")
    """

    def __init__(
        self,
        hub: Hub,
        patterns: Sequence[str] = (),
        *,
        search: str | None = None,
        limit: int = 20,
        approve: Approve = None,
        ask: Ask | None = None,
        timeout: float | None = None,
        providers: Sequence[Provider] = PROVIDERS,
    ) -> None:
        self.hub = hub
        self._patterns = tuple(_as_pattern(each) for each in patterns) or ("*",)
        self._filter = ToolFilter(self._patterns)
        self._search = search
        self._limit = min(limit, MAX_FOUND)
        self._approve = approve
        self._approved_by_pattern = _approval_filter(approve)
        self.ask = ask
        self._timeout = timeout
        self._providers = tuple(providers)
        self._by_name: dict[str, ModelTool] = {}
        self.left_out: Mapping[str, str] = {}  # `server.tool` → why it is not offered

    @classmethod
    async def load(
        cls,
        hub: Hub,
        patterns: Sequence[str] = (),
        *,
        providers: Sequence[Provider] = PROVIDERS,
        has_approvals: bool = False,
        **options: Unpack[ToolOptions],
    ) -> Self:
        """Create a toolset with these options, and select its tools from the hub.

        Raises `ToolwayError` if no tool matches, if there are too many, or if calls need an approval and neither `ask`
        nor the framework (`has_approvals`) can decide.
        """
        toolset = cls(hub, patterns, providers=providers, **options)
        if toolset._approve is not None and toolset.ask is None and not has_approvals:
            raise ToolwayError(
                "no one can approve calls",
                detail="`approve` is set but `ask` is not, and this framework cannot ask for approval",
                hint="pass ask=…, a function that takes the call and returns True or False",
                code="E-ADAPTER-APPROVAL",
            )
        await toolset.refresh()
        return toolset

    # -- tools --------------------------------------------------------------------------------------------------------

    @property
    def tools(self) -> list[ModelTool]:
        """Return the selected tools, in hub or search order."""
        return list(self._by_name.values())

    def find(self, name: str) -> ModelTool | None:
        """Return the selected tool that a model knows as `name`, or None."""
        found = self._by_name.get(name)
        return found or next((each for each in self._by_name.values() if each.tool.qualified_name == name), None)

    async def refresh(self) -> list[ModelTool]:
        """Select the tools again, from the current lists of the servers."""
        known = await self.hub.list_tools()
        if self._search is None:
            selected = [tool for tool in known if tool.qualified_name in self._filter]
        else:
            matches = await self.hub.search_tools(self._search, limit=MAX_FOUND)
            selected = [each.tool for each in matches if each.tool.qualified_name in self._filter][: self._limit]
        earlier = {each.tool.qualified_name: each for each in self._by_name.values()}
        chosen: dict[str, ModelTool] = {}
        left_out: dict[str, str] = {}
        for tool in selected:
            same = earlier.get(tool.qualified_name)
            try:
                offered = same if same is not None and same.tool is tool else self._offer(tool)
            except UnusableSchema as exc:
                left_out[tool.qualified_name] = str(exc)
                continue
            name = offered.name
            if name in chosen:  # another tool has this name: both hashes are different
                name = with_hash_suffix(name, tool.server, tool.name)
                offered = _renamed(offered, name)
            chosen[name] = offered
        self._check(chosen, len(known))
        self._by_name, self.left_out = chosen, left_out
        return self.tools

    def _offer(self, tool: Tool) -> ModelTool:
        adapted = adapt_schema(tool.input_schema, self._providers)
        terms = self.hub._core.policies.terms(tool.qualified_name)
        effect = terms.effect if terms is not None else Effect.UNSAFE
        return ModelTool(
            name=tool.model_name,
            description=remove_invisible(tool.description or tool.title),
            schema=adapted.schema,
            tool=tool,
            effect=effect,
            needs_approval=self._needs_approval(tool.qualified_name, effect),
            changes=adapted.changes,
            adapted=adapted,
        )

    def _needs_approval(self, name: str, effect: Effect) -> bool:
        if self._approved_by_pattern is not None:
            return name in self._approved_by_pattern
        return self._approve == "all" or (self._approve == "unsafe" and effect is Effect.UNSAFE)

    def _check(self, chosen: Mapping[str, ModelTool], known: int) -> None:
        """Raise `ToolwayError` if no tool is selected, or more tools than the model provider accepts."""
        hint = "pick fewer by patterns or search=…: `toolway tools` lists them"
        problem = ""
        if not chosen:
            problem = f"no tool of the {known} known ones matches {', '.join(self._patterns)}"
            hint = "check the patterns with `toolway tools`, and the servers with `toolway doctor`"
        elif self._providers == ("openai",) and len(chosen) > MAX_OPENAI_TOOLS:
            problem = f"{len(chosen)} tools are selected, and OpenAI accepts {MAX_OPENAI_TOOLS}"
        if problem:
            raise ToolwayError("the tools cannot be offered", detail=problem, hint=hint, code="E-ADAPTER-TOOLS")

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call(self, name: str, arguments: Any = None, *, approved: bool = False) -> Reply:
        """Execute one tool call of a model; return the answer for the model.

        Every failure is an answer, except cancellation.

        Args:
            name: The tool, as the model names it.
            arguments: An object, or JSON text.
            approved: True if the framework has already asked for the approval.
        """
        tool = self.find(name)
        if tool is None:
            return Reply(texts.unknown_tool_text(name, list(self._by_name)), True, "no")
        try:
            parsed = _parse_arguments(arguments)
        except ValueError as exc:
            return Reply(texts.broken_arguments_text(tool.name, str(exc)), True, "no")
        if tool.adapted is not None:
            parsed = tool.adapted.restore(parsed)
        if tool.needs_approval and not approved:
            refused = await self._refusal(tool, parsed)
            if refused is not None:
                return Reply(texts.refusal_text(tool.name, refused), True, "no")
        try:
            result = await self.hub.call_tool(
                tool.tool.qualified_name, parsed, timeout=self._timeout, raise_on_error=False
            )
        except ToolwayError as exc:
            executed: Executed = exc.executed if isinstance(exc, CallError) else "no"
            return Reply(texts.error_text(exc, tool.name, tool.effect), True, executed, error=exc)
        return Reply(texts.result_text(result), result.is_error, "yes", result)

    async def _refusal(self, tool: ModelTool, arguments: Json) -> str | None:
        """Ask whether a tool call that needs approval may run.

        Return None if it is approved, or else the reason why not, which may be "".
        """
        if self.ask is None:
            return "no one can approve it here"
        answer = self.ask(CallToApprove(tool.tool.qualified_name, arguments, tool.effect))
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is True:
            return None
        return answer if isinstance(answer, str) else ""

    async def call_all(self, calls: Sequence[ModelCall]) -> list[Reply]:
        """Execute all tool calls of one turn of a model; return the answers in the same order.

        Calls that may be repeated run at the same time. Unsafe calls run one by one in the model's order, so a
        crash leaves at most one of them with an unknown outcome.
        """
        replies: dict[int, Reply] = {}

        async def make(number: int) -> None:
            replies[number] = await self.call(calls[number].name, calls[number].arguments)

        async def make_each(numbers: Sequence[int]) -> None:
            for number in numbers:
                await make(number)

        unsafe = [number for number, call in enumerate(calls) if self._is_unsafe(call.name)]
        async with asyncio.TaskGroup() as group:
            for number in range(len(calls)):
                if number not in unsafe:
                    group.create_task(make(number))
            group.create_task(make_each(unsafe))
        return [replies[number] for number in range(len(calls))]

    def _is_unsafe(self, name: str) -> bool:
        tool = self.find(name)
        return tool is not None and tool.effect is Effect.UNSAFE


def _as_pattern(text: str) -> str:
    """Return a `server.tool` pattern. A server name alone matches all of the server's tools."""
    return text if "." in text or "*" in text else f"{text}.*"


def _approval_filter(approve: Approve) -> ToolFilter | None:
    if approve is None or approve in ("unsafe", "all"):
        return None
    if isinstance(approve, str):
        raise ToolwayError(
            f"approve={approve!r} is unknown",
            detail='expected "unsafe", "all", or a list of patterns',
            hint=f'approve="unsafe", or approve=["{approve}"] for a pattern',
            code="E-ADAPTER-APPROVAL",
        )
    return ToolFilter(tuple(_as_pattern(each) for each in approve))


def _renamed(tool: ModelTool, name: str) -> ModelTool:
    return ModelTool(
        name, tool.description, tool.schema, tool.tool, tool.effect, tool.needs_approval, tool.changes, tool.adapted
    )


def _parse_arguments(arguments: Any) -> Json:
    """Return a call's arguments as an object, which is {} without arguments.

    Raises `ValueError` if they are not an object.
    """
    if isinstance(arguments, str):
        arguments = json.loads(arguments) if arguments.strip() else {}
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise ValueError(f"they are a {type(arguments).__name__}")
    return arguments
