"""`SyncHub`: the blocking form of `Hub`, for scripts and notebooks.

It runs a `Hub` on an event loop in a thread. It has the same constructor and methods as `Hub`, but without `await`;
tests/hub/test_sync.py compares the signatures.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from toolway._os import register_at_fork
from toolway.auth.token_manager import LoginCallback
from toolway.auth.token_store import DEFAULT_TOKENS, TokenStore
from toolway.callbacks import Callback, Roots, SamplingCallback
from toolway.catalog.catalog import Prompt, Resource, Tool
from toolway.catalog.storage import CatalogStorage
from toolway.config.schema import ConfigIssue, RetryPolicy, ServerLike, Timeout
from toolway.config.settings import AlertSettings, AuditSettings
from toolway.errors import closed_error
from toolway.events import Event, EventSink
from toolway.hub.hub import Hub
from toolway.hub.server_logs import LogListener
from toolway.hub.source import DEFAULT_CATALOG, ConfigSource
from toolway.middleware.idempotency import IdempotencyStore
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy
from toolway.protocol.versions import LogLevel
from toolway.types import AnyProgressCallback, Middleware, PromptResult, ResourceResult, ToolResult
from toolway.upstream.status import HealthResult, ServerInfo, ServerStatus

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from toolway.search.results import ToolMatch

T = TypeVar("T")
THREAD_CHECK_INTERVAL_S: Final = 0.5  # seconds between two checks that the thread of the event loop still runs
FORK_TIMEOUT_S: Final = 1.0  # seconds that a fork waits for an event loop to pause, and that a loop stays paused
EXIT_TIMEOUT_S: Final = 10.0  # seconds to close a hub at exit; a callback that never returns must not keep the program
_open_hubs: set[SyncHub] = set()  # closed when the interpreter exits


class SyncHub:
    """Blocking client for the tools of many MCP servers, with the arguments, methods, and errors of `Hub`.

    It opens on the first call, or when you enter it with `with`. It closes at the end of the `with` block, with
    `close()`, or when the program exits. Any thread may use it. A call raises `ToolwayError` if the hub is closed. It
    raises `RuntimeError` after a fork, because the child lacks the hub's thread, and inside a callback, because
    callbacks run in the event loop's thread.

    Example:
        with SyncHub("mcp.json") as hub:
            print(hub.call_tool("github.search_issues", {"query": "is:open"}).text)
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
        self._hub = Hub(
            config,
            timeout=timeout,
            retry=retry,
            elicitation_callback=elicitation_callback,
            sampling_callback=sampling_callback,
            list_roots_callback=list_roots_callback,
            login_callback=login_callback,
            token_store=token_store,
            idempotency_store=idempotency_store,
            catalog_storage=catalog_storage,
            audit_log=audit_log,
            alerts=alerts,
            middleware=middleware,
            network_policy=network_policy,
            log_callback=log_callback,
            log_level=log_level,
        )
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # None before the first call
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all servers and the thread. Safe to call twice."""
        self._close(None)

    def _close(self, limit: float | None) -> None:
        """Close the hub and wait up to `limit` seconds for it; None waits without a limit."""
        if self._process != os.getpid():
            return  # a fork has neither the thread nor the servers
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback cannot close the hub: its thread would wait for itself")
        with self._lock:
            self._closed = True
            loop, thread, self._loop = self._loop, self._thread, None
            _open_hubs.discard(self)
        if loop is None or thread is None:
            return
        try:
            self._wait(asyncio.run_coroutine_threadsafe(self._hub.aclose(), loop), thread, limit)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(limit)

    # -- the thread of the event loop ---------------------------------------------------------------------------------

    def _open(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        """Return the event loop and its thread. Start them and open the hub if necessary.

        Raises `ToolwayError` if the hub is closed, and `RuntimeError` if this thread or process cannot use it.
        """
        if self._process != os.getpid():
            if self._thread is not None:
                raise RuntimeError("another process opened this hub: create a hub in each process, after the fork")
            self._process, self._lock = os.getpid(), threading.Lock()  # another thread may have held it at the fork
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback cannot call the hub: its thread would wait for itself; use `Hub` with await")
        with self._lock:
            if self._closed:
                raise closed_error("the hub is closed")
            if self._loop is None or self._thread is None:
                self._start()
            assert self._loop is not None and self._thread is not None
            return self._loop, self._thread

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run_loop, args=(loop,), name="toolway", daemon=True)
        thread.start()
        self._thread = thread  # before the hub opens: a callback may run
        try:
            self._wait(asyncio.run_coroutine_threadsafe(self._hub.__aenter__(), loop), thread)
        except BaseException:
            self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            raise
        self._loop = loop
        _open_hubs.add(self)

    @staticmethod
    def _wait(future: ThreadFuture[T], thread: threading.Thread, limit: float | None = None) -> T:
        """Wait up to `limit` seconds for a coroutine that runs in the event loop, and return its result.

        If `limit` is None, wait without a limit. Raises `ToolwayError` if the limit is reached, or if the event
        loop's thread ends before the coroutine.
        """
        end = time.monotonic() + limit if limit is not None else None
        try:
            while True:
                with suppress(TimeoutError):
                    return future.result(THREAD_CHECK_INTERVAL_S)
                if future.done():
                    return future.result()
                if not thread.is_alive() or (end is not None and time.monotonic() > end):
                    raise closed_error("the hub was closed during the call")
        except CancelledError:
            raise closed_error("the hub was closed during the call") from None
        except BaseException:
            future.cancel()  # after Ctrl-C: the call is cancelled, not abandoned
            raise

    # -- calls --------------------------------------------------------------------------------------------------------

    def call_tool(
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
        """Call a tool and return its result. See `Hub.call_tool`."""
        return self._run(
            self._hub.call_tool(
                name,
                arguments,
                timeout=timeout,
                max_attempts=max_attempts,
                retry=retry,
                idempotent=idempotent,
                idempotency_key=idempotency_key,
                progress_callback=progress_callback,
                raise_on_error=raise_on_error,
                meta=meta,
            )
        )

    def read_resource(self, uri: str, *, server: str | None = None, timeout: float | None = None) -> ResourceResult:
        """Read a resource. See `Hub.read_resource`."""
        return self._run(self._hub.read_resource(uri, server=server, timeout=timeout))

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> PromptResult:
        """Get a prompt with its arguments filled in. See `Hub.get_prompt`."""
        return self._run(self._hub.get_prompt(name, arguments, timeout=timeout))

    def complete(
        self,
        ref: str,
        argument: str,
        value: str,
        *,
        server: str | None = None,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Return completions for an argument of a prompt or a resource template. See `Hub.complete`."""
        return self._run(self._hub.complete(ref, argument, value, server=server, context=context, timeout=timeout))

    # -- lists --------------------------------------------------------------------------------------------------------

    def known_tools(self, *, server: str | None = None) -> list[Tool]:
        """Return the tools known now, without waiting. See `Hub.known_tools`."""
        return self._in_loop(lambda: self._hub.known_tools(server=server))

    def search_tools(self, query: str | Sequence[str], *, limit: int = 5, server: str | None = None) -> list[ToolMatch]:
        """Return the known tools that fit a task best. See `Hub.search_tools`."""
        return self._run(self._hub.search_tools(query, limit=limit, server=server))

    def list_tools(self, *, server: str | None = None, wait: float | None = None) -> list[Tool]:
        """Return the tools of all servers. See `Hub.list_tools`."""
        return self._run(self._hub.list_tools(server=server, wait=wait))

    def find_tool(self, name: str, *, timeout: float = 30.0) -> Tool:
        """Return the tool with this name. See `Hub.find_tool`."""
        return self._run(self._hub.find_tool(name, timeout=timeout))

    def list_prompts(self, *, server: str | None = None, wait: float | None = None) -> list[Prompt]:
        """Return the prompts of all servers. See `Hub.list_prompts`."""
        return self._run(self._hub.list_prompts(server=server, wait=wait))

    def list_resources(self, *, server: str | None = None, wait: float | None = None) -> list[Resource]:
        """Return the resources of all servers. See `Hub.list_resources`."""
        return self._run(self._hub.list_resources(server=server, wait=wait))

    def list_resource_templates(self, *, server: str | None = None, wait: float | None = None) -> list[Resource]:
        """Return the resource templates of all servers. See `Hub.list_resource_templates`."""
        return self._run(self._hub.list_resource_templates(server=server, wait=wait))

    # -- servers ------------------------------------------------------------------------------------------------------

    @property
    def config_issues(self) -> tuple[ConfigIssue, ...]:
        """Return the non-fatal problems of the configuration."""
        return self._hub.config_issues

    def add_server(self, name: str, server: ServerLike, *, replace: bool = False) -> None:
        """Add a server while the hub is running, or replace one. See `Hub.add_server`."""
        self._run(self._hub.add_server(name, server, replace=replace))

    def remove_server(self, name: str) -> None:
        """Remove a server and wait until it has stopped. See `Hub.remove_server`."""
        self._run(self._hub.remove_server(name))

    def reload(self, config: ConfigSource) -> dict[str, str]:
        """Load a configuration; add, change and remove servers. See `Hub.reload`."""
        return self._run(self._hub.reload(config))

    def set_denied_tools(self, server: str, names: Iterable[str] | None) -> None:
        """Replace a server's deny list. See `Hub.set_denied_tools`."""
        self._in_loop(lambda: self._hub.set_denied_tools(server, names))

    def restart_server(self, name: str) -> None:
        """Restart a server now, in any state. See `Hub.restart_server`."""
        self._in_loop(lambda: self._hub.restart_server(name))

    def status(self) -> dict[str, ServerStatus]:
        """Return the current status of every server by name. See `Hub.status`."""
        return self._in_loop(self._hub.status)

    def server_info(self, name: str) -> ServerInfo | None:
        """Return a server's description of itself. See `Hub.server_info`."""
        return self._in_loop(lambda: self._hub.server_info(name))

    @overload
    def check_health(self, server: str, *, timeout: float = 5.0, start: bool = False) -> HealthResult: ...

    @overload
    def check_health(
        self, server: None = None, *, timeout: float = 5.0, start: bool = False
    ) -> dict[str, HealthResult]: ...

    def check_health(
        self, server: str | None = None, *, timeout: float = 5.0, start: bool = False
    ) -> HealthResult | dict[str, HealthResult]:
        """Check right now whether servers respond. See `Hub.check_health`."""
        results = self._run(self._hub._core.servers.check_health(server, timeout=timeout, start=start))
        return results if server is None else results[server]

    def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None:
        """Wait until a server, or every enabled server, is ready. See `Hub.wait_ready`."""
        self._run(self._hub.wait_ready(name, timeout=timeout))

    # -- logins -------------------------------------------------------------------------------------------------------

    def login(self, server: str, callback: LoginCallback, *, redirect_uri: str | None = None) -> None:
        """Log a user in to a server and store the token. See `Hub.login`."""
        self._run(self._hub.login(server, callback, redirect_uri=redirect_uri))

    def logout(self, server: str) -> bool:
        """Delete a stored login. See `Hub.logout`."""
        return self._run(self._hub.logout(server))

    # -- observation --------------------------------------------------------------------------------------------------

    def events(self, *types: type[Event]) -> Iterator[Event]:
        """Iterate over events from now on, of these types or all. See `Hub.events`."""
        return self._iterate(self._in_loop(lambda: self._hub.events(*types)))

    def add_sink(self, sink: EventSink) -> Callable[[], None]:
        """Deliver every event to `sink` in the thread of the event loop. See `Hub.add_sink`."""
        remove = self._in_loop(lambda: self._hub.add_sink(sink))
        return lambda: self._in_loop(remove)

    def enable_tracing(self, provider: TracerProvider | None = None, *, sample_ratio: float | None = None) -> None:
        """Record calls as OpenTelemetry spans. See `Hub.enable_tracing`."""
        self._in_loop(lambda: self._hub.enable_tracing(provider, sample_ratio=sample_ratio))

    # -- the other thread ---------------------------------------------------------------------------------------------

    def _iterate(self, stream: AsyncIterator[Event]) -> Iterator[Event]:
        async def fetch() -> Event | None:
            return await anext(stream, None)

        while (event := self._run(fetch())) is not None:
            yield event

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop, thread = self._open()
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except BaseException:
            work.close()
            raise
        return self._wait(future, thread)

    def _in_loop(self, read: Callable[[], T]) -> T:
        async def run() -> T:
            return read()

        return self._run(run())


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a hub's event loop until it is stopped, then cancel everything still running and close the loop."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.wait(pending, timeout=1.0))
    finally:
        loop.close()


def _close_open_hubs() -> None:
    for hub in tuple(_open_hubs):
        with suppress(Exception):  # the reaper stops the servers anyway when this process has ended
            hub._close(EXIT_TIMEOUT_S)


class _ForkPause:
    """Pauses the event loops of open hubs during a fork.

    A child process only has the thread that forked, so a lock held by another thread, such as an import lock, would
    stay locked in the child forever. A paused event loop holds no lock, because it pauses between two callbacks.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()  # two threads may fork at the same time

    def begin(self) -> None:
        """Pause the event loops, waiting at most `FORK_TIMEOUT_S` for each."""
        self._of_thread.resume = resume = threading.Event()
        for hub in tuple(_open_hubs):
            loop, paused = hub._loop, threading.Event()
            if loop is None or threading.current_thread() is hub._thread:
                continue
            with suppress(RuntimeError):  # the loop is already closed
                loop.call_soon_threadsafe(_pause, paused, resume)
                paused.wait(FORK_TIMEOUT_S)

    def end(self) -> None:
        """Let the event loops of this process continue."""
        self._of_thread.resume.set()


def _pause(paused: threading.Event, resume: threading.Event) -> None:
    paused.set()
    resume.wait(FORK_TIMEOUT_S)


_fork_pause: Final = _ForkPause()
atexit.register(_close_open_hubs)
register_at_fork(before=_fork_pause.begin, after_in_parent=_fork_pause.end, after_in_child=_open_hubs.clear)
