"""Kill a gateway with an audit log under load, again and again: `killed_gateways FOLDER TIMES FORMAT`.

Fails unless after each kill the chain is whole, every effect has its intent, and the next start tells what was cut off.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.gateway.kill_runs import KillRuns


async def main(folder: Path, times: int, to: str) -> str:
    log = KillRuns(folder, 1, to)
    killed = [await log.kill_once() for _ in range(times)]
    wrong = [line for each in killed for line in each.wrong]
    assert not wrong, wrong[:5]
    effects, intents, open_calls = killed[-1].effects, killed[-1].intents, sum(each.open for each in killed)
    assert effects > times and open_calls
    return f"{times} kills: {effects} effects, {intents} intents, {open_calls} calls cut off, 0 wrong"


if __name__ == "__main__":
    print(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
