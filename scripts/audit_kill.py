"""Kill a gateway with an audit log under load, and check the log after each kill.

    python scripts/audit_kill.py [--times 50] [--seed 1] [--to sqlite|jsonl]

Fails if a chain is broken, an effect has no intent record, or an interrupted call is not recorded as unknown. The short
form is row D3 of the fault matrix.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `tests`, which is not an installed package

from tests.gateway.kill_runs import KillRuns


async def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a gateway under load with SIGKILL and check its audit log.")
    parser.add_argument("--times", type=int, default=50, metavar="N", help="number of kills (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", choices=("sqlite", "jsonl"), default="sqlite", help="format of the log (sqlite)")
    options = parser.parse_args()
    wrong = cut_off = effects = intents = 0
    with tempfile.TemporaryDirectory() as folder:
        log = KillRuns(Path(folder), options.seed, options.to)
        for _ in range(options.times):
            found = await log.kill_once()
            print(found, flush=True)
            wrong += len(found.wrong)
            cut_off += found.open
            effects, intents = found.effects, found.intents
    print(f"{options.times} kills, {effects} effects, {intents} intents, {cut_off} calls interrupted")
    print(f"violations: {wrong}")
    return 1 if wrong or not cut_off else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
