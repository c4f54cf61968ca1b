"""The workflow of refund.yaml in Python: toolway workflow run refund.py order=A-17"""

from typing import Any

from toolway.workflows import RunContext, verify, workflow


@workflow(timeout="7d", undo_on_failure=True)
async def refund(run: RunContext, order: str) -> dict[str, Any]:
    found = await run.call("shop.get_order", {"id": order})
    if found.data["total"] > 100:
        await run.approve(f"Refund {found.data['total']}?", who=["finance"], not_by_starter=True, within="2d")
    paid = await run.call(
        "bank.refund",
        {"order": order, "cents": found.data["total"]},
        on_unknown=verify("bank.list_refunds", {"order": order}, lambda reply: reply.data["items"]),
        undo=("bank.cancel_refund", lambda paid: {"id": paid.data["id"]}),
    )
    await run.each(found.data["lines"], lambda line: run.call("mail.send", {"to": line["owner"]}), at_once=5)
    return {"refund": paid.data["id"]}
