"""`Hub`, the public class: calls the tools of many MCP servers.

    async with Hub("mcp.json") as hub:
        result = await hub.call_tool("github.search_issues", {"query": "is:open"})

Entering returns at once; each server starts in its own task. A call waits only for its own server. The engine is
`HubCore` (hub/core.py).
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from msgspec.structs import replace

from toolway.auth.token_manager import LoginCallback
from toolway.auth.token_store import DEFAULT_TOKENS, TokenStore
from toolway.callbacks import Callback, FunctionCallbacks, Roots, SamplingCallback
from toolway.catalog.catalog import Item, Prompt, Resource, Tool
from toolway.catalog.storage import CatalogStorage
from toolway.config.schema import MAX_ATTEMPTS, ConfigIssue, RetryPolicy, ServerLike, Timeout
from toolway.config.settings import AlertSettings, AuditSettings
from toolway.events import Event, EventSink
from toolway.hub.core_options import LoginOptions, Reporting, ServerDefaults
from toolway.hub.server_logs import LogListener
from toolway.hub.source import DEFAULT_CATALOG, ConfigSource
from toolway.middleware.idempotency import IdempotencyStore
from toolway.middleware.resolve import find_resource_server, parse_prompt_name
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.protocol.constants import LOG_LEVEL_META_KEY
from toolway.protocol.versions import LogLevel
from toolway.types import (
    AnyProgressCallback,
    Call,
    CallResult,
    Json,
    Middleware,
    ProgressCallback,
    PromptResult,
    ResourceResult,
    ToolResult,
)
from toolway.upstream.error_mapping import masking_errors
from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from toolway.hub.core import HubCore
    from toolway.search.results import ToolMatch

T = TypeVar("T")


_NO_OPTIONS: Final = (None,) * 5  # of `call_tool`


class Hub:
    """Client for the tools of many MCP servers, which it starts and supervises.

    Args:
        config: Path to a config file, or a mapping of names to servers (a `Server`, a URL, a command line, a config
            entry, or an SDK server object). None merges the user's and the project's config files.
        timeout: Seconds, or a `Timeout`, for servers that set no timeout.
        retry: Retry policy for servers without one.
        elicitation_callback: Answers servers' elicitation requests. Called with (server, params); returns the
            result as a dictionary, or a coroutine that returns one.
        sampling_callback: Answers servers' sampling requests, like `elicitation_callback`. If it has a parameter
            `tools`, servers may offer tools to the model, and it receives them there.
        list_roots_callback: Answers servers' roots requests. May also be the roots themselves.
        login_callback: Sends the user to the login page of a server that requires a login.
        token_store: Store for login tokens. By default, all programs of this user share one; None keeps tokens in
            memory.
        idempotency_store: Store for the results of calls with an idempotency key. None keeps them in memory.
        catalog_storage: Folder or storage for the last known tool lists. None stores no lists.
        audit_log: File or settings for an audit log; see docs/howto/audit.md. None writes no audit log.
        alerts: Folder, webhook URL, or `AlertSettings` that is notified when something needs attention: a rejected
            token, an expired login, an unknown outcome, a long rate limit, or a failed server; see
            docs/howto/monitoring.md. None sends no alerts.
        middleware: Functions that run before and after each call, the first one outermost; see
            docs/howto/middleware.md.
        network_policy: Non-public addresses that URLs may lead to, for example
            `NetworkPolicy(("jira.corp.example", "10.0.0.0/8"))`.
        log_callback: Function or coroutine function that gets each log message from a server, as a `ServerLog`.
        log_level: Lowest level of the log messages that servers send during calls, such as "warning". None asks for
            "info" if there is a `log_callback` or a reader of `events(ServerLog)`, and otherwise for no messages.

    Raises:
        ConfigError: The configuration cannot be used.

    Example:
        async with Hub({"demo": "uvx demo-server"}, timeout=30) as hub:
            print([tool.qualified_name for tool in await hub.list_tools()])
    """

    def __init__(
        self,
        config: ConfigSource = None,
        *,
        timeout: float | Timeout | None = None,
        retry: RetryPolicy | None = None,
        elicitation_callback: Callback | None = None,
        sampling_callback: SamplingCallback | None = None,
        list_roots_callback: Roots | None = None,
        login_callback: LoginCallback | None = None,
        token_store: TokenStore | None = DEFAULT_TOKENS,
        idempotency_store: IdempotencyStore | None = None,
        catalog_storage: str | os.PathLike[str] | CatalogStorage | None = DEFAULT_CATALOG,
        audit_log: str | os.PathLike[str] | AuditSettings | None = None,
        alerts: str | os.PathLike[str] | AlertSettings | None = None,
        middleware: Sequence[Middleware] = (),
        network_policy: NetworkPolicy = PUBLIC_ONLY,
        log_callback: LogListener | None = None,
        log_level: LogLevel | None = None,
    ) -> None:
        from toolway.hub.core import HubCore  # the engine: as slow to import as all that is imported above

        self._core = HubCore(
            config,
            defaults=ServerDefaults(timeout, retry, network_policy),
            callbacks=FunctionCallbacks(
                elicitation_callback, sampling_callback, list_roots_callback, follows_tasks=True
            ),
            logins=LoginOptions(login_callback, token_store),
            idempotency_store=idempotency_store,
            catalog_storage=catalog_storage,
            reporting=Reporting(audit_log, alerts, log_callback, log_level),
            middleware=middleware,
            library=True,
        )

    @classmethod
    def _from_core(cls, core: HubCore) -> Self:
        """Return a hub over an existing engine. For internal use and tests."""
        hub = cls.__new__(cls)
        hub._core = core
        return hub

    async def __aenter__(self) -> Self:
        await self._core.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop all servers at once and wait up to about 6 s for them to exit.

        A process that does not exit by itself is killed.

        Example:
            hub = await Hub("mcp.json").__aenter__()
            await hub.aclose()
        """
        await self._core.aclose()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        idempotent: bool | None = None,
        idempotency_key: str | None = None,
        progress_callback: AnyProgressCallback | None = None,
        raise_on_error: bool = True,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Call a tool and return its result.

        Args:
            name: `server.tool`, or the name of the tool alone if exactly one server has it.
            arguments: Arguments for the tool.
            timeout: Seconds for the whole call; None uses the server's setting.
            max_attempts: Attempts allowed for this call, at most 21; None uses the server's setting.
            retry: Attempts, backoff, and time limit per attempt for this call; None uses the tool's or the server's
                setting.
            idempotent: True means that the call may run again after a failure. None uses the setting or the server's
                hint. If neither allows it, a call that may have run is never sent twice.
            idempotency_key: Key for this call. A repeated call with the same key and arguments returns the stored
                result and does not run again. Another tool may use the same key.
            progress_callback: Function or coroutine function, called with (progress, total, message) for each
                progress notification.
            raise_on_error: Raise `ToolError` if the tool reports a failure. False returns the result, with `is_error`.
            meta: Additional `_meta` for the request.

        Returns:
            The tool's result.

        Raises:
            CallError: The call ended without a result. `executed` is "no", "unknown", or "yes".
            ConfigError: `max_attempts` is more than 21; nothing was sent.
            ToolError: The tool ran and reported a failure, which `raise_on_error=False` returns as a result.

        Example:
            result = await hub.call_tool("github.search_issues", {"query": "is:open"}, timeout=20)
            print(result.text)
        """
        if max_attempts is not None and max_attempts > MAX_ATTEMPTS:
            RetryPolicy(max_attempts=max_attempts)  # raises
        params: Json = {"name": name, "arguments": dict(arguments or {})}
        if meta:
            params["_meta"] = dict(meta)
        options = (max_attempts, retry, idempotent, idempotency_key, progress_callback)
        flight = None
        if options == _NO_OPTIONS:
            flight = self._core.calls.begin(name, params["arguments"], params.get("_meta"), timeout)
        if flight is not None:
            result = await flight.wait()
        else:
            progress, pending = _collect_progress(progress_callback)
            call = Call(
                name,
                "tools/call",
                params,
                timeout=timeout,
                on_progress=progress,
                max_attempts=max_attempts,
                retry=retry,
                idempotent=idempotent,
                idempotency_key=idempotency_key,
                log_level=self._core.servers.logs.level if LOG_LEVEL_META_KEY not in (meta or ()) else None,
            )
            try:
                result = await self._core.calls.request(call)
            finally:
                if pending:
                    await asyncio.gather(*pending, return_exceptions=True)
        assert isinstance(result, ToolResult)
        if raise_on_error:
            with masking_errors(self._core.mask):
                result.raise_for_error()
        return result

    async def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult:
        """Read a resource.

        Args:
            uri: URI of the resource.
            server: Server to ask. None asks the server that lists `uri`.
            timeout: Seconds for the whole call; None uses the server's setting.

        Returns:
            The contents of the resource.

        Raises:
            CallError: The call ended without a result.

        Example:
            notes = await hub.read_resource("file:///notes.md", server="files")
        """
        server = server if server is not None else find_resource_server(self._core.lists.catalog, uri)
        call = Call(uri, "resources/read", {"uri": uri}, server=server, name=uri, timeout=timeout)
        result = await self._request(call)
        assert isinstance(result, ResourceResult)
        return result

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> PromptResult:
        """Get a prompt with its arguments filled in.

        Args:
            name: `server.prompt`.
            arguments: Arguments for the prompt.
            timeout: Seconds for the whole call; None uses the server's setting.

        Returns:
            The prompt's messages.

        Raises:
            CallError: The call ended without a result.

        Example:
            prompt = await hub.get_prompt("docs.summarize", {"topic": "leases"})
        """
        ref = parse_prompt_name(self._core.servers.entries, name)
        params: Json = {"name": ref.tool, "arguments": dict(arguments or {})}
        result = await self._request(Call(name, "prompts/get", params, ref.server, ref.tool, timeout))
        assert isinstance(result, PromptResult)
        return result

    async def complete(
        self,
        ref: str,
        argument: str,
        value: str,
        *,
        server: str | None = None,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Return completions for an argument of a prompt or a resource template.

        Args:
            ref: `server.prompt`, or the URI of a resource template if `server` is given.
            argument: Name of the argument.
            value: Text typed so far.
            server: Server of the resource template.
            context: Values of other arguments.
            timeout: Seconds for the whole call; None uses the server's setting.

        Returns:
            Possible values, best first.

        Raises:
            CallError: The call ended without a result.

        Example:
            cities = await hub.complete("weather.report", "city", "Os")
        """
        if server is None:
            prompt = parse_prompt_name(self._core.servers.entries, ref)
            server, reference = prompt.server, {"type": "ref/prompt", "name": prompt.tool}
        else:
            reference = {"type": "ref/resource", "uri": ref}
        params: Json = {"ref": reference, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        result = await self._request(Call(ref, "completion/complete", params, server, ref, timeout))
        completion = result.raw.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [each for each in values if isinstance(each, str)] if isinstance(values, list) else []

    async def _request(self, call: Call) -> CallResult:
        level = self._core.servers.logs.level
        return await self._core.calls.request(call if level is None else replace(call, log_level=level))

    # -- lists --------------------------------------------------------------------------------------------------------

    def known_tools(self, *, server: str | None = None) -> list[Tool]:
        """Return the tools known now, without waiting.

        Args:
            server: Return only tools of this server.

        Returns:
            Tools from the last known lists, including those of servers that are not running.

        Example:
            names = [tool.qualified_name for tool in hub.known_tools(server="github")]
        """
        return self._core.lists.catalog.tools(server=server)

    async def search_tools(
        self, query: str | Sequence[str], *, limit: int = 5, server: str | None = None
    ) -> list[ToolMatch]:
        """Return the known tools that fit a task best, highest score first. Does not start any server.

        If servers are starting, waits for their tools as `list_tools` does.

        Args:
            query: The task in a few words, or a list with one string per step.
            limit: How many tools to return, at most 50.
            server: Search only this server's tools.

        Returns:
            Tools with scores and reasons. If nothing fits well, the closest ones; empty only if no tools are known.

        Example:
            for match in await hub.search_tools("make an issue from this mail"):
                print(match.tool.qualified_name, match.score)
        """
        await self._core.lists.waits.wait_for_starting()
        search = await self._core.open_tool_search()
        return list((await search.search_async(query, limit=limit, server=server)).matches)

    async def list_tools(self, *, server: str | None = None, wait: float | None = None) -> list[Tool]:
        """Return the tools of all servers. Servers that do not answer in time are named in the log.

        Args:
            server: Return only tools of this server.
            wait: Seconds to wait for servers that have not sent their tools yet. None waits 30 s for `server`; for all
                servers it waits 2 s, but only a quarter of a second for those that were late in the last 5 minutes.

        Returns:
            Each server's tools; those known from an earlier run if the server does not send them in time.

        Raises:
            NotFound: No such server.

        Example:
            for tool in await hub.list_tools():
                print(tool.qualified_name, tool.description)
        """
        with masking_errors(self._core.mask):
            return _only(Tool, await self._core.lists.list_items("tools", server, wait))

    async def find_tool(self, name: str, *, timeout: float = 30.0) -> Tool:
        """Return the tool with this name.

        Args:
            name: `server.tool`, `server__tool`, or the name of the tool alone if exactly one server has it.
            timeout: Seconds to wait for servers that have not sent their tools yet.

        Returns:
            The tool, with its server.

        Raises:
            NotFound: No server has the tool, or several servers have one (`E-TOOL-AMBIGUOUS`; `detail` lists them).
            AccessDenied: The server's allow or deny list blocks the tool (`E-TOOL-DENIED`).

        Example:
            tool = await hub.find_tool("search_issues")
            print(tool.server, tool.input_schema)
        """
        with masking_errors(self._core.mask):
            return await self._core.lists.find_tool(name, timeout)

    async def list_prompts(self, *, server: str | None = None, wait: float | None = None) -> list[Prompt]:
        """Return the prompts of all servers.

        Args:
            server: Return only prompts of this server.
            wait: Seconds to wait for servers that have not sent their list yet. None waits as `list_tools` does.

        Returns:
            Each server's prompts; those known from an earlier run if the server does not send them in time.

        Raises:
            NotFound: No such server.

        Example:
            prompts = await hub.list_prompts(server="docs")
        """
        with masking_errors(self._core.mask):
            return _only(Prompt, await self._core.lists.list_items("prompts", server, wait))

    async def list_resources(self, *, server: str | None = None, wait: float | None = None) -> list[Resource]:
        """Return the resources of all servers.

        Args:
            server: Return only resources of this server.
            wait: Seconds to wait for servers that have not sent their list yet. None waits as `list_tools` does.

        Returns:
            Each server's resources; those known from an earlier run if the server does not send them in time.

        Raises:
            NotFound: No such server.

        Example:
            uris = [resource.uri for resource in await hub.list_resources()]
        """
        with masking_errors(self._core.mask):
            return _only(Resource, await self._core.lists.list_items("resources", server, wait))

    async def list_resource_templates(self, *, server: str | None = None, wait: float | None = None) -> list[Resource]:
        """Return the resource templates of all servers.

        Args:
            server: Return only templates of this server.
            wait: Seconds to wait for servers that have not sent their list yet. None waits as `list_tools` does.

        Returns:
            Each server's templates; those known from an earlier run if the server does not send them in time.

        Raises:
            NotFound: No such server.

        Example:
            templates = await hub.list_resource_templates()
        """
        with masking_errors(self._core.mask):
            return _only(Resource, await self._core.lists.list_items("templates", server, wait))

    # -- servers ------------------------------------------------------------------------------------------------------

    @property
    def config_issues(self) -> tuple[ConfigIssue, ...]:
        """Return the configuration's non-fatal problems.

        Returns:
            Problems, each with server, severity, message, detail and hint.

        Example:
            for issue in hub.config_issues:
                print(issue.server, issue.message, issue.hint)
        """
        return self._core.servers.config.issues

    async def add_server(self, name: str, server: ServerLike, *, replace: bool = False) -> None:
        """Add a server while the hub is running, or replace one. Does not wait for a new server to start.

        Use `wait_ready(name)` to wait until it is ready and its tools are known. When a server is replaced, new calls
        use the new definition at once, and the method returns when the old server has stopped. Calls still running on
        the old server may finish first; after 30 s it is stopped anyway. Adding an equal definition changes nothing.

        Args:
            name: Name of the server; the part of `server.tool` before the dot.
            server: A `Server`, a URL, a command line, a config entry, or an SDK server object.
            replace: Replace the server with this name, if there is one.

        Raises:
            ConfigError: The name is in use and `replace` is false, or the server cannot be used.

        Example:
            await hub.add_server("time", "uvx mcp-server-time")
            await hub.wait_ready("time", timeout=30)
            await hub.add_server("time", "uvx mcp-server-time --utc", replace=True)
        """
        if replace and name in self._core.servers.entries:
            await self._core.servers.replace(name, server)
        else:
            await self._core.servers.add(name, server)

    async def remove_server(self, name: str) -> None:
        """Remove a server and wait for it to stop.

        Running calls may finish first; after 30 s the server is stopped anyway.

        Args:
            name: Name of the server.

        Raises:
            NotFound: No such server.

        Example:
            await hub.remove_server("time")
        """
        await self._core.servers.remove(name)

    async def reload(self, config: ConfigSource) -> dict[str, str]:
        """Load a configuration; add, change and remove servers. Unchanged servers keep running.

        Running calls to changed and removed servers may finish, as they do when `add_server` replaces a server.

        Args:
            config: As in the constructor.

        Returns:
            "added", "changed" or "removed" by server name.

        Raises:
            ConfigError: The configuration cannot be used; nothing was changed.

        Example:
            changes = await hub.reload("mcp.json")
        """
        return await self._core.servers.reload(config)

    def set_denied_tools(self, server: str, names: Iterable[str] | None) -> None:
        """Replace a server's deny list, effective at once and without a restart.

        A denied tool is not listed, and calling it raises `AccessDenied` before anything is sent. Running calls may
        finish. The list stays in force across config reloads until the server is removed.

        Args:
            server: Name of the server.
            names: Tool names or patterns (`*`, `?`). None restores the configured deny list.

        Raises:
            NotFound: No such server.

        Example:
            hub.set_denied_tools("files", ["write_file", "delete_*"])
        """
        self._core.servers.set_denied_tools(server, names)

    def restart_server(self, name: str) -> None:
        """Restart a server now, in any state.

        Args:
            name: Name of the server.

        Raises:
            NotFound: No such server.

        Example:
            hub.restart_server("time")
        """
        self._core.servers.restart(name)

    def status(self) -> dict[str, ServerStatus]:
        """Return the current status of every server by name.

        Returns:
            Each server's state, cause, hint, protocol version, process id, and counters.

        Example:
            broken = {name: status.why for name, status in hub.status().items() if status.state == "down"}
        """
        return self._core.servers.status()

    def server_info(self, name: str) -> ServerInfo | None:
        """Return a server's self-description: name, version, protocol version, capabilities, instructions.

        Args:
            name: Name of the server.

        Returns:
            The description, or None if the server is not connected; `wait_ready(name)` waits for it.

        Raises:
            NotFound: No such server.

        Example:
            await hub.wait_ready("github")
            print(hub.server_info("github").capabilities)
        """
        return self._core.servers.info(name)

    @overload
    async def check_health(self, server: str, *, timeout: float = 5.0, start: bool = False) -> HealthResult: ...

    @overload
    async def check_health(
        self, server: None = None, *, timeout: float = 5.0, start: bool = False
    ) -> dict[str, HealthResult]: ...

    async def check_health(
        self, server: str | None = None, *, timeout: float = 5.0, start: bool = False
    ) -> HealthResult | dict[str, HealthResult]:
        """Check right now whether servers respond to a ping, and to their health URL if one is configured.

        `status()` returns what was last known, whereas this method asks the servers, all at the same time.

        Args:
            server: Server to check; None checks all.
            timeout: Seconds for each check.
            start: Start servers that are not running. If False, their `ok` is None.

        Returns:
            The result of `server`, or the results of all servers by name.

        Raises:
            NotFound: No such server.

        Example:
            failed = [name for name, result in (await hub.check_health()).items() if result.ok is False]
        """
        results = await self._core.servers.check_health(server, timeout=timeout, start=start)
        return results if server is None else results[server]

    async def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None:
        """Wait until a server, or every enabled server, is ready.

        Args:
            name: Server to wait for; None waits for all.
            timeout: Seconds to wait; None waits forever.

        Raises:
            ServerUnavailable: A server failed. Raised as soon as one fails.
            CallTimeout: Time ran out.

        Example:
            await hub.wait_ready("github", timeout=10)
        """
        with masking_errors(self._core.mask):
            await self._core.servers.wait_ready(name, timeout=timeout)

    # -- logins -------------------------------------------------------------------------------------------------------

    async def login(self, server: str, callback: LoginCallback, *, redirect_uri: str | None = None) -> None:
        """Log a user in to a server and store the token, even if one is already stored.

        Args:
            server: Name of the server.
            callback: Sends the user to the login page and returns the URL that the browser is redirected to.
            redirect_uri: Overrides the redirect URI in the config entry.

        Raises:
            NotFound: No such server.
            AccessDenied: The login failed, or the server does not support logins.

        Example:
            await hub.login("notion", open_browser)
        """
        with masking_errors(self._core.mask):
            await self._core.servers.logins.login(server, callback, redirect_uri=redirect_uri)

    async def logout(self, server: str) -> bool:
        """Delete a stored login and revoke it if its issuer supports that.

        Args:
            server: Name of the server.

        Returns:
            True if there was a login.

        Raises:
            NotFound: No such server.
            AccessDenied: The server does not support logins.

        Example:
            await hub.logout("notion")
        """
        with masking_errors(self._core.mask):
            return await self._core.servers.logins.logout(server)

    # -- observation --------------------------------------------------------------------------------------------------

    def events(self, *types: type[Event]) -> AsyncIterator[Event]:
        """Iterate over events from now on, of these types or all.

        A slow consumer loses events and gets an `EventsMissed` with the count. Secrets from server entries are masked
        in strings sent by servers, but not in call arguments (`CallFinished.params`).

        Args:
            types: Event types to receive; none means all.

        Returns:
            An iterator that ends when the hub is closed.

        Example:
            async for event in hub.events(CallFinished):
                print(event.name, event.seconds)
        """
        return self._core.events(*types, masked=True)

    def add_sink(self, sink: EventSink) -> Callable[[], None]:
        """Deliver every event to `sink` synchronously.

        Args:
            sink: Object with the methods of `EventSink`; they must not block.

        Returns:
            Function that removes the sink again.

        Example:
            remove = hub.add_sink(my_metrics)
            ...
            remove()
        """
        self._core.instrumentation.add_sink(sink)
        return lambda: self._core.instrumentation.remove_sink(sink)

    def enable_tracing(self, provider: TracerProvider | None = None, *, sample_ratio: float | None = None) -> None:
        """Record calls as OpenTelemetry spans. Requires `toolway[otel]`.

        Args:
            provider: Tracer provider; None uses the program's global one.
            sample_ratio: Share of calls to record if the caller sent no trace context; None lets the provider decide.

        Example:
            hub.enable_tracing(sample_ratio=0.1)
        """
        self._core.enable_tracing(provider, sample_ratio)


def _only(item_type: type[T], items: Iterable[Item]) -> list[T]:
    return [item for item in items if isinstance(item, item_type)]


def _collect_progress(
    callback: AnyProgressCallback | None,
) -> tuple[ProgressCallback | None, list[asyncio.Future[None]]]:
    """Wrap a progress callback in a synchronous function, and return it with the list of tasks that it starts.

    The list stays empty if `callback` is a plain function.
    """
    pending: list[asyncio.Future[None]] = []
    if callback is None:
        return None, pending

    def report(progress: float, total: float | None, message: str | None) -> None:
        result = callback(progress, total, message)
        if inspect.isawaitable(result):
            pending.append(asyncio.ensure_future(_after(pending[-1] if pending else None, result)))

    return report, pending


async def _after(previous: asyncio.Future[None] | None, report: Awaitable[None]) -> None:
    """Await the previous progress report before this one, to keep them in order."""
    if previous is not None:
        await asyncio.wait([previous])
    await report
