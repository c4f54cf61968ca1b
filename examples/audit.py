import tempfile
from pathlib import Path

import anyio
from mcp.server import MCPServer

from toolway import Hub

bank = MCPServer("bank")


@bank.tool()
def pay(account: str, amount: int) -> str:
    """Send money."""
    return "sent"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "audit.jsonl"
        async with Hub({"bank": bank}, audit_log=log) as hub:
            await hub.call_tool("bank.pay", {"account": "DE02", "amount": 5}, idempotency_key="order-4711")
        for line in log.read_text().splitlines():
            if '"call.' in line:
                print(line[line.index('"kind"') : line.index(',"time"')])


anyio.run(main)
