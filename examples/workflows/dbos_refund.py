"""A refund with DBOS that is sent at most once: an intent step before the call.

    pip install dbos toolway
    python dbos_refund.py A-17                   # refund the order with the server `payments` of mcp.json
    python dbos_refund.py A-17 '{"id": "r-1"}'   # the answer of someone who checked: this is the refund

Run it, kill it while the call is running, and run it again: DBOS repeats the step that was interrupted, and the step
sees that an earlier process began it. It asks instead of calling.
"""

import asyncio
import json
import sys
import uuid
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig, SetWorkflowID

from toolway import Hub
from toolway.errors import OutcomeUnknown

DATABASE = "sqlite:///refunds.sqlite"
LIFE = uuid.uuid4().hex  # of this process
hub = Hub("mcp.json")


@DBOS.step()
async def begin() -> str:
    """Store which process is about to call. After a crash, DBOS returns the stored value."""
    return LIFE


@DBOS.step()
async def call_once(life: str, tool: str, arguments: dict[str, Any], key: str) -> dict[str, Any]:
    """Call the tool, unless an earlier process may have done so: then the outcome is unknown."""
    if life != LIFE:
        return {"known": False}
    try:
        result = await hub.call_tool(tool, arguments, idempotency_key=key)
    except OutcomeUnknown:
        return {"known": False}
    return {"known": True, "data": result.data}


@DBOS.workflow()
async def refund(order: str) -> Any:
    outcome = await call_once(await begin(), "payments.refund", {"order": order}, f"refund-{order}")
    if outcome["known"]:
        return outcome["data"]
    print(f"Was {order} refunded? Check, then answer in another terminal: {sys.argv[0]} {order} RESULT")
    return await DBOS.recv_async("outcome", timeout_seconds=7 * 86400)


async def main(order: str) -> None:
    config: DBOSConfig = {"name": "refunds", "system_database_url": DATABASE, "log_level": "WARNING"}
    DBOS(config=config)
    async with hub:
        DBOS.launch()
        with SetWorkflowID(f"refund-{order}"):
            run = await DBOS.start_workflow_async(refund, order)
        print(json.dumps(await run.get_result()))


def answer(order: str, result: str) -> None:
    client = DBOSClient(system_database_url=DATABASE)
    client.send(f"refund-{order}", json.loads(result), "outcome")
    client.destroy()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        answer(*sys.argv[1:])
    else:
        asyncio.run(main(sys.argv[1]))
