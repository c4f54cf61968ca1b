"""`SyncHub` has the constructor and the methods of `Hub`, without `await`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import toolway
from toolway import CallTimeout, Hub, SyncHub
from toolway.events import CallFinished
from toolway.testing import fake_server

RENAMED = {"aclose": "close"}  # as in httpx


def public_members(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", ["__init__", *public_members(Hub)])
def test_a_method_of_the_hub_is_there_with_the_same_parameters(name: str) -> None:
    ours = getattr(Hub, name)
    theirs = getattr(SyncHub, RENAMED.get(name, name))
    if isinstance(ours, property):
        assert isinstance(theirs, property)
        return
    assert not inspect.iscoroutinefunction(theirs)
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
    assert _result_of(ours) == _result_of(theirs)


def _result_of(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function).return_annotation).replace("AsyncIterator", "Iterator")


def test_the_sync_hub_has_nothing_more() -> None:
    assert set(public_members(SyncHub)) == {RENAMED.get(name, name) for name in public_members(Hub)}


def test_the_hub_is_small() -> None:
    assert len(public_members(Hub)) <= 28  # room for one more; find_tool, set_denied_tools and check_health are counted


def test_events_can_be_iterated() -> None:
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        events = hub.events(CallFinished)
        assert hub.call_tool("fake.echo", {"text": "x"}).text == "x"
        event = next(events)
        assert isinstance(event, CallFinished) and event.server == "fake"


def test_progress_reaches_functions_and_coroutine_functions_in_order() -> None:
    seen: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        hub.call_tool("fake.progress", {"steps": 3}, progress_callback=report)
        in_coroutine, seen = seen, []
        hub.call_tool("fake.progress", {"steps": 3}, progress_callback=lambda progress, *_: seen.append(progress))
    assert in_coroutine == seen == sorted(seen) and len(seen) >= 2


def test_a_timeout_is_a_timeout_error() -> None:
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        hub.wait_ready()
        with pytest.raises(TimeoutError) as caught:
            hub.call_tool("fake.sleep", {"seconds": 30}, timeout=0.5)
    assert isinstance(caught.value, CallTimeout) and caught.value.executed == "unknown"


def test_a_failed_tool_raises_if_asked_to() -> None:
    with SyncHub({"fake": fake_server()}, catalog_storage=None) as hub:
        assert hub.call_tool("fake.fail").is_error
        with pytest.raises(toolway.ToolError) as caught:
            hub.call_tool("fake.fail", raise_on_error=True)
    assert caught.value.executed == "yes" and caught.value.result.is_error
