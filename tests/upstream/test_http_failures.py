"""What an error of an HTTP server says is what happened: the status, the attempts, and whether to check something."""

from __future__ import annotations

import logging

import pytest

from toolway import Hub, RetryPolicy
from toolway.errors import AccessDenied, OutcomeUnknown
from toolway.testing import FakeHttp

pytestmark = [pytest.mark.anyio, pytest.mark.user_trial("10")]
ONCE = RetryPolicy(max_attempts=1)


async def test_401_without_a_token_sends_the_call_once() -> None:
    async with FakeHttp() as fake, Hub({"s": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        fake.set_mode("status=401;on=echo")
        with pytest.raises(AccessDenied) as caught:
            await hub.call_tool("s.echo", {"text": "x"})
        sent = fake.stats.requests["tools/call"]
    assert (sent, caught.value.attempts) == (1, 1)


@pytest.mark.parametrize(("tool", "warnings"), [("echo", 0), ("counter", 1)])
async def test_http_500_is_named_and_unsafe_call_logs_a_warning(
    tool: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with FakeHttp() as fake, Hub({"s": fake.url}, retry=ONCE, catalog_storage=None) as hub:
        await hub.wait_ready()
        fake.set_mode(f"status=500;on={tool}")
        with pytest.raises(OutcomeUnknown) as caught:
            await hub.call_tool(f"s.{tool}")
    assert caught.value.message == "s answered with HTTP 500: the call may have run"
    lines = [each.getMessage() for each in caplog.records if each.name == "toolway.calls"]
    assert len(lines) == warnings and all("check before you retry" in line for line in lines)
