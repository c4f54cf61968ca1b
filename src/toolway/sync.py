"""The sync face: the same hub, run by an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from toolway.catalog.index import Tool
from toolway.model import OnProgress, Reply
from toolway.upstream.status import Status

T = TypeVar("T")


class _AsyncHub(Protocol):
    """What is borrowed from the hub; spelled out so that this module need not import it."""

    async def __aenter__(self) -> Any: ...

    async def close(self) -> None: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply: ...

    async def read_resource(self, uri: str, *, server: str | None = None, timeout: float | None = None) -> Reply: ...

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> Reply: ...

    async def complete(self, target: str, argument: str, value: str, *, server: str | None = None) -> list[str]: ...

    async def list_tools(self, *, server: str | None = None, timeout: float = 30.0) -> list[Tool]: ...

    def tools(self, query: str | None = None, *, server: str | None = None) -> list[Tool]: ...

    def status(self) -> dict[str, Status]: ...

    async def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None: ...


class SyncHub:
    """A hub for scripts and notebooks. Same names, same errors, no `await`."""

    def __init__(self, make: Callable[[], _AsyncHub]) -> None:
        self._hub = make()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toolway", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._hub.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all servers and the thread. Safe to call twice."""
        if self._thread.is_alive():
            self._run(self._hub.close())
            self._run(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply:
        return self._run(self._hub.call_tool(name, arguments, timeout=timeout, key=key, on_progress=on_progress))

    def read_resource(self, uri: str, *, server: str | None = None, timeout: float | None = None) -> Reply:
        return self._run(self._hub.read_resource(uri, server=server, timeout=timeout))

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> Reply:
        return self._run(self._hub.get_prompt(name, arguments, timeout=timeout))

    def complete(self, target: str, argument: str, value: str, *, server: str | None = None) -> list[str]:
        return self._run(self._hub.complete(target, argument, value, server=server))

    def list_tools(self, *, server: str | None = None, timeout: float = 30.0) -> list[Tool]:
        return self._run(self._hub.list_tools(server=server, timeout=timeout))

    def tools(self, query: str | None = None, *, server: str | None = None) -> list[Tool]:
        return self._ask(lambda: self._hub.tools(query, server=server))

    def status(self) -> dict[str, Status]:
        return self._ask(self._hub.status)

    def wait_ready(self, name: str | None = None, *, timeout: float | None = None) -> None:
        self._run(self._hub.wait_ready(name, timeout=timeout))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: the call is cancelled, not left behind
            raise

    def _ask(self, question: Callable[[], T]) -> T:
        """A question that does not wait, asked in the loop's thread because its answer lives there."""

        async def ask() -> T:
            return question()

        return self._run(ask())
