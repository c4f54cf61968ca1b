"""A refund with DBOS that is sent at most once: an intent step before the call.

Needs `pip install dbos toolway`. Run it, kill it while the call is under way, and run it again: DBOS repeats the step
that was interrupted, and the step sees that an earlier process began it. It asks instead of calling.
"""

import asyncio
import sys
import uuid
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from toolway import Hub
from toolway.errors import OutcomeUnknown

LIFE = uuid.uuid4().hex  # of this process
hub = Hub("mcp.json")


@DBOS.step()
async def begin() -> str:
    """Store which process is about to call. After a crash, DBOS returns the stored value."""
    return LIFE


@DBOS.step()
async def call_once(life: str, tool: str, arguments: dict[str, Any], key: str) -> Any:
    """Call the tool, unless an earlier process may have done so. Return None if the outcome is unknown."""
    if life != LIFE:
        return None
    try:
        return (await hub.call_tool(tool, arguments, idempotency_key=key)).data
    except OutcomeUnknown:
        return None


@DBOS.workflow()
async def refund(order: str) -> Any:
    found = await call_once(await begin(), "payments.refund", {"order": order}, f"refund-{order}")
    if found is None:  # a person checks, and answers with DBOS.send(workflow_id, result, "outcome")
        found = await DBOS.recv_async("outcome", timeout_seconds=7 * 86400)
    return found


async def main(order: str) -> None:
    config: DBOSConfig = {"name": "refunds", "system_database_url": "sqlite:///refunds.sqlite"}
    DBOS(config=config)
    async with hub:
        DBOS.launch()
        with SetWorkflowID(f"refund-{order}"):
            run = await DBOS.start_workflow_async(refund, order)
        print(await run.get_result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
