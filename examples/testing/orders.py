"""A program to test: it pays an order with the tool of a server."""

from toolway import CallError, SyncHub, ToolError


def pay(hub: SyncHub, order: str, tool: str = "bank.pay") -> str:
    try:
        return hub.call_tool(tool, {"order": order}, timeout=5, idempotency_key=order).text
    except ToolError as error:
        return f"the bank says: {error.result.text}"
    except CallError as error:
        return "try later" if error.executed == "no" else "ask the bank first"
