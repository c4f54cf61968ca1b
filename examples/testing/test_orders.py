"""Tests of orders.py, without a bank and without a network. Run them here: `python -m pytest`."""

import asyncio

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from orders import pay

from toolway import Hub, SyncHub
from toolway.testing import FakeHttp, fake_server


def bank() -> MCPServer:
    """A server object in this process: as fast as a function, and with your own tools."""
    server = MCPServer("bank")

    @server.tool()
    def pay(order: str) -> str:
        if order == "A0":
            raise ToolError("no such order")
        return f"paid {order}"

    return server


def test_an_order_is_paid() -> None:
    with SyncHub({"bank": bank()}, catalog_storage=None) as hub:
        assert pay(hub, "A1") == "paid A1"


def test_the_reason_of_the_bank_is_shown() -> None:
    with SyncHub({"bank": bank()}, catalog_storage=None) as hub:
        assert "no such order" in pay(hub, "A0")


def test_nothing_is_paid_twice_after_a_crash() -> None:
    with SyncHub({"bank": fake_server("exit_mid_call")}, catalog_storage=None) as hub:  # it exits in the tool `bad`
        assert pay(hub, "A1", "bank.bad") == "ask the bank first"
        assert pay(hub, "A1", "bank.bad") == "ask the bank first"  # its key is known, so it is not sent again


def test_a_server_that_is_away_executes_nothing() -> None:
    with SyncHub({"bank": "http://127.0.0.1:9/mcp"}, catalog_storage=None) as hub:
        assert pay(hub, "A1") == "try later"


def test_a_busy_server_is_asked_again() -> None:
    async def call() -> int:
        busy = FakeHttp(modes=["status=503;retry_after=0;times=1"])  # for the first call of `bad`
        async with busy, Hub({"bank": busy.url}, catalog_storage=None) as hub:
            return (await hub.call_tool("bank.bad", idempotent=True)).attempts

    assert asyncio.run(call()) == 2
