"""Work that may block for as long as it likes, in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


def in_thread(work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """What `work` returns, from a thread that nobody has to wait for, not even the interpreter at its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, failure: Exception | None) -> None:
        if future.done():
            return
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(cast(T, value))

    def run() -> None:
        value, failure = None, None
        try:
            value = work(*args)
        except Exception as exc:
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(deliver, value, failure)

    threading.Thread(target=run, name="toolway-dial", daemon=True).start()
    return future
