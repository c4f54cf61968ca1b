"""Log messages of servers reach a program that listens, without anything else in its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.bridge_lab import pipe_entry
from tests.gateway.full_server import FullHttp
from toolway import ConfigError, Hub, ServerLog
from toolway.types import Json

pytestmark = pytest.mark.anyio

EVERY_SERVER = pytest.mark.parametrize(
    ("era", "transport"), [(era, transport) for era in ("modern", "legacy") for transport in ("stdio", "http")]
)
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


@asynccontextmanager
async def hub_for(era: str, transport: str, **options: Any) -> AsyncIterator[Hub]:
    """A hub with a server whose tool `log` logs at the levels debug, info and error, as far as it was asked to."""
    if transport == "stdio":
        async with Hub({"full": pipe_entry(era)}, catalog_storage=None, **options) as hub:
            await hub.find_tool("full.log", timeout=60)  # so calls may skip the middleware chain
            yield hub
        return
    async with FullHttp(era, transport) as fake, Hub({"full": fake.url}, catalog_storage=None, **options) as hub:
        await hub.find_tool("full.log", timeout=60)
        yield hub


async def wait_for_logs(logs: list[ServerLog], levels: list[str]) -> None:
    """Wait for these messages, and for a moment in which another one could arrive."""
    async with asyncio.timeout(20):
        while len(logs) < len(levels):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert [(each.server, each.logger, each.level) for each in logs] == [("full", "full", each) for each in levels]
    assert all(each.data == {"words": each.level, "nothing": None} for each in logs)
    logs.clear()


@EVERY_SERVER
@pytest.mark.user_trial("22")
async def test_log_callback_gets_messages_of_every_call(era: str, transport: str) -> None:
    logs: list[ServerLog] = []

    async def on_log(log: ServerLog) -> None:
        logs.append(log)

    async with hub_for(era, transport, log_callback=on_log) as hub:
        for _ in range(3):  # the first call may need the middleware chain, the others skip it
            assert (await hub.call_tool("full.log")).text == "info error"
            await wait_for_logs(logs, ["info", "error"])
        await hub.call_tool("full.log", max_attempts=1)
        await wait_for_logs(logs, ["info", "error"])


@EVERY_SERVER
@pytest.mark.user_trial("22")
async def test_log_level_is_requested_from_servers(era: str, transport: str) -> None:
    logs: list[ServerLog] = []
    async with hub_for(era, transport, log_callback=logs.append, log_level="debug") as hub:
        for _ in range(2):
            assert (await hub.call_tool("full.log")).text == "debug info error"
            await wait_for_logs(logs, ["debug", "info", "error"])
    async with hub_for(era, transport, log_callback=logs.append, log_level="error") as hub:
        for _ in range(2):
            assert (await hub.call_tool("full.log")).text == "error"
            await wait_for_logs(logs, ["error"])


@EVERY_SERVER
@pytest.mark.user_trial("22")
async def test_event_reader_gets_messages_from_then_on(era: str, transport: str) -> None:
    async with hub_for(era, transport) as hub:
        before = (await hub.call_tool("full.log")).text
        assert before == ("" if era == "modern" else "info error")  # a legacy server decides itself until it is asked
        events = hub.events(ServerLog)
        assert (await hub.call_tool("full.log")).text == "info error"
        async with asyncio.timeout(20):
            found = [await anext(events), await anext(events)]
        assert [event.level for event in found if isinstance(event, ServerLog)] == ["info", "error"]
        await events.aclose()  # type: ignore[attr-defined]  # an async generator
        assert (await hub.call_tool("full.log")).text == before


@pytest.mark.user_trial("22")
async def test_log_level_in_call_meta_applies_to_that_call() -> None:
    async with hub_for("modern", "http", log_level="debug") as hub:
        assert (await hub.call_tool("full.log", meta={LOG_LEVEL: "error"})).text == "error"
        assert (await hub.call_tool("full.log")).text == "debug info error"


async def test_log_secrets_are_masked_and_failing_callback_is_ignored() -> None:
    logs: list[ServerLog] = []

    def on_log(log: ServerLog) -> None:
        logs.append(log)
        raise ValueError("a bug of the program")

    entry: Json = pipe_entry("modern")
    entry["env"] = {**entry.get("env", {}), "SECRET_TOKEN": "words-that-are-secret-1234"}
    async with Hub({"full": entry}, catalog_storage=None, log_callback=on_log) as hub:
        assert (await hub.call_tool("full.log")).text == "info error"
        hub._core.emit(ServerLog("full", "info", ["the words-that-are-secret-1234"]))
        async with asyncio.timeout(20):
            while len(logs) < 3:
                await asyncio.sleep(0.01)
    assert "words-that-are-secret" not in str(logs[-1].data)


def test_unknown_log_level_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="log_level must be one of emergency"):
        Hub({}, log_level="loud")  # type: ignore[arg-type]  # that is the point
